"""Sentences that explain the shares of a run: what moved each dataset, and which ones could be left out. Pure."""

import math
from collections.abc import Iterator
from itertools import pairwise
from statistics import fmean

from .._base.text import passes_text, percent
from ..mixture.planned import OTHERS
from .run import Run

_MOST_NAMES = 12  # datasets that are explained
_BEST = 0.995  # relevance that is printed as 1.00
_GIVEN_UP = 0.25  # of its first share: at this or less, a dataset is drawn next to never


def explained(run: Run) -> list[str]:
    """Returns a heading, and a sentence about each dataset of a run with updates: its share, and what moved it.

    The largest shares come first. After twelve datasets the others are counted.
    """
    if not run.updates:
        return []
    last = run.moments[-1].mixture
    largest = sorted(last, key=lambda name: -last[name])
    sentences = [
        f"{name} {percent(last[name])[0]}%: {'; '.join(_reasons(run, name))}" for name in largest[:_MOST_NAMES]
    ]
    others = len(largest) - _MOST_NAMES
    sentences += [f"{others:,} more, with smaller shares"] * (others > 0)
    return [f"Why these shares ({run.label}, step {run.moments[-1].step:,})?", *sentences]


def droppable(run: Run) -> str:
    """Returns which datasets could be left out, as a sentence; empty if the run has learned nothing about it."""
    if not run.updates or len(run.names) < 2:
        return ""
    found = [f"{name} ({why})" for name, why in (_useless(run) if run.relevance else _given_up(run))]
    if not found:
        return "Which dataset could be dropped? By the gradients, none."
    return f"Which dataset could be dropped? {', '.join(found)}. Look at its examples: another language, copies, noise?"


def unnamed_goal(run: Run) -> str:
    """Returns how to name a dev set that has no dataset of its name; empty if all have one."""
    dev = next((dev for dev in run.relevance if dev not in run.names and run.is_goal(dev)), None)
    if dev is None:
        return ""
    row = run.relevance[dev]
    nearest = max(row, key=lambda name: row[name][0])
    return (
        f"The dev set {dev!r} has no dataset of its name. If it is held-out data of {nearest!r}, say so, and the plan "
        f'begins with that: eval_dataset={{"{nearest}": dev}} of a trainer, dev={{"{nearest}": ...}} of a Balancer.'
    )


def _reasons(run: Run, name: str) -> Iterator[str]:
    last = run.moments[-1].groups
    reasons = list(_relevance(run, name))
    if name in last.get("proposed", {}):
        reasons.insert(0, f"as given, and {percent(last['proposed'][name])[0]}% if it were learned")
    if name in last.get("held", {}):
        reasons.append(f"held at {passes_text(last['held'][name])} passes")
    elif run.at_floor(name):
        reasons.append("at its floor")
    if reasons:
        yield ", ".join(reasons)
    if name in run.passes:
        count = passes_text(run.passes[name])
        yield f"{count} pass{'' if count == '1' else 'es'} so far"
    if words := run.enough(name):
        yield words


def _relevance(run: Run, name: str) -> Iterator[str]:
    """Yields what is known of the relevance of a dataset: to its own dev set, or to the one that it helps most."""
    last = run.moments[-1].groups
    counted = [dev for dev, row in run.relevance.items() if run.is_goal(dev) and name in row]
    if not counted:
        if name in last.get("reward", {}):
            error = last.get("noise", {}).get(name)
            yield f"reward {last['reward'][name]:.2f}" + (f" ± {max(error, 0.01):.2f}" if error else "")
        return
    dev = name if name in counted else max(counted, key=lambda dev: run.relevance[dev][name][0])
    if dev == name:
        yield "the goal's own data" if len(counted) == 1 else "the data of a goal"
    steps = _measured(run, dev)
    if not steps:
        yield "nothing measured beyond noise yet"
        return
    value, error = run.relevance[dev][name]
    noise = f"± {max(error or 0.0, 0.01):.2f}"
    if value < 0:
        yield f"less use to {dev} than the average dataset ({value:.2f} {noise})"
    elif value < _BEST:
        yield f"{value:.2f} {noise} of the best for {dev}"
    elif dev != name:
        yield f"the best for {dev}"
    yield f"measured at step {steps[0]:,}" if len(steps) == 1 else f"measured at steps {steps[0]:,} to {steps[-1]:,}"
    if steps[-1] < run.moments[-1].step:
        yield "within noise since"


def _measured(run: Run, dev: str) -> list[int]:
    """Returns the steps whose updates changed a row of relevance: those of the others were within noise."""
    rows = [(step, [value for value, _ in table.get(dev, {}).values()]) for step, table in run.tables]
    changed = [after[0] for before, after in pairwise(rows) if before[1] != after[1]]
    by_names = all(value in (1.0, OTHERS) for value in rows[0][1])
    return changed if by_names else [rows[0][0], *changed]


def _useless(run: Run) -> Iterator[tuple[str, str]]:
    """Yields datasets of less use than the average to all dev sets, whose gradients agree with none beyond noise."""
    rows = [row for dev, row in run.relevance.items() if run.is_goal(dev)]
    probed = [(moment.groups.get("reward", {}), moment.groups.get("noise", {})) for moment in run.updates]
    for name in run.names:
        best = max((row[name][0] for row in rows if name in row), default=0.0)
        found = [(reward[name], noise[name]) for reward, noise in probed if name in reward and name in noise]
        if best >= 0 or not found:
            continue
        cosine = fmean(reward for reward, _ in found)
        error = math.sqrt(fmean(noise**2 for _, noise in found) / len(found))
        if cosine <= 2 * error:
            yield name, f"relevance {best:.2f}, mean cosine {cosine:.2f} ± {max(error, 0.01):.2f}"


def _given_up(run: Run) -> Iterator[tuple[str, str]]:
    """Yields datasets whose shares fell to a quarter or less, and stayed there."""
    first, *moved = run.moments
    for name, share in first.mixture.items():
        kept = max((moment.step for moment in moved if moment.mixture.get(name, 0.0) > _GIVEN_UP * share), default=0)
        after = [moment.step for moment in moved if moment.step > kept]
        if share and after:
            yield name, f"next to nothing is drawn from it from step {after[0]:,} on"
