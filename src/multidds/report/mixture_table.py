"""The table of a mixture: its start, its end, and the numbers of each dataset. Pure."""

from multidds._base.text import movers

from .mixture_runs import MixtureRun
from .tables import ReportTable, number, text

_MOST_ROWS = 200


def mixture_table(key: str, run: MixtureRun) -> ReportTable:
    """Returns a row for each dataset, those that moved most first."""
    start, last = run.start, run.moments[-1]
    order = movers(last.mixture, dict.fromkeys(last.mixture, 0.0) | start, len(last.mixture))
    columns = {
        "dataset": "dataset",
        "prior": "prior (%)",
        "now": f"step {last.step:,} (%)",
        "change": "change (points)",
    }
    groups = {group: group for group in ("reward", "noise", "passes") if last.groups.get(group)}
    table = ReportTable(key, f"{run.label}: the mixture", columns | groups)
    for name in order[:_MOST_ROWS]:
        before, now = start.get(name), 100 * last.mixture[name]
        before = None if before is None else 100 * before
        row = {"dataset": text(name), "prior": number(before, ".3g"), "now": number(now, ".3g")}
        row["change"] = number(None if before is None else now - before, "+.2f")
        table.rows.append(row | {group: number(last.groups[group].get(name), ".3g") for group in groups})
    if len(order) > _MOST_ROWS:
        table.notes.append(f"The {_MOST_ROWS} of {len(order):,} datasets that moved most.")
    return table
