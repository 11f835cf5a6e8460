"""What a mixture did in one run of any trainer, and the panels that show it: shares, learning and drift, rewards, ...

Reads the histories that `multidds.history` finds: runs of ours, Trainer checkpoints, Lightning logs, plain loops.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from markupsafe import Markup

from multidds._base.text import movers
from multidds.history import Moment, bands_of, find_history, limit_of, moments_of, top_movers

from ..common.errors import UserError
from . import charts

MANY = 24  # datasets or dev sets of a heat map
FACTS = {"drift": "from the prior", "unlearned": "without rewards", "learned": "by rewards", "signal": "signal"}
_FACT_COLOURS = {
    "from the prior": "#4477aa", "without rewards": "#ccbb44", "by rewards": "#ee6677", "signal": charts.GREY,
}  # fmt: skip


_DISTANCES = (
    "How far the mixture is from its prior (total variation, 0 to 1); how far it would be without rewards, by its plan "
    "or by the rule's own drift; how far rewards have moved it from there. Signal: what of the rewards is not noise."
)


@dataclass
class MixtureRun:
    """The course of a mixture.

    label: what the run is called. folder: where it was read. moments: by step, the first where it began.
    validations: {dev set: [(step, loss), ...]} of whole dev sets, where they are known.
    """

    label: str
    folder: Path
    moments: list[Moment]
    validations: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for moment in self.moments for name in moment.mixture))

    @property
    def updates(self) -> list[Moment]:
        return [moment for moment in self.moments if moment.step > 0]

    @property
    def steps(self) -> int:
        return self.moments[-1].step

    @property
    def began(self) -> dict[str, float]:
        """The prior where it is known, else the first mixture."""
        return next((moment.prior for moment in self.moments if moment.prior), self.moments[0].mixture)

    @property
    def prior(self) -> dict[str, float]:
        """The prior, if it is another mixture than the first."""
        first = self.moments[0].mixture
        other = any(abs(share - first.get(name, share)) > 1e-6 for name, share in self.began.items())
        return self.began if other else {}

    @property
    def facts(self) -> dict[str, float]:
        """Of the last moment that has some."""
        return next((moment.facts for moment in reversed(self.moments) if moment.facts), {})

    def sentence(self) -> str:
        last = self.moments[-1].mixture
        moved = movers(last, self.began, 3)
        told = ", ".join(
            f"{name} {charts.percent(self.began.get(name, last[name]))} → {charts.percent(last[name])}"
            for name in moved
        )
        return f"{self.label}: {_count(len(self.updates), 'update')} in {self.steps:,} steps; {told}."


def read_courses(folder: Path) -> Iterator[MixtureRun]:
    """The histories of other trainers that are in a folder, or below it."""
    versions = [path for path in folder.glob("version_*") if path.is_dir()] if folder.is_dir() else []
    if not versions and find_history(folder) is not None:
        moments = _read(folder)
        if moments:
            yield MixtureRun(folder.name or str(folder.resolve().name), folder, moments)
    elif folder.is_dir():
        for inner in sorted(folder.iterdir()):
            if inner.is_dir() and not inner.is_symlink():
                yield from read_courses(inner)


def _read(folder: Path) -> list[Moment]:
    try:
        return moments_of(folder)
    except (ValueError, KeyError, TypeError) as error:
        told = str(error) if isinstance(error, ValueError) else f"{folder}: is no history of a mixture."
        raise UserError(told) from None


@dataclass(frozen=True)
class Panel:
    """One chart of one run, in a row of the same charts of other runs."""

    label: str
    chart: Markup


@dataclass(frozen=True)
class Row:
    title: str
    caption: str
    panels: list[Panel]


def rows_of(courses: Sequence[MixtureRun]) -> list[Row]:
    """The rows of charts of runs on the same datasets, side by side, in the same colours; what is empty is left out."""
    names = top_movers(courses[0].moments) if courses else []
    colours = charts.colours_of(names)
    makers: list[tuple[str, str, Callable[[MixtureRun], Markup]]] = [
        ("What the mixture did", _shares_caption(courses, names), lambda c: _shares(c, names, courses)),
        ("Learned or drifted", _DISTANCES, _facts),
        ("Rewards", "What each dataset was worth at every update, with the noise of the probe.",
         lambda c: _group(c, "reward", names, colours, "reward", "noise")),
        ("Dev losses", "Of whole dev sets where they were validated, else of the probes.",
         lambda c: _dev_losses(c, names, colours)),
        ("Passes over the data", "How often each dataset had been gone through.",
         lambda c: _group(c, "passes", names, colours, "passes")),
        ("Alignment over time", "Cosines of the gradients of dev sets and datasets; move the slider.",
         lambda c: _alignment(c, top_movers(courses[0].moments, MANY))),
    ]  # fmt: skip
    rows = []
    for title, caption, make in makers:
        panels = [Panel(course.label, chart) for course in courses if (chart := make(course))]
        if panels:
            rows.append(Row(title, caption, panels))
    return rows


def _shares_caption(courses: Sequence[MixtureRun], names: Sequence[str]) -> str:
    told = "The share of each dataset in the draws, from the first step on."
    if courses and len(courses[0].names) > len(names):
        told += f" The {len(names)} of {len(courses[0].names):,} datasets that moved most; grey are all others."
    return told


def _shares(course: MixtureRun, names: Sequence[str], courses: Sequence[MixtureRun]) -> Markup:
    if not course.updates:
        return Markup("")
    limit = max(limit_of(bands_of(one.moments, names)) for one in courses)
    steps = [moment.step for moment in course.moments]
    title = f"{course.label}: shares by step"
    return charts.area(steps, bands_of(course.moments, names), course.prior, title, limit)


def _facts(course: MixtureRun) -> Markup:
    series = {
        told: [(moment.step, moment.facts[fact]) for moment in course.moments if fact in moment.facts]
        for fact, told in FACTS.items()
    }
    series = {told: points for told, points in series.items() if len(points) > 1}
    if not series:
        return Markup("")
    title = f"{course.label}: learned or drifted"
    return charts.lines(series, "total variation", title, low=0, high=1, colours=_FACT_COLOURS, first=0)


def _group(
    course: MixtureRun,
    group: str,
    names: Sequence[str],
    colours: Mapping[str, str],
    what: str,
    errors: str = "",
) -> Markup:
    series = _points(course.moments, group, names)
    noise: dict[str, list[float]] = {}
    if errors:
        noise = {
            name: [m.groups.get(errors, {}).get(name, 0.0) for m in course.moments if name in m.groups.get(group, {})]
            for name in series
        }
        noise = {name: values for name, values in noise.items() if any(values)}
    title = f"{course.label}: {what}"
    return charts.lines(series, what, title, noise, colours=colours, first=0) if series else Markup("")


def _dev_losses(course: MixtureRun, names: Sequence[str], colours: Mapping[str, str]) -> Markup:
    known = {name: points for name, points in course.validations.items() if len(points) > 1}
    if not known:
        known = _points(course.moments, "dev_loss", [])
    chosen = [name for name in names if name in known] + sorted(name for name in known if name not in names)
    series = {name: known[name] for name in chosen[: charts.MOST]}
    if not series:
        return Markup("")
    shared = {name: colour for name, colour in colours.items() if any(n in names for n in series)}
    return charts.lines(series, "loss", f"{course.label}: dev losses", colours=shared, first=0)


def _points(moments: Sequence[Moment], group: str, names: Sequence[str]) -> dict[str, list[tuple[float, float]]]:
    """{name: [(step, value), ...]} of those of the names that have two at least; no names: all."""
    wanted = names or dict.fromkeys(name for moment in moments for name in moment.groups.get(group, {}))
    found = {
        name: [(float(m.step), m.groups[group][name]) for m in moments if name in m.groups.get(group, {})]
        for name in wanted
    }
    return {name: points for name, points in found.items() if len(points) > 1}


def _alignment(course: MixtureRun, train: Sequence[str]) -> Markup:
    tables = [moment for moment in course.moments if moment.cosines]
    if not tables:
        return Markup("")
    first = tables[0].cosines
    train = [name for name in train if name in course.names]
    dev = [name for name in train if name in first] + [name for name in first if name not in train]
    dev = dev[:MANY]
    kept = [
        (moment.step, [[moment.cosines[d].get(t, 0.0) for t in train] for d in dev])
        for moment in tables
        if all(d in moment.cosines for d in dev)
    ]
    return charts.heat(dev, train, kept, f"{course.label}: cosines of gradients")


def groups_of(courses: Iterable[MixtureRun]) -> list[tuple[str, list[MixtureRun]]]:
    """[(name, runs on the same datasets)]; labels that two of them share get their folder."""
    by_names: dict[frozenset[str], list[MixtureRun]] = {}
    for course in courses:
        by_names.setdefault(frozenset(course.names), []).append(course)
    found = []
    for members in by_names.values():
        labels = [course.label for course in members]
        for course in members:
            if labels.count(course.label) > 1:
                course.label = str(course.folder)
        parent = members[0].folder.resolve().parent.name
        found.append((members[0].label if len(members) == 1 else f"{parent}: {len(members)} runs", members))
    return found


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")
