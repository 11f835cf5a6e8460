"""Digests of everything that a refactoring must not change: draws, mixtures, rewards, noise, losses, parameters.

    python benchmarks/behaviour.py > before.json                         # with the code before; PYTHONPATH selects it
    python benchmarks/behaviour.py --against before.json                 # with the code after: the lines that differ
    python benchmarks/behaviour.py default-rule ranks --against before.json

All sections take about three minutes. Draws are the same on every machine; parameters, and all that is computed from
them, only on the same one. A line is a digest of all values to the last bit, and the last value with six digits.
"""

import argparse
import contextlib
import copy
import hashlib
import io
import json
import logging
import math
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {"TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

ROOT = Path(__file__).parent.parent
sys.path += [str(ROOT / "examples"), str(ROOT / "experiments")]

import rivals  # noqa: E402

import multidds  # noqa: E402
from multidds import Balancer, Budget, ExampleScorer, Limits, Mixture, MixtureSampler, Probes, rewards  # noqa: E402
from multidds.example_scorer import DevDirection, OwnNetwork, SmallNetwork  # noqa: E402
from multidds.mixture import Replay, Schedule  # noqa: E402
from multidds.probes import probe  # noqa: E402
from multidds.rewards import Cosine, FromTable, MeanSlope, MovingAverage, Reward, StabilizedCosine  # noqa: E402
from multidds.rules import RelevancePlan, Scorer  # noqa: E402
from multidds.sampling import MixedDataset, Order, batches_of, interleave, mixed_loader  # noqa: E402

Lines = dict[str, Any]  # {case: line, or {key: line}}
SECTIONS: dict[str, Callable[[Path], Lines]] = {}  # {name: function of an empty folder}
FORMULAS = {
    "clipped inner products, of a table": rivals.inner_products,
    "training losses": rivals.training_losses,
    "the paper's, of a table": rewards.multidds,
    "the paper's stabilized, of a table": rewards.multidds_s,
}


def section(name: str) -> Callable[[Callable[[Path], Lines]], Callable[[Path], Lines]]:
    """Registers a function as the section of this name."""

    def register(function: Callable[[Path], Lines]) -> Callable[[Path], Lines]:
        SECTIONS[name] = function
        return function

    return register


def balancer_arguments(
    reward: Any = StabilizedCosine,
    table: int | str | None = None,
    ahead: float | None = None,
    budget: float | None = None,
    bounds: Any = None,
    passes: Any = None,
    **more: Any,
) -> dict[str, Any]:
    """Returns arguments of a `Balancer`, or of a callback that has one.

    reward: an object of `multidds.rewards`, a class that gets `table` and `ahead`, or a function of a table.
    budget: the share of a `Budget`, instead of `every`.
    bounds, passes: `Limits`.
    more: settings of `Probes`, and further arguments.
    """
    if isinstance(reward, type):
        reward = reward(table=table, ahead=ahead)
    elif not isinstance(reward, Reward):
        reward = FromTable(reward, sketch=table or 2**16, ahead=ahead)
    words = ("batches", "count", "mode", "params", "dev_loss", "split_work")
    probes = Probes(**{word: more.pop(word) for word in words if word in more})
    if budget is not None:
        more["every"] = Budget(budget)
    return {"reward": reward, "limits": Limits(bounds, passes), "probes": probes, **more}


def table_facts(table: Any) -> dict[str, Any]:
    """Returns the numbers of a table of inner products."""
    return {
        "products": [table.dev_train, table.dev_dev, table.train_norms],
        "cosines": table.cosines(),
        "losses": [dict(table.train_losses), dict(table.dev_losses)],
    }


def facts_of(update: Any) -> dict[str, Any]:
    """Returns the numbers of an update of a mixture, without times and sentences."""
    return {
        "mixture": dict(update.mixture),
        "rewards": dict(update.rewards),
        "noise": dict(update.noise),
        "signal": update.signal,
        "losses": [dict(update.dev_losses), dict(update.train_losses)],
        "weights": dict(update.weights),
        "probed": tuple(update.probed),
        "distances": [update.drift, update.learned, update.unlearned],
        "before": [dict(update.before), dict(update.prior)],
        "step": [update.step, update.skipped is not None, len(update.notes)],
        "table": None if update.alignment is None else table_facts(update.alignment),
    }


def example_facts(update: Any) -> dict[str, Any]:
    """Returns the numbers of an update of scores of examples."""
    return {
        "rewards": update.rewards,
        "probabilities": update.probabilities,
        "losses": [update.losses, dict(update.dev_losses), dict(update.weights)],
        "step": [update.step, update.skipped is not None],
    }


# ------------------------------------------------------------------------------------------ digests and lines


def digest(value: Any) -> str:
    hashed = hashlib.sha256()
    for part in parts_of(value):
        hashed.update(part)
    return hashed.hexdigest()[:16]


def parts_of(value: Any) -> Iterator[bytes]:
    """Yields the bytes of a value: tensors by their bits, all else by its repr."""
    if isinstance(value, Tensor):
        yield f"tensor {value.dtype} {tuple(value.shape)} ".encode()
        yield value.detach().cpu().contiguous().numpy().tobytes()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield f"{key!r}: ".encode()
            yield from parts_of(item)
    elif isinstance(value, (list, tuple)):
        yield f"{len(value)} ".encode()
        for item in value:
            yield from parts_of(item)
    else:
        yield f"{value!r} ".encode()


def shown(value: Any, most: int = 8) -> str:
    """Returns the first values with six digits."""
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, Mapping):
        few = [f"{name} {shown(item)}" for name, item in list(value.items())[:most]]
        return "  ".join(few + [f"and {len(value) - most} more"] * (len(value) > most))
    if isinstance(value, (list, tuple)):
        return " ".join(shown(item) for item in value[:most]) + " ..." * (len(value) > most)
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def line(values: Sequence[Any]) -> str:
    """Returns a digest of all values, and the last one."""
    return f"{digest(values)}  {shown(values[-1]) if len(values) else 'nothing'}".rstrip()


def parameters(model: nn.Module) -> str:
    tensors = [tensor for _, tensor in sorted(model.state_dict().items())]
    return digest([t.full_tensor() if hasattr(t, "full_tensor") else t for t in tensors])


def lines_of(updates: list[dict[str, Any]]) -> Lines:
    """Returns one line for each key of the facts of updates."""
    keys = list(updates[0]) if updates else []
    lines = {key: line([facts[key] for facts in updates]) for key in keys if key != "table"}
    tables = [facts["table"] for facts in updates if facts.get("table") is not None]
    if tables:
        lines["table"] = f"{digest(tables)}  {shown(tables[-1]['cosines'])}"
    return {**lines, "updates": str(len(updates))}


def same(one: Any, other: Any) -> str:
    return "the same" if digest(one) == digest(other) else f"another: {digest(other)} for {digest(one)}"


def saved(state: Any) -> tuple[Any, str]:
    """Returns a state as it is read back from a file, and the kind of file."""
    try:
        return json.loads(json.dumps(state)), "JSON"
    except TypeError:
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        return torch.load(file, weights_only=True), "tensors"


# ------------------------------------------------------------------------------------------ draws and mixtures

SIZES = {"a": 37, "b": 410, "c": 1501}
POOLS = {**SIZES, "d": 120, "e": 60}
MOVES = {3_000: {"a": 0.5, "b": 0.3, "c": 0.2}, 7_000: {"a": 0.1, "b": 0.1, "c": 0.8}}
DRAWS = 10_000


class Places(Dataset[Any]):
    """A dataset of examples with consecutive numbers, which identify them in a batch."""

    def __init__(self, first: int, size: int) -> None:
        self.first, self.size = first, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, place: int) -> Any:
        number = self.first + place
        x = torch.tensor([number % 7, number % 11], dtype=torch.float32)
        return {"number": number, "x": x, "labels": 0.1 * (number % 7) + (number % 5 if self.first == 0 else 0.0)}


