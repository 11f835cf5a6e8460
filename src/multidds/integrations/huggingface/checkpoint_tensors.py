"""The tensors of a balancer, averages of parameters and of gradients, as a file beside a Trainer's checkpoint.

The state in the checkpoint carries the digest of that file's tensors: others are not taken for them. Shards are
gathered after that state was written, so the digest of theirs is in the file alone.
"""

import hashlib
import inspect
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..._base.files import whole_file
from ...balancer import Balancer

FILE = "multidds.safetensors"
_log = logging.getLogger("multidds")


def checkpoint_of(args: Any, state: Any) -> Path:
    """Returns the folder that the Trainer gives the checkpoint of this step."""
    return Path(args.output_dir).absolute() / f"checkpoint-{state.global_step}"


def resumed_folder(trainer: Any) -> Path | None:
    """Returns the folder that a Trainer is resuming from; None: another version does not say.

    No event and no attribute has it. It is an argument of the Trainer's methods that are running now.
    """
    frame = inspect.currentframe()
    while frame is not None:
        folder = frame.f_locals.get("resume_from_checkpoint")
        if frame.f_locals.get("self") is trainer and isinstance(folder, str | os.PathLike):
            return Path(folder).absolute()
        frame = frame.f_back
    return None


def are_shards(state: Mapping[str, Any]) -> bool:
    """Returns whether the tensors of a state are shards, which all processes have to gather together."""
    return any(hasattr(tensor, "full_tensor") for tensor in state["tensors"].values())


def write_tensors(state: Mapping[str, Any], checkpoint: Path, first: bool) -> str | None:
    """Writes the tensors of a state, if there are any and all are finite, and returns their digest.

    first: whether this process is the one that writes.
    """
    whole = {}
    for key, tensor in state["tensors"].items():
        gathered = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        if first:
            whole[key] = gathered.cpu().contiguous()
    if not whole or not checkpoint.is_dir() or not all(tensor.isfinite().all() for tensor in whole.values()):
        return None
    from safetensors.torch import save_file

    digest = _digest(state, whole)
    with whole_file(checkpoint / FILE) as partial:
        save_file(whole, partial, {"digest": digest})
    return digest


def with_tensors(state: dict[str, Any], balancer: Balancer, file: Path, digest: str | None) -> dict[str, Any]:
    """Returns a state with its tensors; without a file that fits, averages begin anew, and a warning says so.

    digest: of the tensors; None: the file has it.
    """
    fresh = balancer.state_dict()
    rule = {**state["rule"], **{key: fresh["rule"][key] for key in ("averages",) if key in fresh["rule"]}}
    if not (state["averaged"] or {}).get("updates") and state["rule"] == rule:
        return state
    tensors = _read(state, file, digest)
    if tensors is not None:
        return {**state, "tensors": tensors}
    fault = "is damaged or of another checkpoint" if file.exists() else "does not exist"
    _log.warning("BalanceCallback: %s %s. Averages begin anew.", file, fault)
    return {**state, "rule": rule, "averaged": fresh["averaged"], "tensors": fresh["tensors"]}


def _read(state: Mapping[str, Any], file: Path, digest: str | None) -> dict[str, Tensor] | None:
    """Returns the tensors of a file; None if there is none, if it is damaged, or if its digest is another."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
            own = (opened.metadata() or {}).get("digest")
    except (SafetensorError, OSError):
        return None
    return tensors if _digest(state, tensors) == own == (digest or own) else None


def _digest(state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Returns the digest of a state with its tensors; the same after both were saved."""
    plain = {key: value for key, value in state.items() if key != "tensors"}
    kinds = {key: [str(tensor.dtype), list(tensor.shape)] for key, tensor in tensors.items()}
    digest = hashlib.sha256(json.dumps([plain, kinds], sort_keys=True).encode())
    for key in sorted(tensors):
        digest.update(tensors[key].numpy().tobytes())
    return digest.hexdigest()
