"""Collects the inner products of a sweep into an `Alignment`: from whole gradients, or from sketches of them."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from ..gradients.layout import Whole
from ..gradients.sketch import Sketcher
from ..gradients.vectors import Gradient, dot, wide
from ..gradients.work_split import WorkSplit
from .alignment import Alignment
from .collectors import Losses
from .sweep import ProbedGradient


class Table:
    """A collector. Memory: K + 1 gradients exactly, or n + K sketches.

    params, names: what the gradients are of. layout: where their elements are. step_ahead: whether every dataset has
    dev gradients of its own.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        names: Sequence[str],
        layout: Whole,
        sketcher: Sketcher | None,
        step_ahead: bool,
    ) -> None:
        self._params, self._names, self._layout = params, names, layout
        self._sketcher, self._step_ahead = sketcher, step_ahead
        self._devs: dict[str, Tensor] = {}  # of this dataset with step-ahead, else of all
        self._trains: dict[str, Tensor] = {}  # sketches that are multiplied at the end
        self._dev_train: dict[str, Tensor] = {}  # [dev, 1] each, the column of a dataset
        self._dev_dev: dict[str, Tensor] = {}  # [dev, dev] each; of the first dataset, or of each
        self._train_norms: dict[str, float] = {}

    def dev(self, probed: ProbedGradient) -> None:
        self.add_dev(probed.name, self._kept(probed.gradient))

    def train(self, probed: ProbedGradient) -> None:
        self.add_train(probed.name, self._kept(probed.gradient))

    def add_dev(self, name: str, dev: Tensor) -> None:
        self._devs[name] = dev

    def add_train(self, name: str, train: Tensor) -> None:
        self._train_norms[name] = self._norm(train)
        if self._sketcher is not None and not self._step_ahead:
            self._trains[name] = train
            return
        devs = list(self._devs.values())
        self._dev_train[name] = self._products(devs, [train])
        if self._step_ahead or not self._dev_dev:
            self._dev_dev[name] = self._products(devs, devs)
        if self._step_ahead:
            self._devs = {}

    def join(self, role: str, split: WorkSplit) -> None:
        if role == "train":
            self._train_norms = split.gather_dict(self._train_norms)
        if self._step_ahead:
            self._dev_train, self._dev_dev = split.gather_dict(self._dev_train), split.gather_dict(self._dev_dev)
            return
        assert self._sketcher is not None  # whole gradients are not sent
        blank = self._sketcher.new(wide(self._params[0].dtype))
        kept = self._devs if role == "dev" else self._trains
        kept |= split.gather_sketches(role, kept, blank)

    def alignment(self, losses: Losses, names: Sequence[str]) -> Alignment:
        """names: the training datasets, in the order that the table shall have."""
        dev_names = tuple(losses.of_dev)
        devs = [self._devs[name] for name in dev_names if name in self._devs]
        if self._trains:
            columns = [self._products(devs, [self._trains[name] for name in names])]
            squares = [self._products(devs, devs)]
        else:
            columns = [self._dev_train[name] for name in names]
            squares = [self._dev_dev[name] for name in names if name in self._dev_dev]
        return Alignment(
            train_names=tuple(names),
            dev_names=dev_names,
            dev_train=torch.cat(columns, dim=1),
            dev_dev=torch.stack(squares) if self._step_ahead else squares[0],
            train_norms=torch.tensor([self._train_norms[name] for name in names], dtype=torch.float64, device="cpu"),
            train_losses=losses.of_train,
            dev_losses=losses.of_dev,
        )

    def mean(self, other: "Table", share: float, other_share: float) -> "Table":
        """Returns the table of weighted means of gradients, which sketches are linear in."""
        mean = Table(self._params, self._names, self._layout, self._sketcher, step_ahead=False)
        for name, dev in self._devs.items():
            mean.add_dev(name, share * dev + other_share * other._devs[name])
        for name, train in self._trains.items():
            mean.add_train(name, share * train + other_share * other._trains[name])
        return mean

    def _kept(self, gradient: Gradient) -> Tensor:
        """What is remembered of a gradient: one flat vector, whole or sketched."""
        if self._sketcher is not None:
            return self._layout.total(self.sketch(gradient)).cpu()
        local = map(self._layout.local, self._params)
        filled = [torch.zeros_like(p) if g is None else g for p, g in zip(local, gradient, strict=True)]
        device = self._params[0].device
        return torch.cat([g.reshape(-1).to(device=device, dtype=wide(g.dtype)) for g in filled])

    def sketch(self, gradient: Gradient) -> Tensor:
        """Of what this rank holds of a gradient, where the gradient is."""
        assert self._sketcher is not None
        device = self._params[0].device
        sketch = self._sketcher.new(wide(self._params[0].dtype), device)
        for place, (name, g) in enumerate(zip(self._names, gradient, strict=True)):
            if g is not None:
                for start, part in self._layout.flat_slices(place, g.to(device)):
                    self._sketcher.add(sketch, name, part, start)
        return sketch

    def _norm(self, kept: Tensor) -> float:
        return Whole().norm([kept]) if self._sketcher is not None else self._layout.norm([kept])

    def _products(self, rows: list[Tensor], columns: list[Tensor]) -> Tensor:
        if self._sketcher is None:  # without a second copy of whole gradients
            table = torch.tensor([[dot([a], [b]) for b in columns] for a in rows], dtype=torch.float64, device="cpu")
            return self._layout.total(table)
        stacked = torch.stack(rows)
        with torch.autocast("cpu", enabled=False):  # a few columns at a time: not a copy of all
            parts = [stacked @ torch.stack(columns[i : i + 64]).T for i in range(0, len(columns), 64)]
        return torch.cat(parts, dim=1).double()


