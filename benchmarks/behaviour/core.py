"""Cases and digests of the core for `behaviour.py`: draws, mixtures, small trainings, single examples, two ranks."""

import copy
import hashlib
import io
import json
import logging
import math
import os
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "examples"), str(ROOT / "experiments" / "rivals")]

import rivals  # noqa: E402

from multidds import Balancer, Budget, ExampleScorer, Limits, Mixture, MixtureSampler, Probes  # noqa: E402
from multidds.example_scorer import DevDirection, OwnNetwork, SmallNetwork  # noqa: E402
from multidds.mixture import Replay  # noqa: E402
from multidds.rules import Cosine, MovingAverage, RelevancePlan, Scorer, StabilizedCosine  # noqa: E402
from multidds.sampling import Order, batches_of, interleave  # noqa: E402

Lines = dict[str, Any]  # {case: line, or {key: line}}
Cases = dict[str, dict[str, Any]]  # {case: arguments}


def each(function: Callable[..., Any], cases: Cases) -> Callable[[Path], Lines]:
    """Returns a section: the lines that a function returns for each case."""
    return lambda folder: {what: function(**case) for what, case in cases.items()}


def balancer_arguments(
    reward: Any = None,
    table: int | None = None,
    ahead: float | None = None,
    budget: float | None = None,
    bounds: Any = None,
    passes: Any = None,
    groups: Any = None,
    **more: Any,
) -> dict[str, Any]:
    """Returns arguments of a `Balancer`, or of a callback that has one.

    reward: a class that gets `ahead`, or an object, for a `Scorer` under "rule".
    table: for that `Scorer`.
    budget: the share of a `Budget`, instead of `every`.
    bounds, passes, groups: `Limits`.
    more: settings of `Probes`, and further arguments.
    """
    if isinstance(rule := more.get("rule"), Scorer):
        if isinstance(reward, type):
            reward = reward() if ahead is None else reward(ahead=ahead)
        elif reward is None:
            reward = StabilizedCosine(ahead=ahead)
        more["rule"] = replace(rule, reward=reward, table=table)
    words = ("batches", "count", "mode", "params", "dev_loss", "split_work")
    probes = Probes(**{word: more.pop(word) for word in words if word in more})
    if budget is not None:
        more["every"] = Budget(budget)
    return {"limits": Limits(bounds, passes, groups), "probes": probes, **more}


def table_facts(table: Any) -> dict[str, Any]:
    """Returns the numbers of a table of inner products."""
    products = [table.dev_train, table.dev_dev, table.train_norms]
    return {"products": products, "cosines": table.cosines(), "losses": [table.train_losses, table.dev_losses]}


def facts_of(update: Any) -> dict[str, Any]:
    """Returns the numbers of an update of a mixture, without times and sentences."""
    names = ("mixture", "rewards", "noise", "signal", "weights", "probed")
    return {name: getattr(update, name) for name in names} | {
        "losses": [update.dev_losses, update.train_losses],
        "distances": [update.drift, update.learned, update.unlearned],
        "before": [update.before, update.prior],
        "step": [update.step, update.skipped is not None, len(update.notes)],
        "table": None if update.alignment is None else table_facts(update.alignment),
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


def reloaded(stream: Any, mixture: Mixture, make: Callable[[Mixture], Any]) -> tuple[Any, Mixture]:
    """Returns another stream and its mixture, which have loaded the states of the first ones."""
    (state, moved), _ = saved([stream.state_dict(), mixture.state_dict()])
    mixture = Mixture.proportional(SIZES)
    mixture.load_state_dict(moved)
    stream = make(mixture)
    stream.load_state_dict(state)
    return stream, mixture


def resumed_draws(stream_of: Callable[[Mixture], Any], per_item: int = 1, consumed: int = 0) -> Lines:
    """Returns lines of 10,000 draws with two moves, and of 10,000 more by a stream that has loaded the state."""
    lines = {}
    mixture = Mixture.proportional(SIZES)
    stream = stream_of(mixture)
    for part in ("first", "second"):
        if part == "second":
            stream, mixture = reloaded(stream, mixture, stream_of)
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


def stream(mixture: Mixture, **ranks: int) -> Any:
    loaders = {name: [torch.tensor([i, i]) for i in range(size)] for name, size in SIZES.items()}
    return interleave(loaders, mixture, seed=5, **ranks)


def draws_section(folder: Path) -> Lines:
    of_three = {"rank": 1, "world_size": 3}
    sampler = partial(MixtureSampler, SIZES, seed=3)
    order = Order(3, "a", 37)
    return {
        "indices": resumed_draws(sampler, 1, 19_000),
        "batches of indices": resumed_draws(partial(sampler, batch_size=10), 10, 1_900),
        "batches of indices, rank 1 of 3": resumed_draws(partial(sampler, batch_size=10, **of_three), 10, 1_950),
        "batches of loaders": resumed_draws(stream),
        "batches of loaders, rank 1 of 3": resumed_draws(partial(stream, **of_three)),
        "order": f"{digest([order[i] for i in range(200)])}  {shown([order[i] for i in range(8)])}",
    }


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
        "planned, repetition worth more": Mixture.planned(POOLS, draws=5000, repetition=40.0),
        "planned, repetition worth less": Mixture.planned(POOLS, draws=50_000, repetition=4.0),
    }
    return {what: line([mixture.probabilities]) for what, mixture in mixtures.items()}


