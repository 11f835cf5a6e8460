"""What a checkpoint holds of a training, and a training put where a checkpoint was.

When to save is the loop's; files and their checksums are those of checkpoints.py.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch import Tensor

from multidds import Mixture
from multidds._base.randomness import random_states, set_random_states

from ..common.errors import UserError
from ..runs.changed_data import grown
from ..runs.records import DataChanged

if TYPE_CHECKING:
    from .train import Training

# The tensors of a checkpoint: "averaged" are the averaged weights, "balancer" its moving averages of gradients,
# "examples" what is known of single sentence pairs.
_KINDS = ("model", "averaged", "optimizer", "random", "balancer", "examples")


def saved(run: "Training") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors, everything else that the next steps depend on)"""
    tensors = {f"model.{name}": tensor for name, tensor in run.model.state_dict().items()}
    for name, parameter in run.model.named_parameters():
        for key, tensor in run.optimizer.state[parameter].items():
            tensors[f"optimizer.{key}.{name}"] = tensor
    if run.averaged is not None:
        tensors |= {f"averaged.{name}": tensor for name, tensor in run.averaged.state_dict().items()}
    tensors |= {f"random.{name}": state for name, state in random_states(run.device).items()}
    states: dict[str, Any] = {
        "balancer": None if run.balancer is None else run.balancer.state_dict(),
        "examples": None if run.examples is None else run.examples.state_dict(),
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


def load(run: "Training", tensors: dict[str, Tensor], state: dict[str, Any], changed: bool = False) -> None:
    """The other way round; `run.progress` is loaded already. changed: the checkpoint is of other data."""
    parts: dict[str, dict[str, Tensor]] = {kind: {} for kind in _KINDS}
    for name, tensor in tensors.items():
        kind, _, key = name.partition(".")
        parts[kind][key] = tensor
    if changed:
        parts |= {kind: grown(parts[kind], run.model, fresh=True) for kind in ("model", "averaged")}
        parts |= {kind: grown(parts[kind], run.model, fresh=False) for kind in ("optimizer", "balancer")}
    try:
        run.model.load_state_dict(parts["model"])
    except RuntimeError:
        raise UserError(f"{run.folder}: its checkpoint is of another model; was the data prepared anew?") from None
    by_name = dict(run.model.named_parameters())
    for key, tensor in parts["optimizer"].items():
        kind, _, name = key.partition(".")
        moved = tensor.to(run.device) if tensor.dim() or run.device.type == "cuda" else tensor
        run.optimizer.state[by_name[name]][kind] = moved
    if run.averaged is not None:
        run.averaged.load_state_dict(parts["averaged"])
    if state["balancer"] is not None and run.balancer is not None:
        try:
            run.balancer.load_state_dict({**state["balancer"], "tensors": parts["balancer"]}, changed)
        except ValueError as error:
            if not changed:
                raise
            raise UserError(f"{run.folder}: cannot go on with the changed data: {error}") from None
    if run.examples is not None:
        run.examples.load_state_dict({**state["examples"], "tensors": parts["examples"]})
    if run.schedule is not None:
        run.schedule.load_state_dict(state["schedule"], changed)
    if not changed:  # else it is the balancer's, the schedule's, or the prior of the data there are now
        run.mixture.load_state_dict(state["mixture"])
    run.stream.load_state_dict(state["stream"], changed)
    set_random_states(run.device, parts["random"])


def renew(run: "Training", state: dict[str, Any]) -> DataChanged:
    """A training that goes on with other data: what is counted in them, or compared on dev sets, begins anew.

    A UserError where nothing would be left to train.
    """
    at, before, now = run.progress, Mixture.shares_in(state["mixture"]), run.mixture.probabilities
    at.epoch, at.best, at.waited = at.sentences // run.total, None, 0
    if reason := run.reason_to_finish():
        raise UserError(
            f"{run.folder}: is finished after {reason}, also with the changed data; raise train.max_steps or "
            "train.max_epochs to train on them."
        )
    if run.balancer is not None:
        run.balancer.priority = run.priority(at.epoch)
    added, left_out = ([n for n in one if n not in other] for one, other in ((now, before), (before, now)))
    return DataChanged(step=at.step, mixture=now, added=added, left_out=left_out)