class NoisyPlaces(Places):
    """The same with random numbers, as of a dataset that augments."""

    def __getitem__(self, place: int) -> Any:
        return super().__getitem__(place) | {"noise": torch.rand(())}


class Flow(IterableDataset[Any]):
    """A stream of the same examples that divides itself among workers and keeps its place."""

    def __init__(self, first: int, size: int) -> None:
        self.rows, self.num_shards = Places(first, size), 4
        self.place, self.start = 0, 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        places = range(0 if info is None else info.id, len(self.rows), 1 if info is None else info.num_workers)
        self.place, self.start = self.start, 0
        for place in places[self.place :]:
            self.place += 1
            yield self.rows[place]

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.start = state["place"]


def arrow(first: int, size: int) -> Any:
    """Returns a stream of the same examples by the library of Hugging Face."""
    from datasets import Dataset as ArrowDataset

    rows = [Places(first, size)[place] for place in range(size)]
    columns = {key: [row[key] for row in rows] for key in ("number", "labels")}
    made = ArrowDataset.from_dict({**columns, "x": [row["x"].tolist() for row in rows]})
    return made.with_format("torch").to_iterable_dataset(num_shards=2)


def datasets(kind: Callable[[int, int], Any] = Places) -> dict[str, Any]:
    return {name: kind(1_000_000 * i, size) for i, (name, size) in enumerate(SIZES.items())}


def resumed_draws(stream_of: Callable[[Mixture], Any], per_item: int = 1, consumed: int = 0) -> Lines:
    """Returns lines of 10,000 draws with two moves, and of 10,000 more by a stream that has loaded the state."""
    lines = {}
    mixture = Mixture.proportional(SIZES)
    stream = stream_of(mixture)
    for part in ("first", "second"):
        if part == "second":
            state, moved = json.loads(json.dumps([stream.state_dict(), mixture.state_dict()]))
            mixture = Mixture.proportional(SIZES)
            mixture.load_state_dict(moved)
            stream = stream_of(mixture)
            stream.load_state_dict(state)
        drawn, items = [], iter(stream)
        for i in range(0, DRAWS, per_item):
            for at, probabilities in MOVES.items():
                if i <= at < i + per_item:
                    mixture.move(probabilities)
            drawn.append(next(items))
        lines[part] = digest(drawn)
        lines[f"{part}, counts"] = f"{digest([stream.examples, stream.passes])}  {shown(stream.examples)}"
    if consumed:  # as a loader with workers saves it
        stream.load_state_dict(stream.state_dict(consumed=consumed))
        items = iter(stream)
        lines["after rewinding"] = digest([next(items) for _ in range(500)])
    return lines


@section("draws")
def draws_section(folder: Path) -> Lines:
    loaders = {name: [torch.tensor([i, i]) for i in range(size)] for name, size in SIZES.items()}
    of_three = {"rank": 1, "world_size": 3}
    order = Order(3, "a", 37)
    return {
        "indices": resumed_draws(lambda m: MixtureSampler(SIZES, m, seed=3), 1, 19_000),
        "batches of indices": resumed_draws(lambda m: MixtureSampler(SIZES, m, 10, 3), 10, 1_900),
        "batches of indices, rank 1 of 3": resumed_draws(
            lambda m: MixtureSampler(SIZES, m, 10, 3, **of_three), 10, 1_950
        ),
        "batches of loaders": resumed_draws(lambda m: interleave(loaders, m, seed=5)),
        "batches of loaders, rank 1 of 3": resumed_draws(lambda m: interleave(loaders, m, seed=5, **of_three)),
        "order": f"{digest([order[i] for i in range(200)])}  {shown([order[i] for i in range(8)])}",
    }


@section("mixtures")
def mixtures_section(folder: Path) -> Lines:
    weights = {"a": 1.0, "b": 0.0, "c": 3.0, "d": 0.5, "e": 1.0}
    mixtures = {
        "given": Mixture({"a": 0.5, "b": 0.25, "c": 0.25}),
        "proportional": Mixture.proportional(POOLS),
        "temperature 5": Mixture.temperature(POOLS, tau=5),
        "temperature 0.7": Mixture.temperature(POOLS, tau=0.7),
        "uniform": Mixture.uniform(POOLS),
        "as uniform as passes allow": Mixture.unimax(POOLS, budget=1000, max_passes=4),
        "as uniform as few passes allow": Mixture.unimax(POOLS, budget=1500, max_passes=1),
        "planned, short": Mixture.planned(POOLS, draws=500),
        "planned, long": Mixture.planned(POOLS, draws=100_000),
        "planned, weights": Mixture.planned(POOLS, draws=5000, weights=weights),
        "planned, more transfer": Mixture.planned(POOLS, draws=5000, transfer=0.3),
        "planned, repetition worth less": Mixture.planned(POOLS, draws=50_000, worth=4.0),
    }
    return {what: line([mixture.probabilities]) for what, mixture in mixtures.items()}


@section("schedules")
def schedules_section(folder: Path) -> Lines:
    """Mixtures that move by a plan, or as they were recorded."""
    start, middle = Mixture.proportional(SIZES), Mixture.temperature(SIZES, tau=5)
    ramp: list[Any] = [(0.0, start), (0.4, middle), (0.4, MOVES[7_000]), (0.9, Mixture.uniform(SIZES))]
    history = [(0, MOVES[3_000]), (4, MOVES[7_000]), (9, start.probabilities), (15, middle.probabilities)]
    makers: dict[str, Callable[[Mixture], Any]] = {
        "schedule": lambda mixture: Schedule(mixture, ramp, steps=20, every=1),
        "schedule, every third step": lambda mixture: Schedule(mixture, ramp, steps=20, every=3),
        "schedule, long": lambda mixture: Schedule(mixture, ramp, steps=1000),
        "replay": lambda mixture: Replay(mixture, history),
        "replay without a start": lambda mixture: Replay(mixture, history[1:]),
    }
    lines = {}
    for what, make in makers.items():
        steps = 1000 if "long" in what else 24
        mixture = Mixture.proportional(SIZES)
        mover, way, begin = make(mixture), [], mixture.probabilities
        for step in range(steps):
            if step == steps // 2:
                state, kind = saved(mover.state_dict())
                mixture = Mixture.proportional(SIZES)
                mover = make(mixture)
                mover.load_state_dict(state)
            moved = mover.step()
            way.append([moved is not None, mixture.probabilities])
        moves = str(sum(moved for moved, _ in way))
        lines[what] = {"begin": line([begin]), "way": line(way), "moves": moves, "saved": kind}
    return lines


# ------------------------------------------------------------------------------------------ small trainings

NAMES, DEV = tuple("abcd"), tuple("abc")
NOISE = "d"  # the dataset whose targets do not depend on its inputs
EVERY, STEPS, STOP = 3, 30, 16  # steps between updates, of a training, and before it is stopped to be resumed


def rows_of(name: str, count: int, seed: int) -> TensorDataset:
    """Returns examples of a linear function of the dataset; those of `NOISE` have random targets."""
    own = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    slope = torch.tensor([1.0, -1.0, 0.5]) + 0.8 * torch.randn(3, generator=own)
    if name[1:].isdigit():  # of many datasets, every fourth has much in common
        slope += 2 * torch.randn(3, generator=torch.Generator().manual_seed(int(name[1:]) % 4))
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + 1 + seed)
    x = torch.randn(count, 3, generator=generator)
    y = 0.3 * torch.randn(count, generator=generator) + (0.0 if name == NOISE else 1.0) * (x @ slope)
    return TensorDataset(x, 4 * y if name == NOISE else y)


