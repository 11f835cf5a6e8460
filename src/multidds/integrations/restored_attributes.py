"""Attributes of objects, restored after a probe has run code that counts, collects or replaces them.

Examples are the metrics of a Lightning module and the token counts of a trainer. Parameters, buffers, flags and random
states are restored by the prober (`probes/prober.py`).
"""

import copy
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

_INTERNALS = frozenset(vars(nn.Module()))  # parameters, buffers, submodules, hooks, flags: restored by the prober
_CONTAINERS = (list, dict, set, deque)


@contextmanager
def restored_attributes(objects: Iterable[object], leave: Collection[str] = ()) -> Iterator[None]:
    """Restores, at the end of the block, attributes that were set, added, removed or changed in place.

    objects: whose attributes are restored. An attribute that is itself an object of another class is not looked into;
        give it too, as `module.modules()` does.
    leave: names of attributes that keep what happens to them.

    Changes in place are undone in tensors, and in lists, dicts, sets and deques up to three levels deep.
    """
    saved = []
    for owner in objects:
        left = _INTERNALS.union(leave) if isinstance(owner, nn.Module) else frozenset(leave)
        attributes = vars(owner)
        contents = {key: (value, _content(value)) for key, value in attributes.items() if key not in left}
        saved.append((attributes, left, contents))
    try:
        yield
    finally:
        for attributes, left, contents in saved:
            for key in attributes.keys() - contents.keys() - left:
                del attributes[key]
            for key, (value, content) in contents.items():
                _restore(value, content)
                attributes[key] = value


def _content(value: Any, depth: int = 3) -> Any:
    """Returns what is in a tensor or a container, as `_restore` takes it; None for other objects.

    The object itself stays the same one, since metrics share theirs. Tensors that a list has collected are not copied.
    """
    if isinstance(value, Tensor):
        return None if value.is_inference() else (value._version, value.detach().clone())
    if depth == 0 or not isinstance(value, _CONTAINERS):
        return None
    items = value.values() if isinstance(value, dict) else value
    kinds = (*_CONTAINERS, Tensor) if isinstance(value, dict) else _CONTAINERS
    return copy.copy(value), [(item, _content(item, depth - 1)) for item in items if isinstance(item, kinds)]


def _restore(value: Any, content: Any) -> None:
    if content is None:
        return
    if isinstance(value, Tensor):
        version, data = content
        if value._version != version:  # it was written in place
            value.data.copy_(data)
        return
    items, inside = content
    for item, its_content in inside:
        _restore(item, its_content)
    value.clear()
    if isinstance(value, (list, deque)):
        value.extend(items)
    else:
        value.update(items)
