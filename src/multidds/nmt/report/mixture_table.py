"""The table of a mixture: where it began, where it is, and what is known of each dataset. Pure."""

from multidds._base.text import movers

from .mixture_runs import MixtureRun
from .tables import ReportTable, number, text

_LONGEST = 200  # rows


def mixtures(key: str, course: MixtureRun) -> ReportTable:
    """Where a mixture began and where it is: a row for each dataset, those that moved most first."""
    first, last = course.began, course.moments[-1]
    order = movers(last.mixture, dict.fromkeys(last.mixture, 0.0) | first, len(last.mixture))
    columns = {
        "dataset": "dataset",
        "prior": "prior (%)",
        "now": f"step {last.step:,} (%)",
        "change": "change (points)",
    }
    more = {group: group for group in ("reward", "noise", "passes") if last.groups.get(group)}
    table = ReportTable(key, f"{course.label}: the mixture", columns | more)
    for name in order[:_LONGEST]:
        before, now = first.get(name), last.mixture[name]
        moved = None if before is None else 100 * (now - before)
        row = {"dataset": text(name), "prior": number(None if before is None else 100 * before, ".3g")}
        row |= {"now": number(100 * now, ".3g"), "change": number(moved, "+.2f")}
        table.rows.append(row | {group: number(last.groups[group].get(name), ".3g") for group in more})
    if len(order) > _LONGEST:
        table.notes.append(f"The {_LONGEST} of {len(order):,} datasets that moved most.")
    return table