class Turning:
    """Batches without end that keep their place."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches, self._place = batches, 0

    def __iter__(self) -> "Turning":
        return self

    def __next__(self) -> Any:
        self._place += 1
        return self._batches[self._place % len(self._batches)]

    def state_dict(self) -> dict[str, Any]:
        return {"place": self._place}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._place = state["place"]


def in_batches(rows: TensorDataset) -> list[Any]:
    return [rows[i : i + 8] for i in range(0, len(rows), 8)]


def with_a_bad_one(rows: TensorDataset) -> list[Any]:
    """Returns batches, the third of which has a target that is not finite."""
    batches = [(x.clone(), y.clone()) for x, y in in_batches(rows)]
    batches[2][1][0] = math.inf
    return batches


SOURCES: dict[str, Callable[[TensorDataset], Any]] = {
    "lists": in_batches,
    "functions": partial(batches_of, batch_size=8),
    "loaders": partial(DataLoader, batch_size=8, shuffle=True),
    "stateful": lambda rows: Turning(in_batches(rows)),
    "lists with a bad batch": with_a_bad_one,
}


def small_model(norm: type[nn.Module] = nn.BatchNorm1d) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 8), norm(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))


def each_loss(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch[0])[:, 0] - batch[1]).square()


def mean_loss(model: nn.Module, batch: Any) -> Tensor:
    return each_loss(model, batch).mean()


def absolute_loss(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch[0])[:, 0] - batch[1]).abs().mean()


def unchanged(model: nn.Module) -> nn.Module:
    return model


class Training:
    """A small training, step by step, which can be saved and resumed by another one."""

    begin: Lines = {}  # noqa: RUF012
    kept: Sequence[Any]  # the objects of the library, which are saved

    def __init__(self, model: nn.Module) -> None:
        self.model, self.steps, self.updates = model, 0, list[dict[str, Any]]()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def step(self) -> None:
        raise NotImplementedError

    def optimize(self, loss: Tensor) -> None:
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def run(self, steps: int) -> "Training":
        """Continues until so many steps are made in all."""
        while self.steps < steps:
            self.steps += 1
            self.step()
        return self

    def resume_from(self, other: "Training") -> str:
        """Continues where another training is, by way of a file; returns the kind of file."""
        self.steps, self.updates = other.steps, list(other.updates)
        self.model.load_state_dict(copy.deepcopy(other.model.state_dict()))
        self.optimizer.load_state_dict(copy.deepcopy(other.optimizer.state_dict()))
        kinds = []
        for own, its in zip(self.kept, other.kept, strict=True):
            state, kind = saved(its.state_dict())
            own.load_state_dict(state)
            kinds.append(kind)
        return kinds[0]

    def lines(self) -> Lines:
        return lines_of(self.updates) | {"parameters": parameters(self.model)}


def trained(make: Callable[[], Training], length: int = STEPS, stop: int = STOP) -> Lines:
    """Returns lines of a training, and whether one that is stopped in the middle and resumed is the same."""
    whole = make().run(length)
    stopped = make().run(stop)
    random_state = torch.get_rng_state()
    resumed = make()
    kind = resumed.resume_from(stopped)
    torch.set_rng_state(random_state)
    resumed.run(length)
    one, other = whole.lines(), resumed.lines()
    equal = same([whole.updates, one], [resumed.updates, other])
    return {**whole.begin, **one, "saved": kind, "resumed": equal}


class Loop(Training):
    """A training with a balancer.

    names, dev: of the datasets and the dev sets.
    sources: the kind of probe sources.
    norm, wrap: of the model.
    at: {step: function that is called with the loop after it}.
    frozen: whether the first layer is not trained at first.
    sizes: of the datasets, for a plan.
    choices: for `balancer_arguments`; params=True stands for the parameters of the last layer.
    """

    def __init__(
        self,
        names: Sequence[str] = NAMES,
        dev: Sequence[str] = DEV,
        sources: str = "lists",
        norm: type[nn.Module] = nn.BatchNorm1d,
        wrap: Callable[[nn.Module], nn.Module] = unchanged,
        at: Mapping[int, Callable[["Loop"], None]] | None = None,
        frozen: bool = False,
        sizes: Mapping[str, float] | None = None,
        **choices: Any,
    ) -> None:
        bare = small_model(norm)
        bare[0].requires_grad_(not frozen)
        if "params" in choices:
            choices["params"] = list(bare[-1].parameters())
        super().__init__(wrap(bare))
        self.at = at or {}
        train = {name: rows_of(name, 40, 0) for name in names}
        self.mixture = Mixture.proportional({name: POOLS.get(name, 50 + len(name) * i) for i, name in enumerate(names)})
        self.mixture.sizes = sizes
        self.stream = interleave({name: in_batches(rows) for name, rows in train.items()}, self.mixture, seed=1)
        source = SOURCES[sources]
        self.balancer = Balancer(
            self.mixture,
            self.model,
            mean_loss,
            train={name: source(rows) for name, rows in train.items()},
            dev={name: source(rows_of(name, 40, 1)) for name in dev},
            **balancer_arguments(**{"seed": 7, "every": EVERY, **choices}),
        )
        self.kept = self.balancer, self.stream
        self.begin = {"every": str(self.balancer.every), "begin": line([self.mixture.probabilities])}
        torch.manual_seed(2)

    def step(self) -> None:
        name, batch = next(self.stream)
        mean_loss(self.model, batch).backward()
        if not dist.is_initialized():
            self.balancer.observe(name)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if (update := self.balancer.step()) is not None:
            self.updates.append(facts_of(update))
        if self.steps in self.at:
            self.at[self.steps](self)

    def lines(self) -> Lines:
        lines = super().lines() | {"drawn": shown(self.stream.examples)}
        if self.updates and self.updates[-1]["mixture"] != self.mixture.probabilities:
            lines["mixture now"] = line([self.mixture.probabilities])
        return lines


def loops(cases: Mapping[str, Mapping[str, Any]], common: Mapping[str, Any] | None = None) -> Lines:
    """Returns lines of one training for each case. common: choices of all cases."""
    return {what: trained(partial(Loop, **{**(common or {}), **case})) for what, case in cases.items()}


def set_priority(loop: Loop) -> None:
    loop.balancer.priority = "high"


def set_dev_losses(loop: Loop) -> None:
    loop.balancer.dev_losses = {"a": 3.0, "b": 1.0, "c": 2.0}


def unfreeze(loop: Loop) -> None:
    loop.model[0].requires_grad_(True)
    loop.balancer.refresh_parameters()


def by_loss(losses: Mapping[str, float]) -> dict[str, float]:
    return {name: value**2 for name, value in losses.items()}


def smallest_cosine(table: Any, weights: Tensor) -> Tensor:
    return table.cosines()[weights > 0].amin(dim=0)


def weighted_cosines(table: Any, weights: Tensor) -> Tensor:
    return weights @ table.cosines() - 0.1 * table.train_norms


FAST = {"rule": Scorer(lr=1.0)}
PLAN = {"sizes": {name: POOLS[name] for name in NAMES}, "examples_per_step": 8, "steps": STEPS}
GROUPS = {"a": "one", "b": "one", "c": "two"}
BOUNDS = {"a": (0.1, 0.5), "c": (0.3, 0.4)}
LIMITS: dict[str, dict[str, Any]] = {
    "bounds": {"bounds": BOUNDS},
    "passes": {**PLAN, "passes": 0.25},
    "passes by name": {**PLAN, "passes": {"a": 0.3, "d": 0.1}},
    "passes and bounds": {**PLAN, "passes": 0.25, "bounds": {"b": (0.0, 0.3)}},
    "passes against a bound": {**PLAN, "passes": {"a": 0.3}, "bounds": {"a": (0.2, 1.0)}},
    "fewer passes than there are steps for": {**PLAN, "passes": 0.05},
    "groups": {"groups": GROUPS},
    "groups with bounds": {"groups": GROUPS, "bounds": {"one": (0.4, 0.5), "b": (0.0, 0.3)}},
    "groups with bounds, and their datasets": {
        "groups": GROUPS,
        "bounds": {"one": (0.0, 0.6), "a": (0.3, 1.0), "b": (0.25, 0.5), "two": (0.1, 1.0)},
    },
    "groups with wider bounds than their datasets": {"groups": GROUPS, "bounds": {"two": (0.1, 0.9), "c": (0.0, 0.3)}},
    "groups, bounds and passes": {"groups": GROUPS, "bounds": {"two": (0.0, 0.2)}, **PLAN, "passes": 0.25},
}
PRIORITIES: dict[str, dict[str, Any]] = {
    "priority: low": {"priority": "low"},
    "priority: high": {"priority": "high"},
    "priority: weights": {"priority": {"a": 3.0, "c": 1.0}},
    "priority: function": {"priority": by_loss},
    "priority: low, by losses that are given": {"priority": "low", "at": {1: set_dev_losses}},
    "priority: changed on the way": {"at": {22: set_priority}},
}
PROBES: dict[str, dict[str, Any]] = {
    "another loss of dev sets": {"dev_loss": absolute_loss},
    "evaluation mode": {"mode": "eval"},
    "one batch": {"batches": 1},
    "four batches": {"batches": 4},
    "three batches in all": {"batches": 3, "count": "in all"},
    "table, exact": {"table": "exact"},
    "table of 64 buckets": {"table": 64},
    "a step ahead": {"ahead": 0.01},
    "a step ahead, table": {"ahead": 0.01, "table": 64},
    "the last layer only": {"params": True},
    "another seed": {"seed": 8},
    "by functions": {"sources": "functions"},
    "by loaders": {"sources": "loaders"},
    "by stateful sources": {"sources": "stateful"},
    "a batch that is not finite": {"sources": "lists with a bad batch"},
    "frozen": {"at": {7: lambda loop: loop.balancer.freeze()}},
    "an update between steps": {"at": {7: lambda loop: loop.balancer.update()}},
    "a layer that is trained later": {"frozen": True, "at": {22: unfreeze}},
    "an update at every step": {"every": 1},
}


@section("default-rule")
def default_section(folder: Path) -> Lines:
    """The default rule, with and without a plan, and with every setting."""
    budget = {"budget": 8.0, "steps": 180}
    rules: dict[str, dict[str, Any]] = {
        "alone": {},
        "plan": PLAN,
        "plan, long training": {**PLAN, "steps": 12_500},
        "plan and bounds": {**PLAN, "bounds": BOUNDS},
        "plan and groups": {**PLAN, "groups": GROUPS},
        "plan and weights": {**PLAN, "priority": {"a": 3.0, "c": 1.0}},
        "plan, dataset without a dev set": {**PLAN, "dev": ("a", "b")},
        "plan that is not wanted": {**PLAN, "rule": RelevancePlan(plan=False)},
        "assumed repetition": {"rule": RelevancePlan(repetition=15)},
        "by a budget": budget,
        "by a budget, plan": {**PLAN, **budget, "examples_per_step": 8 * STEPS / 180},
        "inner products": {"reward": Cosine},
        "moving averages": {"reward": MovingAverage},
    }
    return loops(rules | LIMITS | PRIORITIES | PROBES)


@section("paper-rule")
def paper_section(folder: Path) -> Lines:
    """The paper's rewards and rule, and rules of other papers."""
    kinds = {"inner products": Cosine, "cosines": StabilizedCosine, "moving averages": MovingAverage}
    forms: dict[str, dict[str, Any]] = {
        "alone": {},
        "a step ahead": {"ahead": 0.01},
        "low": {"priority": "low"},
        "table, exact": {"table": "exact", "batches": 2},
        "table of 64 buckets": {"table": 64},
        "authors' setting": {"rule": Scorer.authors()},
        "policy, evaluation mode": {"rule": Scorer(rule="policy"), "mode": "eval"},
        "a step ahead, table": {"ahead": 0.01, "table": 64},
    }
    cases = {
        f"{kind}: {what}": {"rule": Scorer(), "reward": reward, **form}
        for kind, reward in kinds.items()
        for what, form in forms.items()
    }
    doge = {"rule": rivals.Exponentiated(), "reward": rivals.inner_products}
    others: dict[str, dict[str, Any]] = {
        "no floor": {"rule": Scorer(lr=1.0, floor=0.0), "reward": smallest_cosine, "table": 64},
        "faster decay of moving averages": {"reward": MovingAverage(decay=0.5)},
        "exponentiated": {**doge, "table": "exact"},
        "exponentiated, bounds": {**doge, "table": 64, "bounds": BOUNDS},
        "bandit": {"rule": rivals.Exp3(), "reward": rivals.training_losses, "table": 64},
    }
    return loops(cases | LIMITS | PRIORITIES | PROBES | others, FAST)


