"""The line about a training that begins: its mixture, its updates and where to see them; and what can be gained."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from .._base.text import bytes_text, passes_text, percent, short
from .pace import Budget, Pace

SAVED = "updates are in balancer.history"
_MOST_NAMES = 3
_MOST_COST = 0.5  # of the time of training, for advice


def start_line(
    shares: Mapping[str, float],
    pace: Pace,
    passes: Mapping[str, float],
    look: str,
    *,
    planned: bool,
    done: int = 0,
) -> str:
    """Returns `plan: licences 33% (8 passes), python 27%, 3 more · 11 updates, about 9% of the time · LOOK`.

    shares: {dataset: probability} of the steps that come next.
    passes: {dataset: passes of the whole training under these shares}; empty if they are not known.
    look: where to see the updates later.
    planned: whether the shares are a plan.
    done: steps before this line, of a training that is resumed.
    """
    largest = sorted(shares, key=lambda name: (-shares[name], name))[:_MOST_NAMES]
    parts = [f"{short(name)} {percent(shares[name])[0]}%" for name in largest]
    if not done and largest[0] in passes:
        parts[0] += f" ({passes_text(passes[largest[0]])} passes)"
    if others := len(shares) - len(largest):
        parts.append(f"{others:,} more")
    mixture = ", ".join(parts)
    if done:
        left = "" if math.isinf(pace.updates) else f"; {_counted(pace.left(done))} to come"
        return f"resumed at step {done:,}; {mixture}{left}"
    if not pace.updates:
        return f"{'plan' if planned else 'mixture'}: {mixture} · no update, so nothing is learned"
    time = f"about {percent(pace.share)[0]}% of the time"
    updates = distances(pace) if math.isinf(pace.updates) else _counted(pace.updates)
    return f"{'plan' if planned else 'mixture'}: {mixture} · {updates}, {time} · {look}"


def warnings(
    pace: Pace,
    every: int | Budget,
    steps: int | None,
    missing: list[str],
    shared: Mapping[str, str],
    room: float,
) -> Iterator[str]:
    """Yields what a user can gain by acting, with the smallest change.

    missing: the facts that a plan needs and that are not known.
    shared: {dev set: dataset} of one object.
    room: the sum of the largest shares that the limits of passes leave.
    """
    if missing:
        words = ", ".join(missing[:-1]) + " and " * (len(missing) > 1) + missing[-1]
        verb = "is" if missing == ["examples_per_step"] else "are"
        yield f"There is no plan, because {words} {verb} not known. Give {words}."
    for dev, dataset in shared.items():
        yield (
            f"The dev set {dev!r} and the dataset {dataset!r} are the same data, so its gradients show memory, not "
            "use. Give held-out data."
        )
    if steps is not None and room < 1:
        fewer = f"Train for {round(steps * room):,} steps, or raise it"
        yield f"No mixture keeps max_passes for {steps:,} steps, so all datasets exceed it by one factor. {fewer}."
    if steps is not None and (advice := _more_updates(pace, every, steps)):
        yield advice


def _more_updates(pace: Pace, every: int | Budget, steps: int) -> str | None:
    """Returns advice for a training with too few updates to learn from, if there is any that costs at most half."""
    least = every.at_least if isinstance(every, Budget) else Budget().at_least
    if pace.updates >= least:
        return None
    apart = max(steps // (least + 1), 1)
    cost = pace.passes * pace.cost / apart
    few = f"{steps:,} step{'' if steps == 1 else 's'} have {_counted(pace.updates)}"
    if cost > _MOST_COST:
        return f"{few}, too few to learn from; {least} would take {cost:.0%} of the time. Use smaller probe batches."
    if isinstance(every, Budget):
        return f"{few}, too few to learn from. Set every=Budget(at_most={math.ceil(100 * cost) / 100:g}) for {least}."
    return f"{few}, too few to learn from. Set every={apart} for {steps // apart}."


def details(
    shares: Mapping[str, float],
    passes: Mapping[str, float],
    dev: Mapping[str, float],
    pace: Pace,
    memory: Mapping[str, float],
) -> str:
    """Returns lines with all that the start line leaves out.

    dev: {dev set: weight}.
    memory: {what: bytes} of the updates.
    """
    lines = ["mixture:"]
    for name in sorted(shares, key=lambda name: (-shares[name], name)):
        times = f", {passes_text(passes[name])} passes" if name in passes else ""
        lines.append(f"  {short(name)} {percent(shares[name])[0]}%{times}")
    lines += ["dev sets:", *(f"  {short(name)} {percent(weight)[0]}%" for name, weight in dev.items())]
    part = "" if pace.part is None else f", of {pace.part[0]:,} datasets and {pace.part[1]:,} dev sets at a time"
    batches = f"{pace.batches:g} probe batch{'' if pace.batches == 1 else 'es'} of each set"
    lines.append(f"{distances(pace)}{part}: {batches}, about {percent(pace.share)[0]}% of the time")
    lines += [f"memory: {bytes_text(size)} for {what}" for what, size in memory.items() if size]
    return "\n".join(lines)


def shared_data(train: Mapping[str, Any], dev: Mapping[str, Any]) -> dict[str, str]:
    """Returns {dev set: dataset} of those that are one object."""
    datasets = {id(_data(source)): name for name, source in train.items()}
    found = {name: datasets.get(id(_data(source))) for name, source in dev.items()}
    return {name: dataset for name, dataset in found.items() if dataset is not None}


def _counted(updates: float) -> str:
    return f"{updates:,.0f} update{'' if updates == 1 else 's'}"


def distances(pace: Pace) -> str:
    """Returns when updates happen, in words."""
    if pace.at:
        return f"{_counted(len(pace.at))} at growing distances, the first at step {pace.at[0]:,}"
    return "an update at every step" if pace.every == 1 else f"an update every {pace.every:,} steps"


def _data(source: Any) -> Any:
    """Returns the dataset of a loader or of `batches_of`; other sources are their own."""
    return getattr(source, "dataset", source)
