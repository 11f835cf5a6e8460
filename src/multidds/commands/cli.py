"""The library's commands, one screen each, and the end of every command.

A user's mistake is one line and exit code 2. Heavy imports wait for their command.
"""

import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from .. import __version__
from .._base.errors import UserError
from .._base.terminal import err, escaped, new_table, out, say, spinner

if TYPE_CHECKING:
    from ..mixture import MixtureTable
    from ..report import Cell, ReportTable

app = typer.Typer(
    name="multidds",
    help="A data mixture that is learned while a model trains: see what it did, plan it, take it elsewhere.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
application: str | None = None  # a module, as `multidds.report.Application`; an extra sets both
recipe_table: "Callable[[Path, Sequence[str]], MixtureTable] | None" = None

Set = Annotated[list[str], typer.Option("--set", help="Override a key: --set train.lr=0.001.", show_default=False)]
# What torch, threading and CTranslate2 say, in this order.
# The last is what CPython says if C code of a library has no memory left and does not say so.
_NO_MEMORY = re.compile(
    "memory|can't start new thread|Resource temporarily unavailable|returned NULL without setting an exc", re.IGNORECASE
)
_HISTORIES = "of runs, Trainer checkpoints, Lightning logs or saved histories"


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", help="Show the version, and stop.")] = False,
) -> None:
    """A learned data mixture: see what it did, plan it, take it elsewhere; with [nmt], train translation models."""
    if version:
        out.print(f"multidds {__version__}")
        raise typer.Exit


def main() -> None:
    """Runs the command line, and turns the errors of users and machines into one line and an exit code."""
    try:
        app()
    except BaseException as error:
        if (line_and_code := explained(error)) is None:
            raise
        notice(line_and_code[0])
        raise SystemExit(line_and_code[1]) from None


def notice(text: str) -> None:
    """Prints a line on standard error."""
    try:
        say(text, err)
    except MemoryError:  # rich imports more for some texts
        print(text, file=sys.stderr)


def explained(error: BaseException) -> tuple[str, int] | None:
    """Returns (one line, exit code) of an error that is not a bug; None if it may be one, or a plain exit."""
    if isinstance(error, UserError):
        return f"multidds: {error}", 2
    if _is_interrupt(error):
        return "multidds: stopped.", 130
    if isinstance(error, OSError):  # a full disk, a folder without permission
        where = f"{error.filename}: " if error.filename else ""
        return f"multidds: {where}{error.strerror or error}", 2
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | SystemError) and _NO_MEMORY.search(str(error))
    ):
        return "multidds: out of memory; lower train.batch_tokens or mixture.probe_tokens, or the model.", 2
    return None


def _is_interrupt(error: BaseException) -> bool:
    """Returns whether Ctrl-C is the cause of an end: typer makes an exit code of it, without a word."""
    cause: BaseException | None = error if isinstance(error, SystemExit | KeyboardInterrupt) else None
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


@app.command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(help=f"Folders {_HISTORIES}; or folders that hold some.", show_default=False)
    ],
    to: Annotated[
        Path, typer.Option("-o", "--output", help="The folder for report.html, tables/ and figures/.")
    ] = Path("report"),
) -> None:
    """Make a page from runs of any trainer: mixtures, rewards, what was learned; BLEU, significance, costs."""
    from ..report import report as write

    with spinner() as show:
        made = write(runs, to, show, import_module(application) if application else None)
    for scores in made.scores:
        out.print(_printed(scores))
    for sentence in (*made.summaries, str(made.page)):
        say(sentence)


def _printed(table: "ReportTable") -> Table:
    """Returns a table of a report for the terminal. The average stands apart."""
    first, *others = table.columns.values()
    printed = new_table([first, *others], [first], table.title, overflow="fold")
    for row in table.rows:
        if table.is_average(row):
            printed.add_section()
        printed.add_row(*map(_marked, row.values()))
    return printed


def _marked(cell: "Cell") -> str:
    text = escaped(cell.text)
    return (f"[b]{text}[/b]" if cell.bold else text) + ("*" if cell.star else "")


@app.command()
def plan(
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="R.toml | NAME=SIZE...", help="A recipe, prepared; or datasets and their sizes.", show_default=False
        ),
    ] = None,
    draws: Annotated[
        str | None, typer.Option(help="Examples that the whole training draws; a recipe says it.", show_default=False)
    ] = None,
    set_: Set = [],  # noqa: B006
) -> None:
    """Show share and passes of each dataset under several mixtures, before any training."""
    from ..mixture.mixture_table import table_of

    if data and data[0].endswith(".toml"):
        if recipe_table is None:
            raise UserError(f"plan: {data[0]}: recipes need an extra: pip install 'multidds[nmt]'.")
        if data[1:] or draws is not None:
            raise UserError(f"plan: {data[0]}: a recipe has datasets and length; leave the rest out.")
        table = recipe_table(Path(data[0]), set_)
    else:
        try:
            table = table_of(data or [], draws)
        except ValueError as error:
            raise UserError(str(error)) from None
    for line in str(table).split("\n"):
        say(line)


@app.command()
def mixture(
    run: Annotated[Path, typer.Argument(help=f"One of the folders {_HISTORIES}.", show_default=False)],
    average: Annotated[
        bool, typer.Option("--average", help="The mean over all steps: a mixture counts by the steps drawn from it.")
    ] = False,
    at: Annotated[
        int | None, typer.Option(help="The mixture after this many steps, the update of that step included.")
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="All mixtures with their steps, as JSON: what Replay takes.")
    ] = False,
    format_: Annotated[
        str, typer.Option("--format", help="json, fairseq, hf, megatron, streaming or lhotse.")
    ] = "json",
    data: Annotated[
        str | None,
        typer.Option(help="What the other trainer calls a dataset, e.g. 'data/{name}_text_document'.", metavar="TEXT"),
    ] = None,
) -> None:
    """Print the mixture of a run as the weights that another trainer takes; the final one, unless told otherwise."""
    from . import mixture_formats as formats

    if average + (at is not None) + history > 1:
        raise UserError("--average, --at and --history: give one of them.")
    if history:
        if format_ != "json" or data is not None:
            raise UserError("--history: is JSON, with the run's own names; leave --format and --data out.")
        print(formats.history_json(run))
        return
    if at is not None:
        chosen = formats.mixture_at(run, at)
    else:
        chosen = formats.average_mixture(run) if average else formats.final_mixture(run)
    print(formats.written(chosen, format_, data))