@section("own-rewards")
def rewards_section(folder: Path) -> Lines:
    """Rewards that are functions of a table."""
    formulas = {"smallest cosine": smallest_cosine, "cosines less norms": weighted_cosines}
    formulas |= {what: formula for what, formula in FORMULAS.items() if "of a table" in what}
    cases = {
        f"{what}, {size}, {kind}": {"reward": formula, "table": table, **rule}
        for what, formula in formulas.items()
        for size, table in (("exact", "exact"), ("1,024 buckets", 2**10))
        for kind, rule in (("paper, fast", FAST), ("anchored", {}))
    }
    return loops(cases)


MANY = [f"d{i:02}" for i in range(60)]
PART: dict[str, Any] = {"names": MANY, "dev": MANY[:20], "steps": 160, "budget": 8.0, "sources": "functions"}
SLOPES = {"reward": MeanSlope(each_loss), "norm": nn.LayerNorm}


@section("many-datasets")
def many_section(folder: Path) -> Lines:
    """Sixty datasets and twenty dev sets, of which an update probes a part."""
    groups = {name: f"g{i % 4}" for i, name in enumerate(MANY) if i % 5}
    plan = {"sizes": {name: 30 + 17 * i for i, name in enumerate(MANY)}, "examples_per_step": 8}
    forms: dict[str, dict[str, Any]] = {
        "alone": {},
        "groups": {"groups": groups},
        "groups with bounds": {"groups": groups, "bounds": {"g0": (0.1, 0.2), "d03": (0.0, 0.01)}},
        "plan": plan,
        "plan and passes": {**plan, "passes": 0.2},
        "low": {"priority": "low"},
        "weights": {"priority": {name: 1.0 + i % 3 for i, name in enumerate(MANY[:20])}},
        "another loss of dev sets": {"dev_loss": absolute_loss},
    }
    cases = {f"parts: {what}": {**PART, **form} for what, form in forms.items()}
    cases |= {f"mixed batches: {what}": {**PART, **SLOPES, **form} for what, form in forms.items()}
    cases["parts: the paper's rule"] = {**PART, **FAST}
    cases["parts: the paper's rule, groups"] = {**PART, **FAST, "groups": groups}
    cases["parts: four batches"] = {**PART, "batches": 4}
    cases["parts: by lists"] = {**PART, "sources": "lists"}
    cases["all, at given steps"] = {**PART, "budget": None, "every": 8}
    lines = {}
    for what, case in cases.items():
        every = Loop(**case).balancer.every
        lines[what] = trained(partial(Loop, **case), 6 * every, 3 * every + 1)
    return lines


# ------------------------------------------------------------------------------------------ single examples, tables


