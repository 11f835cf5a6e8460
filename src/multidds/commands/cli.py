"""The library's commands, those of an application beside them, and the end of every command.

A user's mistake is one line and exit code 2. Heavy imports wait for their command.
"""

import re
import sys
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from .. import __version__
from .._base.errors import UserError
from .._base.escaping import printable
from .mixture_formats import TOOLS, written

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from ..mixture import MixtureTable
    from ..report import ReportTable

    Commands: TypeAlias = "_SubParsersAction[Parser]"

# What torch, threading and CTranslate2 say, in this order.
# The last is what CPython says if C code of a library has no memory left and does not say so.
_NO_MEMORY = re.compile(
    "memory|can't start new thread|Resource temporarily unavailable|returned NULL without setting an exc", re.IGNORECASE
)
_HISTORIES = "of runs, Trainer checkpoints, Lightning logs or saved histories"


class Parser(ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help.")


@dataclass(frozen=True)
class Application:
    """What an application adds to the command line.

    report: the name of a module that is a `multidds.report.Application`.
    plan: returns the table of a recipe, from its path and overrides.
    add_commands: adds commands of its own.
    """

    report: str
    plan: "Callable[[Path, Sequence[str]], MixtureTable]"
    add_commands: "Callable[[Commands], None]"


application: Application | None = None  # of an extra that is installed


def main() -> None:
    """Runs the command line, and turns the errors of users and machines into one line and an exit code."""
    try:
        run(sys.argv[1:])
    except BaseException as error:
        if (line_and_code := explained(error)) is None:
            raise
        notice(line_and_code[0])
        raise SystemExit(line_and_code[1]) from None


def run(arguments: Sequence[str]) -> None:
    """Runs a command with its arguments; options may stand anywhere between them."""
    parser, commands = parsers()
    if not arguments or arguments[0] not in commands.choices:
        parser.parse_args(arguments or ["--help"])  # ends here
    given = vars(commands.choices[arguments[0]].parse_intermixed_args(arguments[1:]))
    given.pop("command")(**given)


def parsers() -> "tuple[Parser, Commands]":
    """Returns the parser of the command line and its commands."""
    parser = Parser("multidds", description="A data mixture that is learned while a model trains.")
    parser.add_argument("--version", action="version", version=f"multidds {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    if application is not None:
        application.add_commands(commands)
    _add_commands(commands)
    return parser, commands


def command(commands: "Commands", function: Callable[..., None]) -> Parser:
    """Adds the command that calls a function, with its name and its docstring; returns its parser."""
    text = (function.__doc__ or "").partition("\n")[0]
    parser = commands.add_parser(function.__name__, help=text, description=text)
    parser.set_defaults(command=function)
    return parser


def add_overrides(parser: ArgumentParser) -> None:
    text = "Override a key of the recipe: --set train.lr=0.001."
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help=text)


def _add_commands(commands: "Commands") -> None:
    made = command(commands, report)
    made.add_argument("runs", nargs="+", type=Path, help=f"Folders {_HISTORIES}; or folders that hold some.")
    text = "The folder for report.html, tables/ and figures/."
    made.add_argument("-o", "--output", type=Path, default=Path("report"), help=text)
    made = command(commands, plan)
    text = "A recipe, prepared; or datasets and their sizes."
    made.add_argument("data", nargs="*", metavar="R.toml | NAME=SIZE", help=text)
    _add_length(made)
    text = "A dataset whose dev set counts, and its weight; several times. Default: all the same."
    made.add_argument("--goal", dest="goals", action="append", default=[], metavar="NAME[=WEIGHT]", help=text)
    add_overrides(made)
    _add_tool(made, "Print the planned mixture as the configuration of a tool")
    made = command(commands, mixture)
    made.add_argument("folder", type=Path, metavar="RUN", help=f"One of the folders {_HISTORIES}.")
    text = "Sizes of the datasets, for tools that take passes or cut datasets."
    made.add_argument("sizes", nargs="*", metavar="NAME=SIZE", help=text)
    text = "The mean over all steps: a mixture counts by the steps drawn from it."
    made.add_argument("--average", action="store_true", help=text)
    made.add_argument("--at", type=int, help="The mixture after this many steps, the update of that step included.")
    text = "All mixtures with their steps, as JSON: what Replay takes."
    made.add_argument("--history", action="store_true", help=text)
    made.add_argument("--format", default=SUPPRESS, type=_refuse_format, help=SUPPRESS)
    _add_length(made)
    _add_tool(made, "The tool that reads it. Default: json")


def _add_length(parser: ArgumentParser) -> None:
    parser.add_argument("--steps", help="Optimizer steps of the whole training.")
    parser.add_argument("--batch", help="Examples of an optimizer step, over all processes.")


def _add_tool(parser: ArgumentParser, text: str) -> None:
    parser.add_argument("--for", dest="tool", metavar="TOOL", help=f"{text}: {TOOLS}.")
    text = "What the tool calls a dataset, e.g. 'data/{name}_text_document'."
    parser.add_argument("--data", dest="template", metavar="TEXT", help=text)


def _refuse_format(tool: str) -> NoReturn:
    raise UserError(f"--format was removed. Use --for {tool}.")


def say(text: str) -> None:
    """Prints a line of plain text."""
    print(printable(text))


def notice(text: str) -> None:
    """Prints a line of plain text on standard error."""
    print("\n".join(map(printable, text.split("\n"))), file=sys.stderr)


def explained(error: BaseException) -> tuple[str, int] | None:
    """Returns (one line, exit code) of an error that is not a bug; None if it may be one."""
    if isinstance(error, UserError):
        return f"multidds: {error}", 2
    if isinstance(error, KeyboardInterrupt):
        return "multidds: stopped.", 130
    if isinstance(error, OSError):  # a full disk, a folder without permission
        where = f"{error.filename}: " if error.filename else ""
        return f"multidds: {where}{error.strerror or error}", 2
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | SystemError) and _NO_MEMORY.search(str(error))
    ):
        return "multidds: out of memory; lower train.batch_tokens or mixture.probe_tokens, or the model.", 2
    return None


