"""One random damage of nested values, such as states and lines of JSON."""

import copy
import math

import torch

SCALARS = [None, True, -1, 3, 2.5, -2.5, 1e300, 10**30, math.nan, math.inf, -math.inf, "x", "", [], {}, [1.0, 2.0]]


def damaged(state, rng):
    """Returns a copy with one damage, and the two innermost keys on the way to it."""
    root = holder = {"": copy.deepcopy(state)}
    key, path = "", []
    while isinstance(holder[key], dict | list) and holder[key] and rng.random() < 0.85:
        holder = holder[key]
        key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        path += [key] if isinstance(key, str) else []
    value = holder[key]
    kind = rng.choice(["remove", "add", "other", "other", "other"])
    if kind == "remove":
        del holder[key]
    elif kind == "add" and isinstance(value, dict):
        value["surplus"] = rng.choice(SCALARS)
        path.append("surplus")
    elif kind == "add" and isinstance(value, list):
        value.append(rng.choice(SCALARS))
    elif isinstance(value, torch.Tensor):
        wrong = [value[:-1], value[None], value.long(), value * 1j, "x", None, value.fill_(math.nan)]
        holder[key] = rng.choice(wrong)
    elif isinstance(value, int | float) and rng.random() < 0.3:
        holder[key] = rng.choice([-value - 1, str(value), [value], value * 1e9])
    else:
        holder[key] = rng.choice(SCALARS)
    return root.get(""), path[-2:] or [""]