class ScoreNetwork(nn.Module):
    """A network that scores by inputs and target."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, batch: Any) -> Tensor:
        return self.layers(torch.cat([batch[0], batch[1][:, None]], dim=1))[:, 0]


def features(batch: Any) -> Tensor:
    return torch.stack([batch[0].norm(dim=1), batch[1], batch[1].abs()], dim=1)


class ExampleLoop(Training):
    """A training on clean and noisy examples, half and half, whose losses are weighted by a scorer.

    network: makes the settings of the network that scores.
    wrap: of the model.
    first: the number of the first batch.
    settings: of the `ExampleScorer`.
    """

    def __init__(
        self,
        network: Callable[[], SmallNetwork | OwnNetwork] = lambda: SmallNetwork(features),
        wrap: Callable[[nn.Module], nn.Module] = unchanged,
        first: int = 0,
        **settings: Any,
    ) -> None:
        super().__init__(wrap(small_model(nn.LayerNorm)))
        self.first = first
        clean, noisy = rows_of("a", 96, 0), rows_of(NOISE, 96, 0)
        self.batches = [
            tuple(torch.cat([one, other]) for one, other in zip(clean[i : i + 6], noisy[i : i + 6], strict=True))
            for i in range(0, 96, 6)
        ]
        dev = {name: batches_of(rows_of("a", 40, seed), 8) for seed, name in enumerate("xy", start=1)}
        made = network()
        self.small = isinstance(made, SmallNetwork)
        settings = {"every": 1, "seed": 7, **settings}
        self.scorer = ExampleScorer(self.model, each_loss, dev, network=made, **settings)
        self.kept = (self.scorer,)
        torch.manual_seed(2)

    def step(self) -> None:
        batch = self.batches[(self.first + self.steps - 1) % len(self.batches)]
        losses = each_loss(self.model, batch)
        self.optimize((self.scorer.weights(batch, losses) * losses).mean())
        if (update := self.scorer.step(batch)) is not None:
            self.updates.append(example_facts(update))

    def lines(self) -> Lines:
        batch = self.batches[0]
        losses = each_loss(self.model.eval(), batch).detach()
        lines = super().lines()
        lines["scores"] = line([self.scorer.scores(batch), self.scorer.scores(batch, losses)])
        lines["probabilities now"] = line([self.scorer.probabilities(batch, losses)])
        if self.small:
            lines["trust"] = line([self.scorer.keep_probabilities(batch, losses)])
        return lines


@section("example-scorer")
def examples_section(folder: Path) -> Lines:
    """Scores of single examples, by the small network and by one of one's own."""
    sgd = partial(torch.optim.SGD, lr=0.1)
    small = partial(partial, SmallNetwork, features)
    own = {"network": lambda: OwnNetwork(ScoreNetwork())}
    cases: dict[str, dict[str, Any]] = {
        "small network, loss alone": {"network": SmallNetwork},
        "small network": {},
        "features alone": {"network": small(own_loss=False)},
        "replay": {"network": small(replay=4, inner_steps=3)},
        "features alone, replay": {"network": small(own_loss=False, replay=3)},
        "averaged direction": {"direction": DevDirection(decay=0.7)},
        "plain gradient": {"direction": DevDirection(balanced=False)},
        "evaluation mode, two batches": {"probes": Probes(mode="eval", batches=2)},
        "low": {"priority": "low"},
        "weights": {"priority": {"x": 3.0, "y": 1.0}},
        "another loss of dev sets": {"probes": Probes(dev_loss=absolute_loss)},
        "longer steps": {"direction": DevDirection(eps=0.02)},
        "another optimizer": {"network": small(optimizer=sgd)},
        "every third step": {"every": 3},
        "network of one's own": own,
        "network of one's own, as in the paper": {
            "network": lambda: OwnNetwork(ScoreNetwork(), sgd),
            "direction": DevDirection(balanced=False),
        },
        "network of one's own, averaged direction": {**own, "direction": DevDirection(decay=0.7)},
    }
    return {what: trained(partial(ExampleLoop, **case), 14, 8) for what, case in cases.items()}


def table_lines(seeds: tuple[int, int], norm: type[nn.Module], size: float = 1.0, **settings: Any) -> Lines:
    """Returns lines of a table of inner products, and of rewards that are functions of it.

    seeds: of the examples of datasets and dev sets.
    size: the factor of the loss.
    settings: of `probe`; params=True stands for the parameters of the last layer.
    """
    model = small_model(norm)
    if "params" in settings:
        settings["params"] = list(model[-1].parameters())
    train = {name: in_batches(rows_of(name, 24, seeds[0])) for name in NAMES}
    dev = {name: in_batches(rows_of(name, 16, seeds[1])) for name in DEV}
    table = probe(model, lambda model, batch: size * mean_loss(model, batch), train, dev, **settings)
    weights = torch.full((len(DEV),), 1 / len(DEV), dtype=torch.float64)
    facts = table_facts(table) | {what: formula(table, weights) for what, formula in FORMULAS.items()}
    return {key: line([value]) for key, value in facts.items()} | {"parameters": parameters(model)}


@section("probe")
def probe_section(folder: Path) -> Lines:
    cases: dict[str, dict[str, Any]] = {
        "exact": {},
        "1,024 buckets": {"sketch": 2**10},
        "16 buckets": {"sketch": 16},
        "a step ahead": {"step_ahead": 0.05},
        "a step ahead, 1,024 buckets": {"step_ahead": 0.05, "sketch": 2**10},
        "evaluation mode": {"mode": "eval"},
        "the last layer only": {"params": True},
        "another seed": {"seed": 8},
        "small gradients": {"size": 0.01},
    }
    return {what: table_lines((0, 1), nn.BatchNorm1d, **case) for what, case in cases.items()}


# ------------------------------------------------------------------------------------------ loaders and trainers


def loader_line(workers: int) -> str:
    """Returns a line of the batches of a `mixed_loader`, resumed in the middle."""
    mixture = Mixture.proportional(SIZES)
    make = partial(mixed_loader, datasets(NoisyPlaces), batch_size=20, seed=1, num_workers=workers)
    loader, drawn = make(mixture), []
    for epoch in range(4):
        if epoch == 2:
            (state, moved), _ = saved([loader.state_dict(), mixture.state_dict()])
            mixture = Mixture.proportional(SIZES)
            mixture.load_state_dict(moved)
            loader = make(mixture)
            loader.load_state_dict(state)
        for i, batch in enumerate(loader):
            drawn.append([batch["number"].tolist(), batch["noise"].tolist()])
            if i == 30:
                mixture.move(list(MOVES.values())[epoch % 2])
    return f"{line(drawn)}  of {len(drawn)}; {shown(loader.passes)}"


def mixed_dataset_line(kind: Callable[[int, int], Any], workers: int) -> str:
    """Returns a line of the batches that a DataLoader reads of a `MixedDataset`."""
    mixture = Mixture.proportional(SIZES)
    mixed = MixedDataset(datasets(kind), mixture, seed=1, batch_size=20)
    drawn = []
    for epoch in range(2):
        order = None
        if kind is Places:
            mixed.set_epoch(epoch)
            order = torch.randperm(len(mixed), generator=torch.Generator().manual_seed(epoch)).tolist()
        batches = DataLoader(mixed, 20, sampler=order, num_workers=workers)
        drawn += [batch["number"].tolist() for _, batch in zip(range(60), batches, strict=False)]
        mixture.move(MOVES[3_000])
    return f"{line(drawn)}  of {len(drawn)}"


@section("loaders")
def loaders_section(folder: Path) -> Lines:
    """Loaders of mixed batches, and datasets and streams as one, without a callback."""
    kinds = {"examples": Places, "streams": Flow, "streams of Hugging Face": arrow}
    lines: Lines = {f"loader, {workers} workers": loader_line(workers) for workers in (0, 2)}
    return lines | {
        f"{what} as one, {workers} workers": mixed_dataset_line(kind, workers)
        for what, kind in kinds.items()
        for workers in (0, 2)
    }


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))

    def forward(self, x: Tensor, labels: Tensor | None = None, number: Any = None) -> dict[str, Tensor]:
        out = self.layers(x / 10)[:, 0]
        return {"loss": (out - labels.float()).square().mean(), "logits": out}


Run = tuple[Any, nn.Module, list[Any]]  # the callback, the model, and what the trainer has seen at every step


