"""What code keeps in the attributes of objects while a probe runs it, put back afterwards.

Counters, lists, metrics: of a Lightning module in its `training_step`, or of a trainer that counts tokens in its loss.
Parameters, buffers and flags of a model are the prober's (`probing`), and so are random states.
"""

import copy
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

_INTERNALS = frozenset(vars(nn.Module()))  # parameters, buffers, submodules, hooks, flags: the prober's
_CONTAINERS = (list, dict, set, deque)


@contextmanager
def attributes_put_back(objects: Iterable[object], leave: Collection[str] = ()) -> Iterator[None]:
    """Attributes of these objects that are set, added, removed or changed in place meanwhile are as before afterwards.

    In place: tensors, and lists, dicts, sets and deques, three of them deep. What an object of another class keeps in
    attributes of its own is put back if that object is given, too, as by `module.modules()`. `leave`: names of
    attributes that are left alone.
    """
    kept = []
    for owner in objects:
        others = _INTERNALS.union(leave) if isinstance(owner, nn.Module) else frozenset(leave)
        attributes = vars(owner)
        values = {key: _kept(value) for key, value in attributes.items() if key not in others}
        kept.append((attributes, others, values))
    try:
        yield
    finally:
        for attributes, others, values in kept:
            for key in attributes.keys() - values.keys() - others:
                del attributes[key]
            for key, (value, content) in values.items():
                _put_back(value, content)
                attributes[key] = value


def _kept(value: Any, depth: int = 3) -> tuple[Any, Any]:
    """(the object, what is in it). The object itself stays: metrics share theirs.

    Three containers deep, as in {"train": {"loss": []}}; tensors that a list has collected are not copied.
    """
    if isinstance(value, Tensor):
        return value, None if value.is_inference() else (value._version, value.detach().clone())
    if depth == 0 or not isinstance(value, _CONTAINERS):
        return value, None
    inside = value.values() if isinstance(value, dict) else value
    kinds = (*_CONTAINERS, Tensor) if isinstance(value, dict) else _CONTAINERS
    return value, (copy.copy(value), [_kept(item, depth - 1) for item in inside if isinstance(item, kinds)])


def _put_back(value: Any, content: Any) -> None:
    if content is None:
        return
    if isinstance(value, Tensor):
        if value._version != content[0]:  # written in place
            value.data.copy_(content[1])
        return
    items, inside = content
    for item, its_content in inside:
        _put_back(item, its_content)
    value.clear()
    if isinstance(value, (list, deque)):
        value.extend(items)
    else:
        value.update(items)
