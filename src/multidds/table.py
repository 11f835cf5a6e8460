"""Collects the inner products of a sweep into an `Alignment`: from whole gradients, or from sketches of them."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from .alignment import Alignment
from .gradients import Gradient, dot, norm, wide
from .sketch import Sketcher
from .sweep import Look, Losses


class Table:
    """A collector. Memory: K + 1 gradients exactly, or n + K sketches.

    params, names: what the gradients are of. step_ahead: whether every dataset has dev gradients of its own.
    """

    def __init__(
        self, params: Sequence[Tensor], names: Sequence[str], sketcher: Sketcher | None, step_ahead: bool
    ) -> None:
        self._params, self._names, self._sketcher, self._step_ahead = params, names, sketcher, step_ahead
        self._devs: list[Tensor] = []  # of this dataset with step-ahead, else of all
        self._trains: list[Tensor] = []  # sketches that are multiplied at the end
        self._dev_train: list[Tensor] = []  # [dev, 1] each, a column
        self._dev_dev: list[Tensor] = []  # [dev, dev] each; one, or one per training dataset
        self._train_norms: list[float] = []

    def dev(self, look: Look) -> None:
        self.add_dev(self.kept(look.gradient))

    def train(self, look: Look) -> None:
        self.add_train(self.kept(look.gradient))

    def add_dev(self, dev: Tensor) -> None:
        self._devs.append(dev)

    def add_train(self, train: Tensor) -> None:
        self._train_norms.append(norm([train]))
        if self._sketcher is not None and not self._step_ahead:
            self._trains.append(train)
            return
        self._dev_train.append(self._products(self._devs, [train]))
        if self._step_ahead or not self._dev_dev:
            self._dev_dev.append(self._products(self._devs, self._devs))
        if self._step_ahead:
            self._devs = []

    def alignment(self, losses: Losses, names: Sequence[str]) -> Alignment:
        """names: the training datasets in the order in which they were seen."""
        if self._trains:
            self._dev_train = [self._products(self._devs, self._trains)]
            self._dev_dev = [self._products(self._devs, self._devs)]
        return Alignment(
            train_names=tuple(names),
            dev_names=tuple(losses.of_dev),
            dev_train=torch.cat(self._dev_train, dim=1),
            dev_dev=torch.stack(self._dev_dev) if self._step_ahead else self._dev_dev[0],
            train_norms=torch.tensor(self._train_norms, dtype=torch.float64, device="cpu"),
            train_losses=losses.of_train,
            dev_losses=losses.of_dev,
        )

    def kept(self, gradient: Gradient) -> Tensor:
        """What is remembered of a gradient: one flat vector, whole or sketched."""
        device, dtype = self._params[0].device, wide(self._params[0].dtype)
        if self._sketcher is None:
            filled = [torch.zeros_like(p) if g is None else g for p, g in zip(self._params, gradient, strict=True)]
            return torch.cat([g.reshape(-1).to(device=device, dtype=wide(g.dtype)) for g in filled])
        sketch = self._sketcher.new(dtype, device)
        for name, g in zip(self._names, gradient, strict=True):
            if g is not None:
                self._sketcher.add(sketch, name, g.to(device))
        return sketch.cpu()

    def _products(self, rows: list[Tensor], columns: list[Tensor]) -> Tensor:
        if self._sketcher is None:  # without a second copy of whole gradients
            table = [[dot([a], [b]) for b in columns] for a in rows]
            return torch.tensor(table, dtype=torch.float64, device="cpu")
        stacked = torch.stack(rows)
        with torch.autocast("cpu", enabled=False):  # a few columns at a time: not a copy of all
            parts = [stacked @ torch.stack(columns[i : i + 64]).T for i in range(0, len(columns), 64)]
        return torch.cat(parts, dim=1).double()


class Halves:
    """Two tables, of the even and of the odd probe batches: how much would rewards move if the probe were drawn again?

    A collector whose `after_each` must be shown what the batches of each gradient add to it, one after another. Batches
    are numbered over all replicas, so that W replicas have the halves of one process. count: batches per dataset and
    dev set, over all replicas. average: replaces tensors by their mean over the replicas.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        names: Sequence[str],
        sketcher: Sketcher,
        count: int,
        average: Callable[[Iterable[Tensor]], None],
    ) -> None:
        self._tables = [Table(params, names, sketcher, step_ahead=False) for _ in range(2)]
        self._shares = [(count + 1) // 2 / count, count // 2 / count]  # of the even and of the odd batches
        self._average = average
        self._sums: list[Tensor] = []  # sketches of what the even and the odd batches so far add to this gradient

    def after_each(self, number: int, gradient: Gradient) -> None:
        sofar = self._tables[0].kept(gradient)
        if not self._sums:
            self._sums = [torch.zeros_like(sofar) for _ in range(2)]
        even, odd = self._sums
        self._sums[number % 2] = sofar - (odd if number % 2 == 0 else even)  # sketches are linear

    def dev(self, look: Look) -> None:
        for table, half in zip(self._tables, self._split(look), strict=True):
            table.add_dev(half)

    def train(self, look: Look) -> None:
        for table, half in zip(self._tables, self._split(look), strict=True):
            table.add_train(half)

    def _split(self, look: Look) -> list[Tensor]:
        """The mean gradients of both halves."""
        device = next(g.device for g in look.gradient if g is not None)
        halves, self._sums = [each.to(device) for each in self._sums], []
        self._average(halves)  # where the gradients are: the backend may reduce nothing on the CPU
        return [half.cpu() / share for half, share in zip(halves, self._shares, strict=True)]

    def alignments(self, losses: Losses, names: Sequence[str]) -> tuple[Alignment, Alignment]:
        first, second = (table.alignment(losses, names) for table in self._tables)
        return first, second


def sketcher_of(sketch: int | str | None) -> Sketcher | None:
    """None: whole gradients."""
    return None if sketch is None or sketch == "exact" else Sketcher(sketch)