def trainer_lines(train: Callable[[Path | None], Run], checkpoint: Path | None) -> Lines:
    """Returns lines of a training by a trainer, and whether it continues in the same way from its checkpoint.

    train: trains from a checkpoint, or from the start.
    checkpoint: of the first training; None: it is not resumed.
    """
    callback, model, seen = train(None)
    updates = [facts_of(update) for update in callback.balancer.history]
    lines = lines_of(updates) | {"parameters": parameters(model), "seen": digest(seen)}
    if checkpoint is not None:
        callback, model, again = train(checkpoint)
        rest = [facts_of(update) for update in callback.balancer.history]
        whole = [updates[len(updates) - len(rest) :], lines["parameters"], seen[-len(again) :]]
        resumed = same(whole, [rest, parameters(model), again])
        lines["resumed"] = f"after {len(seen) - len(again)}: {resumed}"
    return lines


def watched(trainer: Any, key: str) -> Any:
    """Returns a class of trainers that keep one value of the inputs of every step, as `seen`."""

    class Watched(trainer):
        def training_step(self, model: nn.Module, inputs: Any, *rest: Any, **named: Any) -> Tensor:
            self.__dict__.setdefault("seen", []).append(inputs[key].tolist())
            return super().training_step(model, inputs, *rest, **named)

    return Watched


def trainer_arguments(folder: Path, steps: int, **more: Any) -> dict[str, Any]:
    """Returns arguments for trainers of transformers, TRL and sentence-transformers."""
    logs = {"report_to": [], "disable_tqdm": True, "logging_steps": 1}
    saves = {"output_dir": str(folder), "save_strategy": "steps", "save_steps": steps // 2}
    devices = {"use_cpu": True, "dataloader_pin_memory": False, "per_device_train_batch_size": 4}
    return {"max_steps": steps, "learning_rate": 1e-2, **logs, **saves, **devices, **more}


def by_trainer(folder: Path, length: int, data: Any = datasets, workers: int = 0, **choices: Any) -> Lines:
    """Returns lines of a Trainer of transformers; with workers over streams it is not resumed."""
    from transformers import PrinterCallback, Trainer, TrainingArguments

    from multidds.integrations.huggingface import BalanceCallback

    own = {"remove_unused_columns": False, "lr_scheduler_type": "constant", "logging_strategy": "no"}
    own |= {"per_device_train_batch_size": 20, "dataloader_num_workers": workers}
    settings = trainer_arguments(folder, length, **own)

    def train(resume: Path | None) -> Run:
        mixture = Mixture(Mixture.proportional(SIZES).probabilities)  # sizes only of datasets, which have a length
        mixed = MixedDataset(data(), mixture, seed=1)
        dev = {name: datasets()[name] for name in ("a", "b")}
        arguments = TrainingArguments(**settings)
        trainer = watched(Trainer, "number")(Net(), arguments, train_dataset=mixed, eval_dataset=dev)
        trainer.remove_callback(PrinterCallback)
        callback = BalanceCallback(trainer, batch_size=64, **balancer_arguments(**choices))
        trainer.add_callback(callback)
        trainer.train(resume_from_checkpoint=resume and str(resume))
        return callback, trainer.model, trainer.seen

    resumable = not workers or data is datasets
    return trainer_lines(train, folder / f"checkpoint-{length // 2}" if resumable else None)


@section("trainer")
def trainer_section(folder: Path) -> Lines:
    """The Trainer of transformers, resumed in the middle."""
    groups = {"a": "one", "b": "one"}
    cases: dict[str, dict[str, Any]] = {
        "paper, 0 workers": {"length": 400, "every": 50, **FAST},
        "paper, 2 workers": {"length": 400, "every": 50, "workers": 2, **FAST},
        "default, by its budget": {"length": 300, "budget": 0.3},
        "default, 2 workers, groups": {"length": 300, "every": 40, "workers": 2, "groups": groups},
        "default, passes": {"length": 300, "every": 40, "passes": {"a": 20.0}},
    }
    return {what: by_trainer(folder / what, **case) for what, case in cases.items()}


@section("trainer-streams")
def streams_section(folder: Path) -> Lines:
    """The Trainer of transformers over streams, resumed if they keep their place."""
    kinds: dict[str, Callable[[], Any]] = {
        "streams": partial(datasets, Flow),
        "streams of Hugging Face": partial(datasets, arrow),
        "streams and examples": lambda: datasets() | {"b": datasets(Flow)["b"]},
    }
    forms: dict[str, dict[str, Any]] = {"paper": FAST, "default": {}, "default, 2 workers": {"workers": 2}}
    return {
        f"{kind}, {what}": by_trainer(folder / kind / what, 120, data, every=20, **form)
        for kind, data in kinds.items()
        for what, form in forms.items()
    }


def by_lightning(folder: Path, length: int, workers: int = 0, **choices: Any) -> Lines:
    """Returns lines of a Trainer of Lightning."""
    from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything

    from multidds.integrations.lightning import BalanceCallback

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return self.net(batch["x"], batch["labels"])["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    class Watch(Callback):
        def __init__(self) -> None:
            self.seen: list[list[int]] = []

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            self.seen.append(batch["number"].tolist())

        def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:
            if trainer.global_step == length // 2:
                trainer.save_checkpoint(folder / "saved.ckpt")

    quiet = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    settings: dict[str, Any] = {"max_steps": length, "accelerator": "cpu", "default_root_dir": folder}
    settings |= dict.fromkeys(quiet, False)
    if dist.is_initialized():
        settings |= {"devices": 2, "strategy": "ddp"}

    def train(resume: Path | None) -> Run:
        seed_everything(0, verbose=False)
        mixture, watch = Mixture.proportional(SIZES), Watch()
        dev = {name: datasets()[name] for name in ("a", "b")}
        callback = BalanceCallback(mixture, dev=dev, batch_size=64, **balancer_arguments(**choices))
        trainer = Trainer(callbacks=[callback, watch], **settings)
        module = Module()
        loader = mixed_loader(datasets(), mixture, batch_size=20, seed=1, num_workers=workers)
        trainer.fit(module, loader, ckpt_path=resume, weights_only=False)
        return callback, module, watch.seen

    return trainer_lines(train, folder / "saved.ckpt")


@section("lightning")
def lightning_section(folder: Path) -> Lines:
    """The Trainer of Lightning, resumed in the middle."""
    cases: dict[str, dict[str, Any]] = {
        "paper, 0 workers": {"length": 400, "every": 50, **FAST},
        "paper, 2 workers": {"length": 400, "every": 50, "workers": 2, **FAST},
        "default, by its budget": {"length": 300, "budget": 0.3},
        "default, passes": {"length": 300, "every": 40, "passes": {"a": 20.0}},
        "default, 2 workers, bounds": {"length": 300, "every": 40, "workers": 2, "bounds": {"a": (0.2, 0.3)}},
    }
    return {what: by_lightning(folder / what, **case) for what, case in cases.items()}


# ------------------------------------------------------------------------------------------ TRL, sentence-transformers

FEW = {"a": 12, "b": 30, "c": 20}
VOCABULARY = [f"w{i}" for i in range(40)]
RANGES = {"a": (0, 40), "b": (10, 20), "c": (20, 40)}  # of the words of each dataset
FASTER = {"rule": Scorer(lr=2.0), "every": 2}


def texts(count: int, seed: int, low: int, high: int) -> list[str]:
    """Returns texts of three to eight words."""
    generator = torch.Generator().manual_seed(seed)

    def text() -> str:
        length = int(torch.randint(3, 9, (), generator=generator))
        return " ".join(VOCABULARY[i] for i in torch.randint(low, high, (length,), generator=generator))

    return [text() for _ in range(count)]


def columns(names: Sequence[str], sizes: Mapping[str, int], seed: int) -> dict[str, Any]:
    """Returns {dataset: rows of texts with these columns}."""
    from datasets import Dataset as ArrowDataset

    return {
        name: ArrowDataset.from_dict(
            {column: texts(size, 100 * number + i, *RANGES[name]) for i, column in enumerate(names)}
        )
        for number, (name, size) in enumerate(sizes.items(), start=seed)
    }


def word_tokenizer(specials: Sequence[str]) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: i for i, word in enumerate([*specials, *VOCABULARY])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def language_model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    specials = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1}
    more = {"max_position_embeddings": 64, "use_cache": False, "attention_dropout": 0.1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(VOCABULARY) + 3, **shape, **specials, **more))


