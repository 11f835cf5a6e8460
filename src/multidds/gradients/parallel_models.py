"""DDP and FSDP2 around a model: wrappers that can be probed, those that are refused, FSDP2 during a probe.

Only this file uses the internals of `fully_shard`: gradients that wait for their reduction, and whether parameters are
gathered now.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .._base.checks import refuse
from .vectors import Shards, Whole

_REPLAY = "use fully_shard (FSDP2) or DistributedDataParallel, or repeat a mixture that was learned before: Replay."
_REFUSED = {
    "DataParallel": "start one process per device: torchrun.",
    "DistributedDataParallel": "pass the DDP model itself.",
    "FullyShardedDataParallel": _REPLAY,
    "DeepSpeedEngine": _REPLAY,
}
# Attributes that a group of FSDP2's parameters keeps between the backward passes of a step, and their values in probes.
_GROUP_ATTRIBUTES = ("reduce_grads", "all_reduce_grads", "_partial_reduce_output")
_IN_PROBES = {"reduce_grads": True, "all_reduce_grads": True, "is_last_backward": True}  # all others: None


def unwrapped(model: nn.Module, owner: str) -> tuple[nn.Module, Any]:
    """Returns (the module to probe, its process group); other wrappers that copy or split parameters are refused."""
    group = None
    while isinstance(model, DistributedDataParallel) or hasattr(model, "_orig_mod"):
        if isinstance(model, DistributedDataParallel):
            model, group = model.module, model.process_group
        elif any(isinstance(module, DistributedDataParallel) for module in model.modules()):
            model = model._orig_mod  # type: ignore[assignment]  # torch.compile around DDP
        else:
            break  # a compiled model is probed as it is
    if not isinstance(model, nn.Module):
        raise TypeError(f"{owner}: model must be a torch.nn.Module, got {type(model).__name__}.")
    for module in model.modules():
        for name in _bases(module):
            refuse(owner, [(name in _REFUSED, f"{name!r} inside the model is not supported; {_REFUSED.get(name)}")])
    return model, group


def layout_of(model: nn.Module, params: Sequence[Tensor], names: Sequence[str], owner: str) -> tuple[Whole, Any]:
    """Returns (the layout of gradients, the process group of a sharded model)."""
    for p, name in zip(params, names, strict=True):
        is_complex = f"the parameter {name!r} is complex; leave it out of Probes(params=...)."
        refuse(owner, [(p.is_complex(), is_complex)])
        held = f"DeepSpeed holds the parameter {name!r}, which is not supported; {_REPLAY}"
        refuse(owner, [(hasattr(p, "ds_id"), held)])
    sharded = [_is_sharded(p) for p in params]
    if not any(sharded):
        return Whole(), None
    first: Any = params[sharded.index(True)]
    mesh = first.device_mesh
    for p, name in zip(params, names, strict=True):
        refuse(owner, _refusals_of_shards(p, name, mesh, bool(fsdp_modules(model))))
    if mesh.ndim == 1:
        return Shards(params), mesh.get_group()
    partial_mesh = "a mesh of two dimensions that leaves out some ranks is not supported."
    refuse(owner, [(mesh.size() != dist.get_world_size(), partial_mesh)])
    return Shards(params), None


def _refusals_of_shards(p: Any, name: str, mesh: Any, by_fsdp: bool) -> Iterator[tuple[object, str]]:
    mixed = f"the parameter {name!r} is not sharded, but others are; give fully_shard the whole model."
    yield not _is_sharded(p), mixed
    placements = ", ".join(str(placement) for placement in p.placements)
    kinds = [type(placement).__name__ for placement in p.placements]
    here = f"the parameter {name!r} has the placements ({placements})"
    tensor_parallel = f"{here}: tensor parallelism is not supported; {_REPLAY}"
    yield not by_fsdp or kinds not in (["Shard"], ["Replicate", "Shard"]), tensor_parallel
    yield p.device_mesh != mesh, f"{here} on another mesh than other parameters, which is not supported; {_REPLAY}"


def _is_sharded(p: Tensor) -> bool:
    return hasattr(p, "placements")


def fsdp_modules(model: nn.Module) -> list[Any]:
    """Returns the modules that `fully_shard` was applied to."""
    return [module for module in model.modules() if "FSDPModule" in _bases(module)]


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """Returns {name: parameter} as the optimizer has them: shards, even if a forward pass has left them gathered.

    The names in a compiled model are those in the plain one.
    """
    params = [param for module in fsdp_modules(model) for group in _groups(module) for param in group.fsdp_params]
    shards = {id(getattr(param, "_unsharded_param", None)): param.sharded_param for param in params}
    return {name.replace("_orig_mod.", ""): shards.get(id(p), p) for name, p in model.named_parameters()}


def resharded(model: nn.Module) -> None:
    """Makes the parameters of a model its shards again, if a forward pass has left them gathered."""
    for module in fsdp_modules(model):
        module.reshard()


@contextmanager
def set_aside(model: nn.Module) -> Iterator[None]:
    """Puts back afterwards what FSDP2 keeps between passes; in the block, every backward reduces its gradients."""
    modules = fsdp_modules(model)
    groups = [group for module in modules for group in _groups(module)]
    gathered = [module for module in modules if any(group.is_unsharded for group in _groups(module))]
    kept: list[tuple[Any, str, Any]] = []
    for group in groups:
        kept += [(group, key, getattr(group, key)) for key in _GROUP_ATTRIBUTES if hasattr(group, key)]
        for param in group.fsdp_params:
            kept.append((param, "unsharded_accumulated_grad", param.unsharded_accumulated_grad))
            if (whole := getattr(param, "_unsharded_param", None)) is not None:
                kept.append((whole, "grad", whole.grad))
    kept += [(context, "is_last_backward", context.is_last_backward) for context in map(_context, modules)]
    for owner, key, _ in kept:
        setattr(owner, key, _IN_PROBES.get(key))
    resharded(model)
    try:
        yield
    finally:
        resharded(model)
        for owner, key, value in kept:
            setattr(owner, key, value)
    for module in gathered:  # a collective: a rank that fails alone does not come here
        module.unshard()


def _groups(module: Any) -> list[Any]:
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # before PyTorch 2.11 a module has one or none
        groups = [state._fsdp_param_group]
    return [group for group in groups if group is not None]


def _context(module: Any) -> Any:
    return module._get_fsdp_state()._state_ctx


def _bases(module: object) -> list[str]:
    return [base.__name__ for base in type(module).__mro__]
