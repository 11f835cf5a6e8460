"""Consoles and tables of the command line. Text from data or configs is escaped here. Needs rich (extra: report)."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .escaping import printable

out, err = Console(soft_wrap=True), Console(stderr=True, soft_wrap=True)


def escaped(text: str) -> str:
    """Returns text from data or configs for use in the markup of rich."""
    return escape(printable(text))


def say(text: str, console: Console = out) -> None:
    """Prints a line of plain text."""
    console.print(printable(text), markup=False, highlight=False)


def new_table(headings: Sequence[str], left: Collection[str], title: str | None = None, **column: Any) -> Table:
    """Returns a table without rows.

    headings: of the columns.
    left: the headings of columns with text; the others have numbers.
    title: of the table.
    column: options of all columns.
    """
    table = Table(title=None if title is None else escaped(title))
    for heading in headings:
        table.add_column(escaped(heading), justify="left" if heading in left else "right", **column)
    return table


@contextmanager
def spinner() -> Iterator[Any]:
    """Yields a function that shows a text while something is done."""
    with err.status("") as status:
        yield lambda text: status.update(escaped(text))