def by_trl(folder: Path, kind: str, lora: bool = False, more: Mapping[str, Any] | None = None, **choices: Any) -> Lines:
    """Returns lines of a trainer of TRL. more: settings of the trainer."""
    from peft import LoraConfig
    from transformers import PreTrainedTokenizerFast, PrinterCallback
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    from multidds.integrations.trl import balance

    names = {"text": ["text"], "completions": ["prompt", "completion"], "preferences": ["prompt", "chosen", "rejected"]}
    train_sets, dev_sets = columns(names[kind], FEW, 1), columns(names[kind], {"a": 8, "b": 8}, 10)
    specials = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=word_tokenizer(list(specials.values())), **specials)
    settings = trainer_arguments(folder, 8, bf16=False, max_length=16, **(more or {}))
    given: dict[str, Any] = {"train_dataset": train_sets["a"], "eval_dataset": dev_sets, "processing_class": tokenizer}

    def train(resume: Path | None) -> Run:
        model = language_model()
        adapters = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.1) if lora else None
        if kind == "preferences":
            reference = None if lora else copy.deepcopy(model)
            trainer = DPOTrainer(model, reference, DPOConfig(**settings), **given, peft_config=adapters)
        else:
            trainer = SFTTrainer(model, SFTConfig(**settings), **given, peft_config=adapters)
        trainer.remove_callback(PrinterCallback)
        callback = balance(trainer, train_sets, seed=3, **balancer_arguments(**choices))
        trainer.train(resume_from_checkpoint=resume and str(resume))
        logged = [row["loss"] for row in trainer.state.log_history if "loss" in row]
        return callback, trainer.model, logged[4 if resume else 0 :]

    return trainer_lines(train, folder / "checkpoint-4")


@section("trl")
def trl_section(folder: Path) -> Lines:
    """Trainers of TRL, resumed in the middle."""
    packed = {"packing": True, "eval_packing": False}
    others = columns(["text"], {"a": 8, "c": 8}, 20)
    accumulating = {"gradient_accumulation_steps": 2}
    cases: dict[str, dict[str, Any]] = {
        "text, default": {"kind": "text", "every": 2},
        "packed text, paper": {"kind": "text", "more": {"packing": True}, **FASTER},
        "packed text, other dev sets, default": {"kind": "text", "more": packed, "every": 2, "dev": others},
        "completions, default, low": {"kind": "completions", "more": accumulating, "every": 2, "priority": "low"},
        "completions, adapters, default": {"kind": "completions", "lora": True, "every": 2},
        "preferences, paper": {"kind": "preferences", **FASTER},
    }
    return {what: by_trl(folder / what, **case) for what, case in cases.items()}


def by_sentence_trainer(folder: Path, more: Mapping[str, Any] | None = None, **choices: Any) -> Lines:
    """Returns lines of a trainer of sentence-transformers. more: its settings. choices: none: there is no balancer."""
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import Dense, Dropout, StaticEmbedding
    from transformers import PrinterCallback

    from multidds.integrations.sentence_transformers import BalanceCallback, mixed_batches

    def train(resume: Path | None) -> Run:
        torch.manual_seed(0)
        layers = [StaticEmbedding(word_tokenizer(["<unk>"]), embedding_dim=8), Dropout(0.2), Dense(8, 6)]
        model = SentenceTransformer(modules=layers, device="cpu")
        drawn = mixed_batches(Mixture.proportional(FEW), seed=1)
        settings = trainer_arguments(folder, 20, multi_dataset_batch_sampler=drawn, **(more or {}))
        trainer = watched(SentenceTransformerTrainer, "anchor_input_ids")(
            model,
            Arguments(**settings),
            train_dataset=columns(["anchor", "positive"], FEW, 1),
            eval_dataset=columns(["anchor", "positive"], {"a": 8, "b": 8}, 10),
            loss=MultipleNegativesRankingLoss(model),
        )
        trainer.remove_callback(PrinterCallback)
        callback = None
        if choices:
            callback = BalanceCallback(trainer, seed=5, **balancer_arguments(**choices))
            trainer.add_callback(callback)
        trainer.train(resume_from_checkpoint=resume and str(resume))
        return callback, trainer.model, trainer.seen

    if not choices:
        _, model, seen = train(None)
        return {"parameters": parameters(model), "seen": digest(seen)}
    return trainer_lines(train, folder / "checkpoint-10")


@section("sentence-transformers")
def sentences_section(folder: Path) -> Lines:
    """Trainers of sentence-transformers, resumed in the middle."""
    cases: dict[str, dict[str, Any]] = {
        "without a balancer": {},
        "default": {"every": 2},
        "default, by its budget": {"budget": 3.0},
        "paper, no duplicates": {"more": {"batch_sampler": "no_duplicates"}, **FASTER},
        "paper, 2 workers": {"more": {"dataloader_num_workers": 2}, **FASTER},
    }
    return {what: by_sentence_trainer(folder / what, **case) for what, case in cases.items()}


# ------------------------------------------------------------------------------------------ two ranks


def sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model[0])
    return fully_shard(model)


def in_ddp(model: nn.Module) -> nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model)


def rank_cases() -> dict[str, dict[str, Any]]:
    low_table = {"priority": "low", "table": 64}
    cases: dict[str, dict[str, Any]] = {
        "default": {},
        "default, plan": PLAN,
        "default, groups": {"groups": GROUPS},
        "default, low": {"priority": "low"},
        "default, three batches in all": {"batches": 3, "count": "in all"},
        "default, by loaders": {"sources": "loaders"},
        "default, another loss of dev sets": {"dev_loss": absolute_loss},
        "paper": FAST,
        "paper, inner products, low, table": {**FAST, "reward": Cosine, **low_table},
        "paper, a step ahead": {**FAST, "ahead": 0.01, "table": 64},
        "paper, moving averages": {**FAST, "reward": MovingAverage},
        "smallest cosine": {**FAST, "reward": smallest_cosine, "table": 2**10},
    }
    cases |= {f"{what}, nothing shared out": {**case, "split_work": False} for what, case in cases.items()}
    cases |= {
        "in shards, default": {"wrap": sharded},
        "in shards, paper, low, table": {"wrap": sharded, **FAST, **low_table},
        "parts of many": PART,
        "mixed batches of many": {**PART, **SLOPES},
    }
    return {
        what: {"norm": nn.LayerNorm, "sources": "functions", "wrap": in_ddp, **case} for what, case in cases.items()
    }


def join_group(rank: int, folder: str) -> None:
    """Joins the group of two processes, as if launched by torchrun."""
    be_quiet()
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0}
    places |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1, "TORCHELASTIC_RUN_ID": "behaviour"}
    places |= {"GLOO_SOCKET_IFNAME": "lo", "ACCELERATE_USE_CPU": "true"}
    os.environ.update({key: str(value) for key, value in places.items()})
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)


def exit_with(rank: int, folder: str, lines: Lines) -> None:
    """Ends a process without destroying the group, where gloo can wait for ever."""
    Path(folder, f"{rank}.json").write_text(json.dumps(lines))
    dist.barrier()
    os._exit(0)


def by_two(function: Callable[[int, str], None], folder: Path) -> Lines:
    """Returns the lines of the first of two processes, and those of the second that differ."""
    torch.multiprocessing.start_processes(function, (str(folder),), nprocs=2, start_method="spawn")
    first, second = (json.loads((folder / f"{rank}.json").read_text()) for rank in range(2))
    for what, lines in first.items():
        lines |= {f"{key}, rank 1": value for key, value in second[what].items() if value != lines.get(key)}
    return first


