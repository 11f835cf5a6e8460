"""The contents of a checkpoint: a training as tensors and plain values, and the way back.

The loop decides when to save; files and their checksums are those of `runs/checkpoints.py`.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch import Tensor

from multidds._base.errors import UserError
from multidds._base.randomness import random_states, set_random_states

if TYPE_CHECKING:
    from .train import Training


def saved(run: "Training") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns (tensors, everything else that the next steps depend on)

    The first part of a tensor's name is one of model, optimizer, averaged, random, balancer, examples.
    """
    tensors = {f"model.{name}": tensor for name, tensor in run.model.state_dict().items()}
    for name, parameter in run.model.named_parameters():
        for key, tensor in run.optimizer.state[parameter].items():
            tensors[f"optimizer.{key}.{name}"] = tensor
    if run.averaged is not None:
        tensors |= {f"averaged.{name}": tensor for name, tensor in run.averaged.state_dict().items()}
    tensors |= {f"random.{name}": state for name, state in random_states(run.device).items()}
    states: dict[str, Any] = {
        "balancer": None if run.balancer is None else run.balancer.state_dict(),
        "examples": None if run.noisy_pairs is None else run.noisy_pairs.state_dict(),
    }
    for kind, state in states.items():
        if state is not None:
            tensors |= {f"{kind}.{key}": tensor for key, tensor in state.pop("tensors").items()}
    return tensors, {
        "progress": asdict(run.progress),
        "mixture": run.mixture.state_dict(),
        "stream": run.stream.state_dict(),
        **states,
        "schedule": None if run.schedule is None else run.schedule.state_dict(),
    }


def load(run: "Training", tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Loads what `saved` returned, apart from the progress."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, key = name.partition(".")
        parts.setdefault(kind, {})[key] = tensor
    try:
        run.model.load_state_dict(parts["model"])
    except RuntimeError:
        raise UserError(f"{run.folder}: its checkpoint is of another model; was the data prepared anew?") from None
    parameters = dict(run.model.named_parameters())
    for key, tensor in parts.get("optimizer", {}).items():
        kind, _, name = key.partition(".")
        on_device = tensor.dim() > 0 or run.device.type == "cuda"  # counts of steps are scalars, on the CPU
        run.optimizer.state[parameters[name]][kind] = tensor.to(run.device) if on_device else tensor
    if run.averaged is not None:
        run.averaged.load_state_dict(parts["averaged"])
    if run.balancer is not None:
        run.balancer.load_state_dict({**state["balancer"], "tensors": parts.get("balancer", {})})
    if run.noisy_pairs is not None:
        run.noisy_pairs.load_state_dict({**state["examples"], "tensors": parts["examples"]})
    if run.schedule is not None:
        run.schedule.load_state_dict(state["schedule"])
    run.mixture.load_state_dict(state["mixture"])
    run.stream.load_state_dict(state["stream"])
    set_random_states(run.device, parts["random"])
