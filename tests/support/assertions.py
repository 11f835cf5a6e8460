"""Properties that many objects of the package promise, each asserted in one way.

- `assert_equal`: nested results are equal, bit for bit or within a tolerance
- `assert_resumes_exactly`: a run that is stopped, saved, loaded and continued equals one that is not stopped
- `assert_order_invariant`: results do not depend on the order in which datasets are given
- `assert_ranks_equal_one_process`: several processes find what one process finds
"""

import dataclasses
import io
import json
import random

import pytest
import torch
from ranks import run_on_ranks


def assert_equal(found, expected, tolerance=None, where="result"):
    """Asserts that nested dicts, lists, dataclasses, tensors and numbers are equal.

    found, expected: what is compared; a list equals a tuple, a dict another one with its keys in another order
    tolerance: largest absolute difference of two numbers; default None: bit for bit
    where: name of the value in the message
    """
    if dataclasses.is_dataclass(expected):
        found, expected = vars(found), vars(expected)
    if isinstance(expected, dict):
        assert isinstance(found, dict), where
        assert found.keys() == expected.keys(), where
        for key in expected:
            assert_equal(found[key], expected[key], tolerance, f"{where}[{key!r}]")
    elif isinstance(expected, (list, tuple)):
        assert isinstance(found, (list, tuple)), where
        assert len(found) == len(expected), where
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_equal(one, other, tolerance, f"{where}[{i}]")
    elif isinstance(expected, torch.Tensor):
        limit = tolerance or 0
        torch.testing.assert_close(
            found, expected, rtol=0, atol=limit, equal_nan=True, msg=lambda text: f"{where}: {text}"
        )
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=0, abs=tolerance or 0, nan_ok=True), where
    else:
        assert found == expected, where


def assert_resumes_exactly(make, steps, stops=None, again=None, as_json=False):
    """Asserts that stopping, saving, loading into new objects and continuing changes nothing, bit for bit.

    make: builds everything anew and returns `(parts, step)`. `parts` is `{name: object}`, the objects with
        `state_dict` and `load_state_dict` that a user saves; `step(i)` does step number i and returns what it
        found. Random numbers of PyTorch's global generator are other ones after a stop: a step that
        needs them seeds them by its number
    steps: number of steps of the whole run
    stops: steps before which the run is stopped, each in a run of its own; default: the middle
    again: builds the objects that the state is loaded into, for instance with another seed; default: `make`
    as_json: True: states are saved as JSON, their "tensors" apart; False: by `torch.save`
    """
    whole_parts, step = make()
    expected = [step(i) for i in range(steps)]
    assert len(set(map(repr, expected))) > 1, "every step finds the same, which proves nothing"
    for stop in [steps // 2] if stops is None else stops:
        parts, step = make()
        found = [step(i) for i in range(stop)]
        saved = _saved(_states(parts), as_json)
        torch.manual_seed(1000 + stop)
        parts, step = (again or make)()
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        found += [step(i) for i in range(stop, steps)]
        assert_equal(found, expected, where=f"results, stopped at {stop}")
        assert_equal(_states(parts), _states(whole_parts), where=f"states, stopped at {stop}")


def _states(parts):
    return {name: part.state_dict() for name, part in parts.items()}


def _saved(states, as_json):
    """States as they come back from a file."""
    if as_json:
        plain = {name: {key: state[key] for key in state if key != "tensors"} for name, state in states.items()}
        read = json.loads(json.dumps(plain))
        tensors = {name: {"tensors": state["tensors"]} for name, state in states.items() if "tensors" in state}
        return {name: state | tensors.get(name, {}) for name, state in read.items()}
    file = io.BytesIO()
    torch.save(states, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def assert_order_invariant(make, names, tolerance=1e-9):
    """Asserts that the order in which datasets are given does not matter.

    make: `make(names)` builds everything with the datasets in this order, and returns what was found, by name.
        Random numbers of PyTorch's global generator are other ones in every order
    names: names of the datasets
    tolerance: largest absolute difference of two numbers; sums in another order are rounded differently
    """
    names = list(names)
    torch.manual_seed(0)
    expected = make(names)
    for order in (names[::-1], random.Random(0).sample(names, len(names))):
        torch.manual_seed(len(order) + names.index(order[0]))
        assert_equal(make(order), expected, tolerance, f"result of the order {order}")


def assert_ranks_equal_one_process(work, folder, world_size=2, arguments=(), tolerance=1e-9, checks=(), fork=False):
    """Asserts that real processes (gloo) find the same, bit for bit, and what one process finds, nearly.

    work: `work(*arguments)` is run on every rank and here, and returns what was found. It divides its batches by
        `torch.distributed.get_world_size()` if a group is there. A function of a test module
    folder: an empty folder, such as pytest's `tmp_path`
    world_size: number of processes
    tolerance: largest absolute difference of two numbers to those of one process; sums are rounded differently
    checks: functions without arguments that every rank calls afterwards, in this order; what they assert is asserted
    fork: as in `run_on_ranks`
    """
    ranks = run_on_ranks(_work_and_checks, folder, world_size, work, tuple(arguments), tuple(checks), fork=fork)
    for rank, found in enumerate(ranks[1:], 1):
        assert_equal(found, ranks[0], where=f"result of rank {rank} beside that of rank 0")
    assert_equal(ranks[0], work(*arguments), tolerance, "result of the ranks beside that of one process")


def _work_and_checks(work, arguments, checks):
    found = work(*arguments)
    for check in checks:
        check()
    return found
