"""The probe: gradients and losses of named datasets and dev sets, taken without a trace in the training.

A rule asks it for what it needs. `table` has the cosines of all pairs with their errors, from sketches. `direction` and
`of_datasets` are the paper's one vector and the inner products with it, exactly. `gradient` and `ahead` are for rules
of one's own.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from .._base.checks import check_names
from .._base.state import check_keys, not_negative, restored, restored_part
from ..gradients.sketch import Sketcher
from ..gradients.vectors import Gradient, added, wide
from ..gradients.work_split import gathered_sketches, owners_of, summed
from ..sampling.sources import Part, Source, open_source, place_of, refuse_sharing
from . import priorities
from .probed_model import Numbered, ProbedModel
from .probes import Probes
from .round import Measured, Round, losses_of, notes_of, trouble_of
from .table import Table, table_of, table_of_parts

_FEW_SETS = 64  # datasets and dev sets up to which sketches are large
_LARGE, _SMALL = 2**18, 2**15  # buckets of a sketch: cosines to 0.002 and to 0.005
_log = logging.getLogger("multidds")

Visit = Callable[[str, Gradient, float], None]  # (name, gradient, its norm)


class NotFiniteError(ArithmeticError):
    """A loss, a gradient or a reward of a round is not finite, so the mixture must not move."""


class Probe:
    """Gradients and losses of named datasets and dev sets of one model.

    owner: opens the error messages.
    model: the model and its loss.
    sources: {role: {name: source of batches}}; the roles are "train" and "dev".
    settings: `Probes`.
    priority: how much each dev set counts. May be assigned at any time.
    """

    def __init__(
        self,
        owner: str,
        model: ProbedModel,
        sources: Mapping[str, Mapping[str, Any]],
        settings: Probes = Probes(),
        priority: priorities.Priority = "regular",
    ) -> None:
        refuse_sharing(owner, [source for by_name in sources.values() for source in by_name.values()])
        self.model = model
        self.rounds = 0
        self.batches = float(settings.batches or 1)  # of each set, per process
        self.parts = 1  # of a round, which share no example where sources allow it
        self._owner = owner
        self._settings = settings
        self._given = {role: dict(by_name) for role, by_name in sources.items()}
        self._opened = self._open(model.seed)
        if not self.names("dev"):
            raise ValueError(f"{owner}: there must be at least one dev set.")
        self.priority = priority
        self._given_priority = self._plain_priority
        self._dev_losses: dict[str, float] | None = None
        self._last_losses: dict[str, float] = {}  # of the last probe of each dev set
        self._sketchers: dict[int, Sketcher] = {}  # by buckets: plans of sketches are made once
        self._begin_log()

    def _open(self, seed: int) -> dict[str, dict[str, Source]]:
        return {
            role: {name: open_source(self._owner, role, name, source, seed) for name, source in by_name.items()}
            for role, by_name in self._given.items()
        }

    def _begin_log(self) -> None:
        self._log: Measured = []
        self._kept: dict[str, list[Numbered]] = {}  # dev batches that are used more than once
        self._sketches: dict[str, dict[str, Tensor]] | None = None  # {role: {name: sketch}} that are kept
        self._drawn_from: set[tuple[str, str]] = set()

    def names(self, role: str) -> tuple[str, ...]:
        """Returns the names of the sets of a role."""
        return tuple(self._given.get(role, ()))

    @property
    def batch_size(self) -> float | None:
        """The mean number of examples of a probe batch; None if a source does not say."""
        given = [source for by_name in self._given.values() for source in by_name.values()]
        sizes = [size for source in given if isinstance(size := getattr(source, "batch_size", None), int)]
        return sum(sizes) / len(sizes) if len(sizes) == len(given) else None

    @property
    def total(self) -> int:
        """The probe batches of each set in a round, over all ranks."""
        if self._settings.count == "in all" and self._settings.batches is not None:
            return self._settings.batches
        return int(self.batches * self.model.replicas.size)

    @property
    def divided(self) -> int:
        """The number of batches of a set that are divided into parts: all, or of shards those of a rank."""
        return self.total // (self.model.replicas.size if self.model.layout.sharded else 1)

    # A round.

    @contextmanager
    def open(self, **agreed: Any) -> Iterator[None]:
        """Surrounds a round. If the block raises, all sources go back to their places, and the next round is the same.

        agreed: {what: value} that must be equal on all ranks.
        """
        with self.model.invisible(), self._put_back_on_error():
            self._begin_log()
            self.model.refuse_uneven(self.total)
            self._total, self._divided = self.total, self.divided  # as they are now, also under `alone`
            self._check_ranks(agreed)
            yield
        self._last_losses |= {name: loss for name, loss in self.losses("dev").items() if math.isfinite(loss)}
        self.rounds += 1

    @contextmanager
    def _put_back_on_error(self) -> Iterator[None]:
        before = {(role, name): place_of(source) for role, of in self._opened.items() for name, source in of.items()}
        try:
            yield
        except BaseException:  # Ctrl-C, too
            for role, name in self._drawn_from:
                if state := before[role, name]:  # a source that cannot be resumed stays where it is
                    self._opened[role][name].load_state_dict(state)
            raise

    def _check_ranks(self, agreed: Mapping[str, Any]) -> None:
        values = {
            "dev sets, or another order of them": self.names("dev"),
            "priorities": "a function" if callable(self._priority) else self._priority,
            "dev_losses (set them on every rank)": self._dev_losses,
            "datasets, or another order of them": tuple(self._given.get("train", ())),
            "seeds, batches or updates": (self.model.seed, self.total, self.rounds),
            **agreed,
        }
        first, *others = self.model.replicas.gather(values)
        for what, value in first.items():
            if any(other[what] != value for other in others):
                raise ValueError(f"{self._owner}: the ranks have different {what}.")

    # The weights of the dev sets.

    @property
    def priority(self) -> priorities.Priority:
        """The priority of the dev sets. May be assigned at any time; the next round uses it."""
        return self._priority

    @priority.setter
    def priority(self, priority: priorities.Priority) -> None:
        priorities.check(priority, self.names("dev"))
        self._priority: priorities.Priority = dict(priority) if isinstance(priority, Mapping) else priority

    @property
    def _plain_priority(self) -> Any:
        return None if callable(self._priority) else self._priority

    @property
    def dev_losses(self) -> dict[str, float] | None:
        """The losses of the last full validation, by which low and high rank the dev sets; None: the probe ranks."""
        return self._dev_losses

    @dev_losses.setter
    def dev_losses(self, losses: Mapping[str, float] | None) -> None:
        names = self.names("dev")
        if losses is not None:
            check_names(f"{self._owner}.dev_losses", names, losses)
            if bad := [name for name in losses if not math.isfinite(losses[name])]:
                raise ValueError(
                    f"{self._owner}.dev_losses: losses must be finite, but {bad[0]!r} is {losses[bad[0]]}."
                )
        self._dev_losses = None if losses is None else {name: float(losses[name]) for name in names}

    def dev_weights(self, measure: bool = True) -> dict[str, float]:
        """Returns {dev set: weight}, the same bits on every rank; equal weights if a loss is not finite.

        measure: whether a priority that ranks by losses takes a forward pass over all dev sets, if it has no losses.
            False: it ranks by the last probe of each.
        """
        names = self.names("dev")
        ranking = self._dev_losses or dict.fromkeys(names, 0.0)
        if priorities.needs_losses(self._priority) and self._dev_losses is None:
            if measure:
                self._keep_dev_batches()
                ranking = {name: self._forward_loss(name) for name in names}
            else:
                mean = sum(self._last_losses.values()) / max(1, len(self._last_losses))
                ranking = {name: self._last_losses.get(name, mean) for name in names}
        self._log += [("ranking", "dev", name, loss) for name, loss in ranking.items()]
        finite = all(map(math.isfinite, ranking.values()))
        replicas = self.model.replicas
        with replicas.raise_on_all_ranks():
            weights = priorities.weights_of(self._priority if finite else "regular", ranking)
        weights = replicas.gather(weights)[0]
        return {name: weights[name] for name in names}

    def _forward_loss(self, name: str) -> float:
        return self.model.loss(("dev", name, self.rounds), self._batches("dev", name), self._total)

    # What rules ask for.

    def table(self, round_: Round) -> Table:
        """Returns the cosines of all dev sets and datasets of a round, with errors from the parts of the probe.

        Memory: a sketch per set and part. Raises `NotFiniteError` if a loss or gradient is not finite.
        """
        sketcher, count = self._sketcher_of_table(), self.parts
        blank = sketcher.new(wide(self.model.params[0].dtype), self.model.params[0].device)
        sums = [blank] * count  # sketches of what the batches of each part so far add to this gradient
        parts: dict[str, dict[str, list[Tensor]]] = {"dev": {}, "train": {}}

        def after_each(number: int, gradient: Gradient) -> None:
            part = number % count
            others = [each for place, each in enumerate(sums) if place != part]
            sums[part] = self.model.sketch(sketcher, gradient) - sum(others, blank)  # sketches are linear

        def visit(role: str, name: str) -> None:
            own = [each.clone() for each in sums]
            sums[:] = [blank] * count
            self.model.combine(own)  # where the gradients are: the backend may reduce nothing on the CPU
            parts[role][name] = [sketch.cpu() for sketch in own]

        def join(role: str, owners: Mapping[str, int]) -> None:
            for place in range(count):
                mine = {name: sketches[place] for name, sketches in parts[role].items()}
                for name, sketch in gathered_sketches(self.model.replicas, owners, mine, blank.cpu()).items():
                    parts[role].setdefault(name, [sketch] * count)[place] = sketch

        for role, names in (("dev", self._counted(round_)), ("train", round_.datasets)):
            self._walk(
                role,
                names,
                round_,
                lambda name, gradient, norm, role=role: visit(role, name),  # type: ignore[misc]
                lambda owners, role=role: join(role, owners),  # type: ignore[misc]
                after_each,
            )
        self._refuse_not_finite()
        dev = {name: parts["dev"][name] for name in self._counted(round_)}
        train = {name: parts["train"][name] for name in round_.datasets}
        table = replace(
            table_of_parts(dev, train, [self._batches_of_part(part) / self._divided for part in range(count)]),
            train_losses=self.losses("train"),
            dev_losses=self.losses("dev"),
            unknown=self._without_parts(),
        )
        agreed: Table = self.model.replicas.gather(table)[0]  # the same bits on every rank
        return agreed

    def direction(self, round_: Round, unit: bool) -> tuple[Gradient, float]:
        """Returns v = sum_k w_k d_k and |v| of a round, the one vector that the paper's rewards need.

        unit: whether each d_k is divided by its norm.
        """
        total: Gradient | None = None

        def visit(name: str, gradient: Gradient, norm: float) -> None:
            nonlocal total
            if weight := round_.dev_sets[name]:
                total = added(total, gradient, weight / (norm or 1.0) if unit else weight)

        def join(owners: Mapping[str, int]) -> None:
            nonlocal total
            total = summed(self.model.replicas, self.model.params, total)

        names = self._counted(round_) if self._sketches is None else self.names("dev")
        self._walk("dev", names, round_, visit, join)
        assert total is not None
        length = self.model.layout.norm(total)
        if length == 0:
            self._log.append(("direction", "dev", "", 0.0))
        return total, length

    def of_datasets(
        self, round_: Round, value: Callable[[Gradient, float], float], ahead: bool = False
    ) -> dict[str, float]:
        """Returns {dataset: value(its gradient, the norm)} of a round. Each gradient is forgotten before the next.

        ahead: whether `value` takes directions at parameters of its own, inside `ahead`.

        Raises `NotFiniteError` if a loss, a gradient or a value is not finite.
        """
        values: dict[str, float] = {}

        def visit(name: str, gradient: Gradient, norm: float) -> None:
            values[name] = value(gradient, norm)

        def join(owners: Mapping[str, int]) -> None:
            for part in self.model.replicas.gather(dict(values)):
                values.update(part)

        splits = not ahead
        if ahead and not self._kept:  # each dataset sees the same dev batches
            splits = self.model.replicas.size > 1 and self._splittable("dev") == set(self.names("dev"))
            with self.model.replicas.raise_on_all_ranks(), self.model.alone() if splits else nullcontext():
                self._keep_dev_batches()
        self._walk("train", round_.datasets, round_, visit, join, together=not splits)
        return self.agreed({name: values[name] for name in round_.datasets})

    def agreed(self, values: Mapping[str, float]) -> dict[str, float]:
        """Returns values, {dataset: value}, with the same bits on every rank.

        Raises `NotFiniteError` if a value, or a loss or gradient of the round, is not finite.
        """
        agreed: dict[str, float] = self.model.replicas.gather(dict(values))[0]
        self._log += [("reward", "train", name, each) for name, each in agreed.items()]
        self._refuse_not_finite()
        return agreed

    def gradient(self, role: str, name: str, round_: Round) -> Gradient:
        """Returns the gradient of the mean probe loss of the set `name` in a round. role: "train" or "dev"."""
        return self._take(role, name, round_)[0]

    def ahead(self, gradient: Gradient, step: float) -> AbstractContextManager[None]:
        """Returns a block in which the parameters are one step of plain gradient descent further."""
        return self.model.moved(gradient, step)

    def keep_sketches(self, buckets: int) -> None:
        """Keeps a sketch of every gradient that is taken from now on in this round, for `kept_table`.

        buckets: numbers of a sketch.
        """
        self._sketches = {"dev": {}, "train": {}}
        self._buckets = buckets

    def kept_table(self, round_: Round) -> Table:
        """Returns the inner products of the gradients of a round whose sketches were kept."""
        assert self._sketches is not None
        dev = {name: self._sketches["dev"][name] for name in self.names("dev")}
        table = table_of(dev, {name: self._sketches["train"][name] for name in round_.datasets})
        return replace(table, train_losses=self.losses("train"), dev_losses=self.losses("dev"))

    def losses(self, role: str) -> dict[str, float]:
        """Returns {name: loss of the probe} of the sets of a role that this round has probed."""
        return losses_of(self._log, role, self.names(role))

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about this round: gradients that are zero, losses that do not count."""
        return notes_of(self._log)

    def trouble(self) -> str | None:
        """Returns the first loss, gradient or reward of this round that is not finite; None: there is none."""
        return trouble_of(self._log)

    def _refuse_not_finite(self) -> None:
        if (trouble := self.trouble()) is not None:
            raise NotFiniteError(trouble)

    # Gradients and batches, one set at a time.

    def _walk(
        self,
        role: str,
        names: Iterable[str],
        round_: Round,
        visit: Visit,
        join: Callable[[Mapping[str, int]], None],
        after_each: Callable[[int, Gradient], None] | None = None,
        together: bool = False,
    ) -> None:
        """Takes the gradient of each set once and visits it.

        If the ranks divide the sets, each visits its own, and `join` brings in what the others have found. Then all
        ranks take the rest together.

        together: True: the ranks do not divide the sets.
        """
        names, replicas = tuple(names), self.model.replicas
        owners = {} if together else self._owners(role, names, round_)
        if owners:
            common, self._log = self._log, []
            with replicas.raise_on_all_ranks(), self.model.alone():
                for name in names:
                    if owners.get(name) == replicas.rank:
                        visit(name, *self._take(role, name, round_, after_each))
            self._log = common + [entry for part in replicas.gather(self._log) for entry in part]
            if self._sketches is not None:
                blank = self._sketcher(self._buckets).new(wide(self.model.params[0].dtype))
                self._sketches[role] |= gathered_sketches(replicas, owners, self._sketches[role], blank)
            join(owners)
            self._skip_sets_of_others(role, owners)
        for name in names:
            if name not in owners:
                visit(name, *self._take(role, name, round_, after_each))

    def _take(
        self, role: str, name: str, round_: Round, after_each: Callable[[int, Gradient], None] | None = None
    ) -> tuple[Gradient, float]:
        """Takes one gradient; returns it and its norm."""
        key = (role, name, round_.number)
        gradient, loss = self.model.gradient(key, self._batches(role, name), self._total, after_each)
        norm = self.model.layout.norm(gradient)
        if role == "train" or round_.dev_sets.get(name):
            self._log += [("loss", role, name, loss), ("norm", role, name, norm)]
        else:
            self._log.append(("uncounted loss", role, name, loss))
        if self._sketches is not None:
            sketch = self.model.sketch(self._sketcher(self._buckets), gradient)
            self._sketches[role][name] = self.model.layout.total(sketch).cpu()
        return gradient, norm

    def _batches(self, role: str, name: str) -> Iterable[Numbered]:
        """Returns the batches of a set that this rank takes, each with its number among those of all ranks."""
        numbers = self.model.numbers(self._total)
        if role == "dev" and name in self._kept:
            return [(number, batch) for number, batch in self._kept[name] if number in numbers]
        return self._drawn(role, name, numbers)

    def _drawn(self, role: str, name: str, numbers: range) -> Iterator[Numbered]:
        source = self._opened[role][name]
        self._drawn_from.add((role, name))
        for j in range(self._total):
            if j in numbers:
                yield j, source.draw((self.rounds, j), self._part_of(j))
            else:
                source.skip()

    def _part_of(self, number: int) -> Part:
        """Returns the part of a batch. Ranks that hold shards take the passes of a part together."""
        rank, place = divmod(number, self._divided)
        part = place % self.parts
        return part, self.parts, rank * self._batches_of_part(part) + place // self.parts

    def _batches_of_part(self, part: int) -> int:
        return (self._divided - part + self.parts - 1) // self.parts

    def _without_parts(self) -> frozenset[tuple[str, str]]:
        """Returns (role, name) of the sets with too few examples for parts: what they add to the noise is unknown."""
        opened = [(role, *item) for role, by_name in self._opened.items() for item in by_name.items()]
        return frozenset((role, name) for role, name, source in opened if source.most_parts < self.parts)

    def divide(self, most: int) -> None:
        """Divides the batches of a set into at most so many parts, as many as all sets with two or more can have."""
        own = [source.most_parts for by_name in self._opened.values() for source in by_name.values()]
        self.parts = int(min([self.divided, most, *(parts for parts in own if parts >= 2)]))

    def _keep_dev_batches(self) -> None:
        """Draws the dev batches of this round now, to use them more than once; under `alone` those of all ranks."""
        with self.model.replicas.raise_on_all_ranks():
            self._kept = {name: list(self._batches("dev", name)) for name in self.names("dev")}

    def _counted(self, round_: Round) -> list[str]:
        """Returns the dev sets of a weight above 0, in their order."""
        return [name for name in self.names("dev") if round_.dev_sets.get(name)]

    # The division of the sets among the ranks.

    def _owners(self, role: str, names: Sequence[str], round_: Round) -> dict[str, int]:
        """Returns {name: the rank that takes its gradient}; all ranks take the sets left out together."""
        if self.model.replicas.size == 1:
            return {}
        if round_.datasets != self.names("train") or (role == "dev" and self._kept):
            return {}  # a subset changes from round to round; of kept batches, each rank has its part
        return owners_of(names, self._splittable(role), self._total, self.model.replicas.size)

    def _splittable(self, role: str) -> set[str]:
        """Returns the sets whose gradients any rank can take alone."""
        model, given = self.model, self._settings.split_work
        if given is False or model.layout.sharded:
            return set()
        if given:
            return set(self.names(role))
        if any(isinstance(module, nn.SyncBatchNorm) for module in model.model.modules()):
            return set()  # its passes wait for the other ranks
        return {name for name, source in self._given[role].items() if getattr(source, "splittable", False)}

    def _skip_sets_of_others(self, role: str, owners: Mapping[str, int]) -> None:
        """Moves sources that keep a place past the batches that other ranks have taken."""
        with self.model.replicas.raise_on_all_ranks():
            for name, owner in owners.items():
                if owner != self.model.replicas.rank and not (role == "dev" and self._kept):
                    for _ in self._drawn(role, name, range(0)):
                        pass

    # Sketches.

    @property
    def table_bytes(self) -> int:
        """The memory of a dataset or dev set in a table."""
        return self.parts * self._sketcher_of_table().new(wide(self.model.params[0].dtype), "meta").nbytes

    def _sketcher_of_table(self) -> Sketcher:
        sets = sum(map(len, self._given.values()))
        return self._sketcher(_LARGE if sets <= _FEW_SETS else _SMALL)

    def _sketcher(self, buckets: int) -> Sketcher:
        if buckets not in self._sketchers:
            self._sketchers[buckets] = Sketcher(buckets)
        return self._sketchers[buckets]

    # The state.

    def state_dict(self) -> dict[str, Any]:
        """Returns plain values: seed, rounds, priority with its losses, and the places of all sources."""
        return {
            "seed": self.model.seed,
            "rounds": self.rounds,
            "given_priority": self._given_priority,
            "priority": self._plain_priority,
            "dev_losses": self._dev_losses,
            "last_losses": dict(self._last_losses),
            "sources": {
                role: {name: source.state_dict() for name, source in by_name.items()}
                for role, by_name in self._opened.items()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state. One that does not fit raises an error and changes nothing.

        The seed is that of the state. A priority that was assigned in mid-run is, too, unless this probe was made with
        another priority than that of the state: then the new one counts. A line says so.
        """
        keys = ("seed", "rounds", "given_priority", "priority", "dev_losses", "last_losses", "sources")
        check_keys(self._owner, state, *keys)
        where, names = f"{self._owner}: the state", self.names("dev")
        counts = {key: restored(f"{where}: {key!r}", 0, state[key]) for key in ("seed", "rounds")}
        not_negative(f"{where}: 'rounds'", counts["rounds"])
        last_losses = restored_part(f"{where}: 'last_losses'", names, state["last_losses"], 0.0)
        dev_losses = state["dev_losses"]
        if dev_losses is not None:
            dev_losses = restored(f"{where}: 'dev_losses'", dict.fromkeys(names, 0.0), dev_losses)
        given, priority = (self._checked_priority(where, key, state[key]) for key in ("given_priority", "priority"))
        is_new = given != self._given_priority
        if not is_new and priority is None and not callable(self._priority):
            raise ValueError(f"{self._owner}: the priority of the state was a function; assign it again.")
        if is_new or priority is None:
            priority = self._priority
        self._opened = self._loaded_sources(f"{where}: 'sources'", state["sources"], counts["seed"])
        if is_new:
            was, now = (each or "a function" for each in (given, self._given_priority))
            _log.warning("%s: The priority is %s now; it was %s when the state was saved.", self._owner, now, was)
        if (seed := counts["seed"]) != self.model.seed:
            _log.warning("%s: The seed stays %s, that of the state, not %s.", self._owner, seed, self.model.seed)
        self.priority, self._dev_losses, self._last_losses = priority, dev_losses, last_losses
        self.model.seed, self.rounds = counts["seed"], counts["rounds"]

    def _checked_priority(self, where: str, key: str, saved: Any) -> Any:
        if saved is not None:
            if not isinstance(saved, str | Mapping):
                raise ValueError(f"{where}: {key!r} must be a name or weights, but it is {saved!r}.")
            try:
                priorities.check(saved, self.names("dev"))
            except ValueError as error:
                raise ValueError(f"{where}: {key!r}: {error}") from None
        return saved

    def _loaded_sources(self, where: str, state: Any, seed: int) -> dict[str, dict[str, Source]]:
        check_keys(where, state, *self._given)
        opened = self._open(seed)
        for role, by_name in opened.items():
            check_keys(f"{where}: {role!r}", state[role])
            check_names(f"{where}: {role!r}", by_name, state[role])
            for name, source in by_name.items():
                source.check_state(state[role][name])
        # Objects that keep their own place come last: they are the user's, and an error must leave them as they were.
        keys = [(role, name) for role, by_name in opened.items() for name in by_name]
        for role, name in sorted(keys, key=lambda key: hasattr(self._given[key[0]][key[1]], "load_state_dict")):
            opened[role][name].first = self._opened[role][name].first
            opened[role][name].load_state_dict(state[role][name])
        return opened
