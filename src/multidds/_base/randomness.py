"""Random numbers as functions of a key, and random states that are put back or saved.

Seeds, points and permutations are computed from (seed, name, position, ...), so that the order of datasets, the number
of processes and resuming cannot change them.
"""

import hashlib
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

_MASK = (1 << 64) - 1


def derive(*key: int | str) -> int:
    """Returns a seed of 63 bits for a key such as (seed, "order", name, 3): equal keys have equal seeds."""
    parts = [f"{type(part).__name__}:{part}" for part in key]
    text = "\x1f".join(parts)
    # Any text may be a name: also one with the separator in it, or with half a surrogate pair.
    if "\\" in text or text.count("\x1f") >= len(parts):
        text = "\x1f".join(part.replace("\\", "\\\\").replace("\x1f", "\\s") for part in parts)
    encoded = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "little") >> 1


def mix(value: int) -> int:
    """Scrambles 64 bits (the finaliser of SplitMix64): neighbouring values come out unrelated."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def point(key: int, position: int) -> float:
    """Returns the uniform number in [0, 1) at a position of the sequence of a key."""
    value = (key + position * 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK  # `mix`, without the cost of a call
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((value ^ (value >> 31)) >> 11) * 2.0**-53


def points(key: int, start: int, stop: int) -> np.ndarray:
    """Returns `point` at all positions from `start` to `stop`, in the same arithmetic. # [stop - start]"""
    value = np.arange(start, stop, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((value ^ (value >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


class Permutation:
    """A keyed permutation of range(size), computed per index: nothing of the size of the range is stored.

    It is a Feistel network over pairs (left, right) of numbers below ceil(sqrt(size)); an image outside the range is
    permuted again until it falls inside (cycle walking; rarely more than once).
    """

    _ROUNDS = 6

    def __init__(self, key: int, size: int) -> None:
        self._size = size
        self._side = math.isqrt(size - 1) + 1
        self._keys = [mix((key + i * 0x9E3779B97F4A7C15) & _MASK) for i in range(1, self._ROUNDS + 1)]

    def __getitem__(self, index: int) -> int:
        side, mask = self._side, _MASK
        while True:
            left, right = divmod(index, side)
            for key in self._keys:
                # The high half of a product with an odd constant is well mixed; one multiplication is enough.
                scrambled = ((right ^ key) * 0xD6E8FEB86659FD93) & mask
                left, right = right, (left + ((scrambled ^ (scrambled >> 32)) >> 3)) % side
            index = left * side + right
            if index < self._size:
                return index


def seed_all(seed: int, devices: Iterable[torch.device] = (), generators: Iterable[torch.Generator] = ()) -> None:
    """Seeds `random`, `numpy.random`, torch on the CPU and on the given devices, and the given generators."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)
    for device in _accelerators(devices):
        state = torch.Generator(device).manual_seed(seed).get_state()
        torch.get_device_module(device).set_rng_state(state, device)
    for generator in generators:
        generator.manual_seed(seed)


def random_states(device: torch.device) -> dict[str, Tensor]:
    """Returns the states of `random`, `numpy.random` and torch, on the CPU and on a device, as tensors."""
    (version, words, python_gauss), (_, keys, *place, numpy_gauss), cpu, others = _states([device])
    return {
        "python": torch.tensor([version, *words]),
        "numpy": torch.tensor([*keys.tolist(), *place]),
        # The second of a pair of normal numbers, if only the first has been drawn.
        "gauss": torch.tensor([python_gauss is not None, python_gauss or 0.0, numpy_gauss], dtype=torch.float64),
        "cpu": cpu,
        **({"device": others[0][1]} if others else {}),
    }


def set_random_states(device: torch.device, states: Mapping[str, Tensor]) -> None:
    """Puts back what `random_states` has returned."""
    version, *words = states["python"].tolist()
    *keys, place, has_gauss = states["numpy"].tolist()
    has_python_gauss, python_gauss, numpy_gauss = states["gauss"].tolist()
    python = (version, tuple(words), python_gauss if has_python_gauss else None)
    others = [(d, states["device"].cpu()) for d in _accelerators([device]) if "device" in states]
    _set_states(python, ("MT19937", keys, place, has_gauss, numpy_gauss), states["cpu"].cpu(), others)


def _states(devices: Iterable[torch.device]) -> tuple[Any, Any, Tensor, list[tuple[torch.device, Tensor]]]:
    """Returns the states of `random`, of `numpy.random`, of torch on the CPU and on the given devices."""
    others = [(d, torch.get_device_module(d).get_rng_state(d)) for d in _accelerators(devices)]
    return random.getstate(), np.random.get_state(legacy=True), torch.get_rng_state(), others


def _set_states(python: Any, numpy: Any, cpu: Tensor, others: Iterable[tuple[torch.device, Tensor]]) -> None:
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(cpu)
    for device, state in others:
        torch.get_device_module(device).set_rng_state(state, device)


@contextmanager
def preserved(devices: Iterable[torch.device] = (), generators: Iterable[torch.Generator] = ()) -> Iterator[None]:
    """Puts everything that `seed_all` changes back after the block, bit for bit. About 0.1 ms, most of it numpy's."""
    states = _states(devices)
    generator_states = [(generator, generator.get_state()) for generator in generators]
    try:
        yield
    finally:
        _set_states(*states)
        for generator, state in generator_states:
            generator.set_state(state)


@contextmanager
def isolated(seed: int, generators: Iterable[torch.Generator] = ()) -> Iterator[None]:
    """Runs a block under a seed, and puts all random states back afterwards."""
    generators = list(generators)
    with preserved(generators=generators):
        seed_all(seed, generators=generators)
        yield


def _accelerators(devices: Iterable[torch.device]) -> list[torch.device]:
    return [device for device in devices if device.type != "cpu"]