def moved_lines(make: Callable[[Mixture], Any], steps: int = 24) -> Lines:
    """Returns lines of a mixture that is moved without learning, resumed in the middle."""
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
    return {"begin": line([begin]), "way": line(way), "moves": moves, "saved": kind}


START, MIDDLE = Mixture.proportional(SIZES), Mixture.temperature(SIZES, tau=5)
RAMP: list[Any] = [(0.0, START), (0.4, MIDDLE), (0.4, MOVES[7_000]), (0.9, Mixture.uniform(SIZES))]
PAST = [(0, MOVES[3_000]), (4, MOVES[7_000]), (9, START.probabilities), (15, MIDDLE.probabilities)]
MOVERS: Cases = {
    "schedule": {"make": lambda mixture: Replay.along(mixture, RAMP, steps=20, every=1)},
    "schedule, every third step": {"make": lambda mixture: Replay.along(mixture, RAMP, steps=20, every=3)},
    "schedule, long": {"make": lambda mixture: Replay.along(mixture, RAMP, steps=1000), "steps": 1000},
    "replay": {"make": lambda mixture: Replay(mixture, PAST)},
    "replay without a start": {"make": lambda mixture: Replay(mixture, PAST[1:])},
}


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


def looped(length: int = STEPS, stop: int = STOP, **case: Any) -> Lines:
    return trained(partial(Loop, **case), length, stop)


def assign(name: str, value: Any) -> Callable[[Loop], None]:
    return lambda loop: setattr(loop.balancer, name, value)


def unfreeze(loop: Loop) -> None:
    loop.model[0].requires_grad_(True)
    loop.balancer.refresh_parameters()


def by_loss(losses: Mapping[str, float]) -> dict[str, float]:
    return {name: value**2 for name, value in losses.items()}


def smallest_cosine(probe: Any, round_: Any) -> dict[str, float]:
    table = probe.table(round_)
    return dict(zip(table.train_names, table.cosines().amin(dim=0).tolist(), strict=True))


