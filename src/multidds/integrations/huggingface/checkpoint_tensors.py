"""The tensors of a balancer, averages of parameters and of gradients, as a file beside a Trainer's checkpoint.

The file carries the digest of the state that it belongs to: a file of another training is not taken for it.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...balancer import Balancer

FILE = "multidds.safetensors"
_log = logging.getLogger("multidds")


def checkpoint_of(args: Any, state: Any) -> Path:
    """Returns the folder that the Trainer gives the checkpoint of this step."""
    return Path(args.output_dir).absolute() / f"checkpoint-{state.global_step}"


def are_shards(state: Mapping[str, Any]) -> bool:
    """Returns whether the tensors of a state are shards, which all processes have to gather together."""
    return any(hasattr(tensor, "full_tensor") for tensor in state["tensors"].values())


def write_tensors(state: Mapping[str, Any], checkpoint: Path, first: bool) -> None:
    """Writes the tensors of a state, if there are any. first: whether this process is the one that writes."""
    whole = {}
    for key, tensor in state["tensors"].items():
        gathered = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        if first:
            whole[key] = gathered.cpu().contiguous()
    if whole and checkpoint.is_dir():
        from safetensors.torch import save_file

        save_file(whole, checkpoint / f"{FILE}.new", {"state": _digest(state)})
        (checkpoint / f"{FILE}.new").replace(checkpoint / FILE)


def with_tensors(state: dict[str, Any], balancer: Balancer, folders: list[Path]) -> dict[str, Any]:
    """Returns a state with its tensors; without a file, averages begin anew, and a warning says so.

    folders: where the file may be.
    """
    from safetensors import safe_open

    digest = _digest(state)
    for file in (folder / FILE for folder in folders):
        if file.is_file():
            with safe_open(file, framework="pt") as opened:
                if (opened.metadata() or {}).get("state") == digest:
                    return {**state, "tensors": {key: opened.get_tensor(key) for key in opened.keys()}}  # noqa: SIM118
    fresh = balancer.state_dict()
    rule = {**state["rule"], **{key: fresh["rule"][key] for key in ("averages",) if key in fresh["rule"]}}
    if state["averaged"] is not None or state["rule"] != rule:
        _log.warning("BalanceCallback: there is no %s of this checkpoint: averages begin anew.", folders[0] / FILE)
    return {**state, "rule": rule, "averaged": fresh["averaged"], "tensors": fresh["tensors"]}


def _digest(state: Mapping[str, Any]) -> str:
    """Returns the digest of a state without its tensors; the same after it was saved as JSON."""
    plain = json.dumps({key: value for key, value in state.items() if key != "tensors"}, sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()
