"""The table of a round: inner products of the gradients of dev sets and datasets, from sketches of them.

Plain numbers, float64 on the CPU. The standard errors are those of a jackknife: the probe batches of a set are divided
into parts, and a cosine moves with what each part adds to the gradients (`influences`).

>>> import torch
>>> table = table_of({"dev": torch.tensor([1.0, 0.0])}, {"a": torch.tensor([2.0, 0.0]), "b": torch.tensor([0.0, 1.0])})
>>> table.cosines().tolist()
[[1.0, 0.0]]
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from .._base.text import short
from ..gradients.vectors import norm

_POOLED = 4.0  # degrees of freedom of the mean variance of a row in the variance of one cosine
_COLUMNS = 64  # multiplied at once: a copy of all sketches would double the memory


@dataclass(frozen=True, eq=False)
class Table(Mapping[str, dict[str, tuple[float, float]]]):
    """How the gradients of n datasets and K dev sets relate to each other.

    train_names, dev_names: the order of the tensors.
    dev_train: [dev, train], the inner products d_k . t_i of dev and training gradients.
    dev_dev: [dev, dev], d_k . d_l.
    train_norms: [train], |t_i|.
    train_losses, dev_losses: {name: loss of the probe}.
    by_train: [part, dev, train], d_k . (what a part adds to t_i, less its share of t_i). None: one part, no errors.
    by_dev, by_both: [part, dev, train], the same of d_k, with t_i; of d_k, with that of t_i.
    own_train: [part, train], the same of t_i with t_i. own_dev: [part, dev, dev], the same of d_k with d_l.
    dev_noise: [dev], the part of |d_k|^2 that is noise, on average.
    unknown: (role, name) of the sets with too few examples for parts: what they add to the noise is unknown.

    As a mapping it is {dev set: {dataset: (cosine, its standard error)}}; an unknown error is NaN. As a string it lists
    the datasets of each dev set, the best first.
    """

    train_names: tuple[str, ...]
    dev_names: tuple[str, ...]
    dev_train: Tensor
    dev_dev: Tensor
    train_norms: Tensor
    train_losses: dict[str, float] = field(default_factory=dict)
    dev_losses: dict[str, float] = field(default_factory=dict)
    by_train: Tensor | None = None
    by_dev: Tensor | None = None
    by_both: Tensor | None = None
    own_train: Tensor | None = None
    own_dev: Tensor | None = None
    dev_noise: Tensor | None = None
    unknown: frozenset[tuple[str, str]] = frozenset()

    @property
    def dev_norms(self) -> Tensor:
        """|d_k| # [dev]"""
        return self.dev_dev.diagonal().clamp(min=0).sqrt()

    def cosines(self) -> Tensor:
        """Returns cos(d_k, t_i); the cosine with a zero gradient is 0. # [dev, train]"""
        return _divided(self.dev_train, self.dev_norms[:, None] * self.train_norms)

    def influences(self) -> list[Tensor]:
        """Returns how far each part of the datasets, of the dev sets and of both moves the cosines; empty: one part.

        Derivatives at the whole gradients: the cosine of a half with a half would be smaller, and so would its errors.
        # [part, dev, train] each
        """
        if self.by_train is None or self.by_dev is None or self.by_both is None:
            return []
        assert self.own_train is not None
        assert self.own_dev is not None
        cosines, dev_norms = self.cosines(), self.dev_norms[:, None]
        lengths = dev_norms * self.train_norms
        along_train = _divided(self.own_train, self.train_norms**2)[:, None]
        along_dev = _divided(self.own_dev.diagonal(dim1=1, dim2=2), self.dev_norms**2)[:, :, None]
        return [
            _divided(self.by_train, lengths) - cosines * along_train,
            _divided(self.by_dev, lengths) - cosines * along_dev,
            _divided(self.by_both, lengths),
        ]

    def errors(self) -> Tensor:
        """Returns the standard errors of the cosines; NaN: unknown. # [dev, train]"""
        return self._errors_of(self.influences())

    def differences(self) -> dict[str, dict[str, tuple[float, float]]]:
        """Returns {dev set: {dataset: (cosine, standard error of its difference from the mean of the row)}}.

        The noise that all datasets have in common is left out, since it moves no mixture.
        """
        return self._by_name(self._errors_of(self._uncommon(self.influences())))

    def _errors_of(self, parts: list[Tensor]) -> Tensor:
        """Returns the standard errors of what the parts move. With few parts they are pooled with their row."""
        if not parts:
            return torch.full_like(self.dev_train, math.nan)
        variance = _variance(parts)
        variance[[("dev", name) in self.unknown for name in self.dev_names]] = math.nan
        variance[:, [("train", name) in self.unknown for name in self.train_names]] = math.nan
        room = (1 - self.cosines() ** 2).clamp(min=1e-6)  # the variance of a cosine of 1 is 0
        pooled = room * (variance / room).nanmean(dim=1, keepdim=True)
        own = 2.0 * (len(parts[0]) - 1)  # degrees of freedom
        freedom = own + _POOLED
        unbiased = 1 + 1 / (4 * freedom)  # the root of a variance is too small on average
        return ((own * variance + _POOLED * pooled) / freedom).sqrt() * unbiased

    def _uncommon(self, parts: list[Tensor]) -> list[Tensor]:
        """Returns what parts move, less what they move in all datasets alike. # [part, ..., train] each"""
        n = len(self.train_names)
        lost = math.sqrt(n / max(n - 1, 1))  # a degree of freedom
        return [(part - part.mean(dim=-1, keepdim=True)) * lost for part in parts]

    def multidds(self, weights: Tensor) -> Tensor:
        """Returns R_i = cos(sum_k w_k d_k, t_i), the reward of MultiDDS. weights: w [dev]. # [train]"""
        squared = torch.einsum("k,kl,l->", weights, self.dev_dev, weights)  # |sum_k w_k d_k|^2
        return _divided(weights @ self.dev_train, squared.clamp(min=0).sqrt() * self.train_norms)

    def multidds_s(self, weights: Tensor) -> Tensor:
        """Returns R'_i = sum_k w_k cos(d_k, t_i), the reward of MultiDDS-S. weights: w [dev]. # [train]"""
        return weights @ self.cosines()

    def mean_cosines(self, weights: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
        """Returns the mean cosine of each dataset with the dev sets and its standard error. weights: {dev set: w}.

        The noise that all datasets have in common is left out, since it moves no mixture. So are unknown errors.
        """
        w = torch.tensor([weights[name] for name in self.dev_names], dtype=torch.float64)
        means = dict(zip(self.train_names, self.multidds_s(w).tolist(), strict=True))
        moved = [torch.einsum("k,pki->pi", w, part) for part in self.influences()]
        if not moved or any(weights[name] and ("dev", name) in self.unknown for name in self.dev_names):
            return means, {}
        errors = zip(self.train_names, _variance(self._uncommon(moved)).sqrt().tolist(), strict=True)
        return means, {name: error for name, error in errors if ("train", name) not in self.unknown}

    def worth_terms(self) -> dict[str, tuple[float, float]]:
        """Returns {dataset: (t_i . d_k, |d_k|^2 less its noise)} with the dev set k of the dataset's name.

        Their ratio is the worth of a repeated example in new ones: training examples were seen before, and those of
        the dev set are like new ones of the same kind.
        """
        if self.dev_noise is None:
            return {}
        unknown = {name for _, name in self.unknown}
        names = [name for name in self.train_names if name in self.dev_names and name not in unknown]
        places = {name: (self.dev_names.index(name), self.train_names.index(name)) for name in names}
        fresh = (self.dev_dev.diagonal() - self.dev_noise).tolist()
        return {name: (float(self.dev_train[k, i]), fresh[k]) for name, (k, i) in places.items()}

    def worth(self) -> dict[str, tuple[float, float]]:
        """Returns {dataset: (worth of one more pass in new examples, standard error)}, with a dev set of its name."""
        if self.by_train is None or self.by_dev is None or self.own_dev is None:
            return {}
        found, count = {}, len(self.by_train)
        for name, (seen, fresh) in self.worth_terms().items():
            if fresh > 0:
                k, i = self.dev_names.index(name), self.train_names.index(name)
                worth = seen / fresh
                moves = self.by_dev[:, k, i] - 2 * worth * self.own_dev[:, k, k]  # |d|^2 moves by 2 d . (its change)
                square = self.by_train[:, k, i].square().sum() + moves.square().sum()
                found[name] = worth, math.sqrt(float(square) * count / (count - 1)) / fresh
        return found

    def joint(self, name: str, weights: Mapping[str, float]) -> "Table":
        """Returns the table of one row, `name`: the cosines with sum_k w_k d_k / |d_k|. weights: {dev set: w}."""
        w = torch.tensor([weights[dev] for dev in self.dev_names], dtype=torch.float64)
        unit = _divided(w, self.dev_norms)
        own_dev = self.own_dev
        return Table(
            self.train_names,
            (name,),
            (unit @ self.dev_train)[None],
            torch.einsum("k,kl,l->", unit, self.dev_dev, unit).reshape(1, 1),
            self.train_norms,
            by_train=None if self.by_train is None else torch.einsum("k,pki->pi", unit, self.by_train)[:, None],
            by_dev=None if self.by_dev is None else torch.einsum("k,pki->pi", unit, self.by_dev)[:, None],
            by_both=None if self.by_both is None else torch.einsum("k,pki->pi", unit, self.by_both)[:, None],
            own_train=self.own_train,
            own_dev=None if own_dev is None else torch.einsum("k,pkl,l->p", unit, own_dev, unit)[:, None, None],
            unknown=frozenset(key for key in self.unknown if key[0] == "train"),
        )

    @cached_property
    def _rows(self) -> dict[str, dict[str, tuple[float, float]]]:
        return self._by_name(self.errors())

    def _by_name(self, errors: Tensor) -> dict[str, dict[str, tuple[float, float]]]:
        rows = zip(self.dev_names, self.cosines().tolist(), errors.tolist(), strict=True)
        return {dev: dict(zip(self.train_names, zip(*row, strict=True), strict=True)) for dev, *row in rows}

    def __getitem__(self, dev: str) -> dict[str, tuple[float, float]]:
        return self._rows[dev]

    def __iter__(self) -> Iterator[str]:
        return iter(self.dev_names)

    def __len__(self) -> int:
        return len(self.dev_names)

    def __str__(self) -> str:
        lines = []
        for dev, row in self.items():
            lines.append(f"{short(dev)}:")
            for name in sorted(row, key=lambda name: -row[name][0]):
                cosine, error = row[name]
                shown = f"{max(error, 0.001):.3f}" if math.isfinite(error) else "?"
                lines.append(f"  {short(name):24} {cosine:+.3f} ± {shown}")
        return "\n".join(lines)


def table_of(dev: Mapping[str, Tensor], train: Mapping[str, Tensor]) -> Table:
    """Returns the table of gradients, or of sketches of them, which are flat vectors. dev, train: {name: vector}."""
    devs, trains = list(dev.values()), list(train.values())
    norms = torch.tensor([norm([vector]) for vector in trains], dtype=torch.float64, device="cpu")
    return Table(tuple(train), tuple(dev), _products(devs, trains), _products(devs, devs), norms)


def table_of_parts(
    dev: Mapping[str, Sequence[Tensor]], train: Mapping[str, Sequence[Tensor]], shares: Sequence[float]
) -> Table:
    """Returns the table of whole probes, with what each part adds to them.

    dev, train: {name: for each part, the sketch of what its batches add to the mean gradient}.
    shares: of the batches in each part.
    """
    devs = {name: torch.stack(list(parts)).sum(0) for name, parts in dev.items()}
    trains = {name: torch.stack(list(parts)).sum(0) for name, parts in train.items()}
    table = table_of(devs, trains)
    if len(shares) < 2:
        return table
    by_train, by_dev, by_both, own_train, own_dev = [], [], [], [], []
    dev_noise = torch.zeros(len(devs), dtype=torch.float64)
    for part, share in enumerate(shares):
        train_moves = [parts[part] - share * trains[name] for name, parts in train.items()]
        dev_moves = [parts[part] - share * devs[name] for name, parts in dev.items()]
        by_train.append(_products(list(devs.values()), train_moves))
        by_dev.append(_products(dev_moves, list(trains.values())))
        dev_noise += torch.tensor([norm([move]) ** 2 for move in dev_moves], dtype=torch.float64)
        by_both.append(_products(dev_moves, train_moves))
        own_train.append(
            torch.stack([torch.dot(a, b) for a, b in zip(train_moves, trains.values(), strict=True)]).double()
        )
        own_dev.append(_products(dev_moves, list(devs.values())))
    return replace(
        table,
        by_train=torch.stack(by_train),
        by_dev=torch.stack(by_dev),
        by_both=torch.stack(by_both),
        own_train=torch.stack(own_train),
        own_dev=torch.stack(own_dev),
        dev_noise=dev_noise * (len(shares) / (len(shares) - 1)),
    )


def _variance(influences: Sequence[Tensor]) -> Tensor:
    """Returns the jackknife variance of a statistic from what parts of datasets, dev sets and both move it.

    The product of the noises of both is in either of the first two, and counts once.
    """
    by_train, by_dev, by_both = (parts.square().sum(0) for parts in influences)
    count = len(influences[0])
    by_train, by_dev = (each * (count / (count - 1)) for each in (by_train, by_dev))
    twice = by_both * (count**3 / (count - 1) ** 2)
    return torch.maximum(by_train + by_dev - twice, torch.maximum(by_train, by_dev))


def _products(rows: list[Tensor], columns: list[Tensor]) -> Tensor:
    stacked = torch.stack(rows)
    with torch.autocast("cpu", enabled=False):
        parts = [stacked @ torch.stack(columns[i : i + _COLUMNS]).T for i in range(0, len(columns), _COLUMNS)]
    return torch.cat(parts, dim=1).double()


def _divided(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator, and 0 where the denominator is 0."""
    zero = denominator == 0
    return torch.where(zero, 0.0, numerator / torch.where(zero, 1.0, denominator))