def one_rank(rank: int, folder: str) -> None:
    join_group(rank, folder)
    lines: Lines = {}
    for what, case in rank_cases().items():
        lines[what] = trained(partial(Loop, **case), *((24, 17) if "many" in what else (15, 8)))
    table = table_lines((rank, 2 + rank), nn.LayerNorm, sketch=2**10)
    lines["table of 1,024 buckets"] = {key: value for key, value in table.items() if key != "parameters"}
    lines["examples"] = ExampleLoop(wrap=in_ddp, first=5 * rank).run(12).lines()
    exit_with(rank, folder, lines)


@section("ranks")
def ranks_section(folder: Path) -> Lines:
    """Trainings by two processes with gloo."""
    return by_two(one_rank, folder)


def one_rank_of_trainers(rank: int, folder: str) -> None:
    join_group(rank, folder)
    lines = {}
    for what, choices in (("default", {"every": 5}), ("paper", {"every": 10, **FAST})):
        run = Path(folder, what)
        lines[f"transformers, {what}"] = by_trainer(run / "trainer", 60, **choices)
        lines[f"lightning, {what}"] = by_lightning(run / "lightning", 60, **choices)
    exit_with(rank, folder, lines)


@section("trainer-ranks")
def trainer_ranks_section(folder: Path) -> Lines:
    """Trainers in two processes with gloo, resumed in the middle."""
    return by_two(one_rank_of_trainers, folder)


# ------------------------------------------------------------------------------------------ recipes and examples

TINY = ROOT / "recipes" / "tiny.toml"
METHODS = {
    "anchored": ["method=anchored"],
    "anchored, low": ["method=anchored", "priority=low", "probe_batches=2"],
    "cosines": ["method=multidds-s"],
    "moving averages": ["method=moving-average"],
    "schedule": ["method=static", "schedule=cooldown"],
}
LEARNED = ["method=dds", "every=2", "learn=0.9", "replay=2", "probe_tokens=100"]  # [examples]


def run_recipe(command: str, folder: Path, *options: str, processes: int = 1) -> None:
    """Runs a command of the smallest recipe in a folder."""
    torchrun = [str(Path(sys.executable).parent / "torchrun"), "--standalone", "--nproc-per-node", str(processes)]
    launcher = [sys.executable] if processes == 1 else torchrun
    called = [*launcher, "-m", "multidds", command, str(TINY), *options]
    source = Path(multidds.__file__).resolve().parent.parent  # in any folder, the same code
    environment = os.environ | {"PYTHONPATH": str(source)}
    done = subprocess.run(called, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{' '.join(called)}: {done.stderr[-3000:]}")


def recipe_lines(run: Path) -> Lines:
    """Returns lines of the records and of the last checkpoint of a run."""
    from safetensors.torch import load_file

    records = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    of = {kind: [r for r in records if r["kind"] == kind] for kind in ("update", "validation", "step", "examples")}
    facts = {
        "mixture": [r["mixture"] for r in of["update"]],
        "rewards": [r["reward"] for r in of["update"]],
        "noise": [r["noise"] for r in of["update"]],
        "signal": [r["signal"] for r in of["update"]],
        "probe losses": [[r["step"], r["dev_loss"], r["train_loss"], r["dev_weight"]] for r in of["update"]],
        "dev losses": [r["dev_loss"] for r in of["validation"]],
        "seen": [[r["passes"], r["sentences"], r["tokens"], r["mixture"]] for r in of["validation"]],
        "losses": [r["loss"] for r in of["step"]],
        "doubted": [[r["weight"], r["histogram"], r["highest"], r["lowest"]] for r in of["examples"]],
    }
    newest = sorted((run / "checkpoints").glob("*.safetensors"))[-1]
    tensors = [v for k, v in sorted(load_file(newest).items()) if k.startswith(("model.", "optimizer."))]
    lines = {key: line(values) for key, values in facts.items()}
    if facts["doubted"]:
        lines["doubted"] = f"{digest(facts['doubted'])}  {shown(facts['doubted'][-1][0])}"
    return lines | {"parameters": digest(tensors), "how many": shown({kind: len(of[kind]) for kind in of})}


@section("recipes")
def recipes_section(folder: Path) -> Lines:
    """Short trainings of the smallest recipe, by commands."""
    import made_up_languages

    made_up_languages.write(folder / "data" / "made-up")
    run_recipe("prepare", folder)
    cases = [
        ("example", "cosines", False, 1),
        ("batch", "cosines", False, 1),
        ("batch", "moving averages", False, 1),
        ("example", "anchored", False, 1),
        ("batch", "anchored", False, 1),
        ("example", "anchored, low", False, 1),
        ("example", "schedule", False, 1),
        ("example", "anchored", True, 1),
        ("batch", "anchored", True, 1),
        ("example", "anchored", True, 2),
    ]
    lines = {}
    for mixing, method, learned, processes in cases:
        what = f"{mixing}, {method}" + ", doubts: learned" * learned + ", two processes" * (processes > 1)
        settings = [f"train.mixing={mixing}", "train.max_steps=40", "train.log_every=10", "mixture.every=5"]
        settings += [f"mixture.{setting}" for setting in METHODS[method]]
        settings += [f"examples.{setting}" for setting in LEARNED * learned]
        options = [word for setting in settings for word in ("--set", setting)]
        run_recipe("train", folder, "--folder", f"runs/{what}", *options, processes=processes)
        lines[what] = recipe_lines(folder / "runs" / what)
    return lines


@section("example-scripts")
def scripts_section(folder: Path) -> Lines:
    """Short trainings of two examples."""
    import huggingface_trainer
    import lightning_fit

    trainer, losses = huggingface_trainer.train(True, 60, str(folder / "trainer"))
    module, mixture = lightning_fit.fit(folder / "lightning", 60)
    learned = [losses, trainer.train_dataset.mixture.probabilities]
    return {
        "transformers": {"parameters": parameters(trainer.model), "mixture": line(learned)},
        "lightning": {"parameters": parameters(module), "mixture": line([mixture])},
    }


# ------------------------------------------------------------------------------------------ all of it


def be_quiet() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def lines_by_name(name: str) -> Lines:
    """Runs a section and returns its lines."""
    began = time.perf_counter()
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:
        lines = SECTIONS[name](Path(folder))
    print(f"{name}: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    return lines


def flat(lines: Any, path: str = "") -> dict[str, str]:
    """Returns {"section / case / key": line}."""
    if not isinstance(lines, dict):
        return {path: lines}
    return {key: value for name, item in lines.items() for key, value in flat(item, f"{path} / {name}").items()}


def differences(before: Lines, now: Lines) -> Iterator[str]:
    """Yields the lines that differ, and the number of those that are equal."""
    one, other = flat(before), flat(now)
    for key in one | other:
        if one.get(key) != other.get(key):
            yield f"{key[3:]}\n    before: {one.get(key, 'none')}\n    now:    {other.get(key, 'none')}"
    equal = sum(one[key] == other.get(key) for key in one)
    yield f"{equal:,} of {len(one):,} lines are equal"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="section", help=f"one of {', '.join(SECTIONS)}; none: all")
    parser.add_argument("--against", type=Path, help="print the lines that differ from those in this file")
    options = parser.parse_args()
    if unknown := [name for name in options.sections if name not in SECTIONS]:
        parser.error(f"there is no section {unknown[0]!r}; there are {', '.join(SECTIONS)}")
    be_quiet()
    before = None if options.against is None else json.loads(options.against.read_text())
    lines = {}
    for name in options.sections or SECTIONS:
        lines[name] = lines_by_name(name)
        if before is not None:
            print(*differences({name: before.get(name, {})}, {name: lines[name]}), sep="\n", flush=True)
    if before is None:
        print(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()