def report(runs: Sequence[Path], output: Path) -> None:
    """Make a page from runs of any trainer: mixtures, rewards, what was learned; BLEU, significance, costs."""
    from ..report import report as write

    added: Any = None if application is None else import_module(application.report)
    made = write(runs, output, added)
    for scores in made.scores:
        for line in _printed(scores):
            say(line)
    for sentence in (*made.summaries, str(made.page)):
        say(sentence)


def _printed(table: "ReportTable") -> list[str]:
    """Returns a table as lines, with its marks."""
    rows = [[cell.text + "*" * cell.star for cell in row.values()] for row in table.rows]
    rows.insert(0, list(table.columns.values()))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = [[first.ljust(widths[0]), *map(str.rjust, others, widths[1:])] for first, *others in rows]
    return [table.title, *("  ".join(cells) for cells in aligned)]


def plan(
    data: Sequence[str],
    steps: str | None,
    batch: str | None,
    goals: Sequence[str],
    overrides: Sequence[str],
    tool: str | None,
    template: str | None,
) -> None:
    """Show share and passes of each dataset under several mixtures, before any training."""
    from ..mixture.mixture_table import table_of

    if data and data[0].endswith(".toml"):
        if application is None:
            raise UserError(f"plan: {data[0]}: recipes need an extra: pip install 'multidds[nmt]'.")
        if data[1:] or goals or (steps, batch) != (None, None):
            raise UserError(f"plan: {data[0]}: a recipe has datasets, goals and length; leave the rest out.")
        table = application.plan(Path(data[0]), overrides)
    else:
        try:
            table = table_of(data, steps, batch, goals)
        except ValueError as error:
            raise UserError(str(error)) from None
    if tool is None:
        if template is not None:
            raise UserError("--data: names the datasets of a tool. Give --for, too.")
        for line in str(table).split("\n"):
            say(line)
    else:
        print(written(table.shares["planned"], tool, template, table.sizes, table.draws))


def mixture(
    folder: Path,
    sizes: Sequence[str],
    average: bool,
    at: int | None,
    history: bool,
    steps: str | None,
    batch: str | None,
    tool: str | None,
    template: str | None,
) -> None:
    """Print the mixture of a run as the configuration of another tool; the final one, unless told otherwise."""
    from ..mixture.mixture_table import draws_of, sizes_of
    from . import run_mixture as run

    if average + (at is not None) + history > 1:
        raise UserError("--average, --at and --history: give one of them.")
    if history:
        if tool not in (None, "json") or template is not None:
            raise UserError("--history: is JSON, with the run's own names; leave --for and --data out.")
        print(run.history_json(folder))
        return
    if at is not None:
        chosen = run.mixture_at(folder, at)
    else:
        chosen = run.average_mixture(folder) if average else run.final_mixture(folder)
    try:
        known = sizes_of(sizes, chosen)
        draws = None if steps is None and batch is None else draws_of(steps, batch)
    except ValueError as error:
        raise UserError(str(error)) from None
    print(written(chosen, tool or "json", template, known, draws))
