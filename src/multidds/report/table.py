"""Tables of a report as data. Cells are found by the key of their column; writers of tables escape them."""

import csv
import io
import math
from dataclasses import dataclass, field
from typing import TypeAlias

from .._base.escaping import csv_text
from .._base.text import movers
from .run import Run

_MOST_ROWS = 200  # of a mixture


@dataclass(frozen=True)
class Cell:
    text: str
    number: float | None = None  # the value of the text, for sorting and for CSV
    bold: bool = False
    star: bool = False  # significantly better


Row: TypeAlias = dict[str, Cell]  # by the key of the column


@dataclass
class ReportTable:
    """A table.

    key: its name as a file.
    title: the heading on the page.
    headings: {key of a column: heading}, if that is not the key itself.
    rows: all with the same keys, in the order of the columns; none if the table cannot be filled.
    notes: sentences below the table.
    """

    key: str
    title: str
    headings: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def columns(self) -> dict[str, str]:
        """{key: heading}"""
        return {key: self.headings.get(key, key) for key in (self.rows[0] if self.rows else {})}

    @staticmethod
    def is_average(row: Row) -> bool:
        return next(iter(row.values())).text == "average"


def number(value: float | None, pattern: str = ".2f", **style: bool) -> Cell:
    if value is None or not math.isfinite(value):
        return Cell("-")
    return Cell(format(value, pattern), float(value), **style)


def text(value: object) -> Cell:
    return Cell(str(value))


def as_csv(table: ReportTable) -> str:
    """Returns numbers in full, without marks, for programs; `text_of_csv` reads a cell."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(csv_text, table.columns.values()))
    for row in table.rows:
        writer.writerow([csv_text(cell.text) if cell.number is None else repr(cell.number) for cell in row.values()])
    return file.getvalue()


def mixture_table(key: str, run: Run) -> ReportTable:
    """Returns the start of a mixture, its end, and the numbers of each dataset, those that moved most first.

    Rewards of the last update are left out if the relevance by all updates is estimated.
    """
    start, last = run.start, run.moments[-1]
    order = movers(last.mixture, dict.fromkeys(last.mixture, 0.0) | start, len(last.mixture))
    headings = {"prior": "prior (%)", "now": f"step {last.step:,} (%)", "change": "change (points)"}
    groups = [group for group in ("reward", "noise", "passes") if last.groups.get(group)]
    if run.relevance:
        groups = [group for group in groups if group == "passes"]
    table = ReportTable(key, f"{run.label}: the mixture", headings)
    for name in order[:_MOST_ROWS]:
        before, now = start.get(name), 100 * last.mixture[name]
        before = None if before is None else 100 * before
        row = {"dataset": text(name), "prior": number(before, ".3g"), "now": number(now, ".3g")}
        row["change"] = number(None if before is None else now - before, "+.2f")
        table.rows.append(row | {group: number(last.groups[group].get(name), ".3g") for group in groups})
    if len(order) > _MOST_ROWS:
        table.notes.append(f"The {_MOST_ROWS} of {len(order):,} datasets that moved most.")
    return table
