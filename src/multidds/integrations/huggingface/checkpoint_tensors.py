"""The tensors of a balancer, averages of parameters and of gradients, as a file beside a Trainer's checkpoint."""

import logging
from pathlib import Path
from typing import Any

from ...balancer import Balancer

FILE = "multidds.safetensors"
_log = logging.getLogger("multidds")


def checkpoint_of(args: Any, state: Any) -> Path:
    """Returns the folder that the Trainer gives the checkpoint of this step."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def write_tensors(balancer: Balancer, checkpoint: Path, first: bool) -> None:
    """Writes the tensors, if there are any. first: whether this process is the one that writes; all gather shards."""
    tensors = balancer.state_dict()["tensors"]
    whole = {key: t.full_tensor() if hasattr(t, "full_tensor") else t for key, t in tensors.items()}
    if whole and first and checkpoint.is_dir():
        from safetensors.torch import save_file

        save_file({key: tensor.contiguous() for key, tensor in whole.items()}, checkpoint / FILE)


def with_tensors(state: dict[str, Any], balancer: Balancer, checkpoint: Path) -> dict[str, Any]:
    """Returns a state with its tensors; without a file, averages begin anew, and a warning says so."""
    fresh = balancer.state_dict()
    if not fresh["tensors"]:
        return {**state, "tensors": {}}
    if (checkpoint / FILE).is_file():
        from safetensors.torch import load_file

        return {**state, "tensors": load_file(checkpoint / FILE)}
    _log.warning("BalanceCallback: there is no %s: averages begin anew.", checkpoint / FILE)
    estimator = {**state["estimator"], "measurement": fresh["estimator"]["measurement"]}
    return {**state, "estimator": estimator, "averaged": fresh["averaged"], "tensors": fresh["tensors"]}