class Halves:
    """Two tables, of the even and of the odd probe batches: how much would rewards move if the probe were drawn again?

    A collector whose `after_each` must be shown what the batches of each gradient add to it, one after another. Batches
    are numbered over all replicas, so that W replicas have the halves of one process; of a sharded model, whose passes
    all replicas make together, within each replica. count: batches per dataset and dev set that are so numbered.
    combine: makes sketches of what the ranks hold of a gradient, or of their own gradients, those of the mean gradient.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        names: Sequence[str],
        layout: Whole,
        sketcher: Sketcher,
        count: int,
        combine: Callable[[Iterable[Tensor]], None],
    ) -> None:
        self._tables = [Table(params, names, layout, sketcher, step_ahead=False) for _ in range(2)]
        self._shares = [(count + 1) // 2 / count, count // 2 / count]  # of the even and of the odd batches
        self._combine = combine
        # Sketches of what the even and the odd batches so far add to this gradient.
        self._sums = self._blank = [sketcher.new(wide(params[0].dtype), params[0].device)] * 2

    def after_each(self, number: int, gradient: Gradient) -> None:
        even, odd = self._sums
        rest = self._tables[0].sketch(gradient) - (odd if number % 2 == 0 else even)  # sketches are linear
        self._sums = [rest, odd] if number % 2 == 0 else [even, rest]

    def dev(self, probed: ProbedGradient) -> None:
        for table, half in zip(self._tables, self._split(), strict=True):
            table.add_dev(probed.name, half)

    def train(self, probed: ProbedGradient) -> None:
        for table, half in zip(self._tables, self._split(), strict=True):
            table.add_train(probed.name, half)

    def join(self, role: str, split: WorkSplit) -> None:
        for table in self._tables:
            table.join(role, split)

    def _split(self) -> list[Tensor]:
        """The mean gradients of both halves."""
        halves, self._sums = [each.clone() for each in self._sums], self._blank
        self._combine(halves)  # where the gradients are: the backend may reduce nothing on the CPU
        return [half.cpu() / share for half, share in zip(halves, self._shares, strict=True)]

    def alignments(self, losses: Losses, names: Sequence[str]) -> tuple[Alignment, Alignment, Alignment]:
        """Returns the tables of the first half, of the second half and of both together."""
        both = self._tables[0].mean(self._tables[1], *self._shares)
        first, second, whole = (table.alignment(losses, names) for table in (*self._tables, both))
        return first, second, whole


def sketcher_of(sketch: int | str | None) -> Sketcher | None:
    """None: whole gradients."""
    return None if sketch is None or sketch == "exact" else Sketcher(sketch)