FAST = {"rule": Scorer(lr=1.0)}
PLAN = {"sizes": {name: POOLS[name] for name in NAMES}, "examples_per_step": 8, "steps": STEPS}
GROUPS = {"a": "one", "b": "one", "c": "two"}
BOUNDS = {"a": (0.1, 0.5), "c": (0.3, 0.4)}
LIMITS: Cases = {
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
LOSSES = {"a": 3.0, "b": 1.0, "c": 2.0}
PRIORITIES: Cases = {
    "priority: low": {"priority": "low"},
    "priority: high": {"priority": "high"},
    "priority: weights": {"priority": {"a": 3.0, "c": 1.0}},
    "priority: function": {"priority": by_loss},
    "priority: low, by losses that are given": {"priority": "low", "at": {1: assign("dev_losses", LOSSES)}},
    "priority: changed on the way": {"at": {22: assign("priority", "high")}},
}
PROBES: Cases = {
    "another loss of dev sets": {"dev_loss": absolute_loss},
    "evaluation mode": {"mode": "eval"},
    "one batch": {"batches": 1},
    "four batches": {"batches": 4},
    "three batches in all": {"batches": 3, "count": "in all"},
    "table of 64 buckets": {"table": 64},
    "a step ahead": {"ahead": 0.01},
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
OF_SCORER = ("one batch", "table of 64 buckets", "a step ahead")  # which the default rule does not have
DEFAULT_PROBES = {what: case for what, case in PROBES.items() if what not in OF_SCORER}
BUDGET = {"budget": 8.0, "steps": 180}
RULES: Cases = {  # of the default, with and without a plan
    "alone": {},
    "plan": PLAN,
    "plan, long training": {**PLAN, "steps": 12_500},
    "plan and bounds": {**PLAN, "bounds": BOUNDS},
    "plan and groups": {**PLAN, "groups": GROUPS},
    "plan and weights": {**PLAN, "priority": {"a": 3.0, "c": 1.0}},
    "plan, dataset without a dev set": {**PLAN, "dev": ("a", "b")},
    "plan that is not wanted": {**PLAN, "rule": RelevancePlan(plan=False)},
    "assumed repetition": {"rule": RelevancePlan(repetition=15)},
    "by a budget": BUDGET,
    "by a budget, plan": {**PLAN, **BUDGET, "examples_per_step": 8 * STEPS / 180},
}
KINDS = {"inner products": Cosine, "cosines": StabilizedCosine, "moving averages": MovingAverage}
FORMS: Cases = {
    "alone": {},
    "a step ahead": {"ahead": 0.01},
    "low": {"priority": "low"},
    "table of 64 buckets": {"table": 64},
    "authors' setting": {"rule": Scorer.authors()},
    "policy, evaluation mode": {"rule": Scorer(rule="policy"), "mode": "eval"},
}
OTHERS: Cases = {
    "no floor": {"rule": Scorer(lr=1.0, floor=0.0), "reward": smallest_cosine, "batches": 2},
    "faster decay of moving averages": {"reward": MovingAverage(decay=0.5)},
}
PAPER: Cases = {
    f"{kind}: {what}": {"rule": Scorer(), "reward": reward, **form}
    for kind, reward in KINDS.items()
    for what, form in FORMS.items()
    if reward is not MovingAverage or not form.keys() & {"ahead", "table"}
}
PAPER |= {what: {**FAST, **case} for what, case in (LIMITS | PRIORITIES | PROBES | OTHERS).items()}
OWN_RULES: Cases = {
    "doge": {"rule": rivals.Doge(), "batches": 2},
    "doge, bounds": {"rule": rivals.Doge(), "batches": 2, "bounds": BOUNDS},
    "online data mixing": {"rule": rivals.OnlineDataMixing()},
    "mirror ascent": {"rule": rivals.MirrorAscent(), "batches": 2},
    "constant rewards": {**FAST, "reward": rivals.constant},
    "smallest cosine": {**FAST, "reward": smallest_cosine, "batches": 2},
}
MANY = [f"d{i:02}" for i in range(60)]  # an update probes a part of them, and of their dev sets
PART: dict[str, Any] = {"names": MANY, "dev": MANY[:20], "steps": 160, "budget": 8.0, "sources": "functions"}


def many_cases() -> Cases:
    groups = {name: f"g{i % 4}" for i, name in enumerate(MANY) if i % 5}
    plan = {"sizes": {name: 30 + 17 * i for i, name in enumerate(MANY)}, "examples_per_step": 8}
    forms: Cases = {
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
    return cases | {
        "parts: four batches": {**PART, "batches": 4},
        "parts: by lists": {**PART, "sources": "lists"},
        "all, at given steps": {**PART, "budget": None, "every": 8},
    }


def looped_by_budget(**case: Any) -> Lines:
    """Returns lines of a training of six updates."""
    every = Loop(**case).balancer.every
    return looped(6 * every, 3 * every + 1, **case)


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
        (self.scorer.weights(batch, losses) * losses).mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if (update := self.scorer.step(batch)) is not None:
            self.updates.append(
                {
                    "rewards": update.rewards,
                    "probabilities": update.probabilities,
                    "losses": [update.losses, update.dev_losses, update.weights],
                    "step": [update.step, update.skipped is not None],
                }
            )

    def lines(self) -> Lines:
        batch = self.batches[0]
        losses = each_loss(self.model.eval(), batch).detach()
        lines = super().lines()
        lines["scores"] = line([self.scorer.scores(batch), self.scorer.scores(batch, losses)])
        lines["probabilities now"] = line([self.scorer.probabilities(batch, losses)])
        if self.small:
            lines["trust"] = line([self.scorer.keep_probabilities(batch, losses)])
        return lines


SGD = partial(torch.optim.SGD, lr=0.1)
SMALL = partial(partial, SmallNetwork, features)
OWN = {"network": lambda: OwnNetwork(ScoreNetwork())}
EXAMPLES: Cases = {
    "small network, loss alone": {"network": SmallNetwork},
    "small network": {},
    "features alone": {"network": SMALL(own_loss=False)},
    "replay": {"network": SMALL(replay=4, inner_steps=3)},
    "features alone, replay": {"network": SMALL(own_loss=False, replay=3)},
    "averaged direction": {"direction": DevDirection(decay=0.7)},
    "plain gradient": {"direction": DevDirection(balanced=False)},
    "evaluation mode, two batches": {"probes": Probes(mode="eval", batches=2)},
    "low": {"priority": "low"},
    "weights": {"priority": {"x": 3.0, "y": 1.0}},
    "another loss of dev sets": {"probes": Probes(dev_loss=absolute_loss)},
    "longer steps": {"direction": DevDirection(eps=0.02)},
    "another optimizer": {"network": SMALL(optimizer=SGD)},
    "every third step": {"every": 3},
    "network of one's own": OWN,
    "network of one's own, as in the paper": {
        "network": lambda: OwnNetwork(ScoreNetwork(), SGD),
        "direction": DevDirection(balanced=False),
    },
    "network of one's own, averaged direction": {**OWN, "direction": DevDirection(decay=0.7)},
}


def scored(**case: Any) -> Lines:
    return trained(partial(ExampleLoop, **case), 14, 8)


# ------------------------------------------------------------------------------------------ two ranks


def sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model[0])
    return fully_shard(model)


def in_ddp(model: nn.Module) -> nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model)


def rank_cases() -> Cases:
    low_table = {"priority": "low", "table": 64}
    cases: Cases = {
        "default": {},
        "default, plan": PLAN,
        "default, groups": {"groups": GROUPS},
        "default, low": {"priority": "low"},
        "default, three batches in all": {"batches": 3, "count": "in all"},
        "default, by loaders": {"sources": "loaders"},
        "default, another loss of dev sets": {"dev_loss": absolute_loss},
        "paper": FAST,
        "paper, inner products, low, table": {**FAST, "reward": Cosine, **low_table},
        "paper, a step ahead": {**FAST, "ahead": 0.01},
        "paper, moving averages": {**FAST, "reward": MovingAverage},
        "smallest cosine": {**FAST, "reward": smallest_cosine, "batches": 2},
    }
    cases |= {f"{what}, nothing shared out": {**case, "split_work": False} for what, case in cases.items()}
    cases |= {
        "in shards, default": {"wrap": sharded},
        "in shards, paper, low, table": {"wrap": sharded, **FAST, **low_table},
        "parts of many": PART,
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
        lines[what] = looped(*((24, 17) if "many" in what else (15, 8)), **case)
    lines["examples"] = ExampleLoop(wrap=in_ddp, first=5 * rank).run(12).lines()
    exit_with(rank, folder, lines)


def ranks_section(folder: Path) -> Lines:
    """Trainings by two processes with gloo."""
    return by_two(one_rank, folder)


def be_quiet() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


SECTIONS: dict[str, Callable[[Path], Lines]] = {
    "draws": draws_section,
    "mixtures": mixtures_section,
    "schedules": each(moved_lines, MOVERS),
    "default-rule": each(looped, RULES | LIMITS | PRIORITIES | DEFAULT_PROBES),
    "paper-rule": each(looped, PAPER),
    "own-rules": each(looped, OWN_RULES),
    "many-datasets": each(looped_by_budget, many_cases()),
    "example-scorer": each(scored, EXAMPLES),
    "ranks": ranks_section,
}
