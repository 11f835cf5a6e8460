"""`multidds report`: the mixtures of runs of any trainer as one page, with its tables and figures as files.

Text from data is escaped by jinja2 and charts.py. An application adds what it knows of its own runs.
"""

import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol, cast

import jinja2
from markupsafe import Markup

from .._base.errors import UserError
from .._base.escaping import file_name
from .._base.files import LOCK, locked, write_whole
from ..history import plot, style
from .comparison import compared
from .explanation import droppable, explained, unnamed_goal
from .rows import ChartRow, rows_of
from .run import Run, by_method, find_runs, groups_of
from .table import ReportTable, as_csv, mixture_table

_SHOWN = 4  # methods whose mixtures are shown
_TILES = {
    "unlearned": "of the draws moved by the plan",
    "learned": "of the draws moved by learning",
    "signal": "of the evidence is signal, not noise",
}


@dataclass(frozen=True)
class Report:
    """The files of a report: the page; and the sentences and tables for the terminal."""

    page: Path
    summaries: list[str]
    scores: list[ReportTable]


@dataclass
class Section:
    """The part of the page about runs on the same datasets. What is empty is left out."""

    name: str
    about: str = ""  # a line below the name
    summaries: list[str] = field(default_factory=list)
    tiles: list[tuple[str, str]] = field(default_factory=list)  # (value, caption)
    warnings: list[str] = field(default_factory=list)
    shares: list[str] = field(default_factory=list)  # a heading, and why each dataset has its share
    notes: list[str] = field(default_factory=list)  # which runs there are, and what would help the reader
    rows: list[ChartRow] = field(default_factory=list)
    labelled: bool = True  # whether panels need the name of their run
    scores: ReportTable | None = None  # the main result: right behind the first row
    tables: list[ReportTable] = field(default_factory=list)
    files: list[tuple[str, str]] = field(default_factory=list)  # (name of the file, its contents)


class Application(Protocol):
    """What an application adds to reports of its own runs."""

    def read(self, run: Run, /) -> Run:
        """Returns a run with all that the application knows of it; the same if it is of another trainer."""

    def fill(self, section: Section, runs: Sequence[Run], /) -> None:
        """Adds scores and tables to the section about these runs."""

    def list_of_runs(self, runs: Sequence[Run], /) -> ReportTable:
        """Returns the table at the end of the page."""


def report(folders: Sequence[Path], out: Path, application: Application | None = None) -> Report:
    """Writes report.html, tables/ and figures/.

    folders: runs, or folders that hold some.
    out: the folder to write into.
    application: adds to the sections about its own runs.
    """
    runs = find_runs(folders, application.read) if application else find_runs(folders)
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is not a folder; choose another -o.")
    if out.resolve() in {run.folder.resolve() for run in runs}:
        raise UserError(f"{out}: is a run; choose another folder for the report with -o.")
    with locked(out / f"report{LOCK}", f"{out}: another process is writing a report there."):
        return _write(runs, out, application)


def _write(runs: list[Run], out: Path, application: Application | None) -> Report:
    sections = []
    for name, members in groups_of(run for run in runs if not run.empty):
        sections.append(_section(name, members, out))
        if application is not None:
            application.fill(sections[-1], members)
    if empty := [str(run.folder) for run in runs if run.empty]:
        sections[-1].notes.append(f"Left out, without a mixture or an evaluation yet: {', '.join(empty)}.")
    overview = application.list_of_runs(runs) if application else ReportTable("runs", "The runs")
    scores = [section.scores for section in sections if section.scores]
    for table in [*scores, *(table for section in sections for table in section.tables), overview]:
        if table.rows:
            write_whole(out / "tables" / f"{file_name(table.key)}.csv", as_csv(table))
    summaries = [sentence for section in sections for sentence in section.summaries]
    printed = [sentence for section in sections for sentence in (*section.summaries, *section.shares, *section.notes)]
    title = sections[0].name if len(sections) == 1 else f"{len(sections)} settings"
    write_whole(out / "report.html", _page(title=title, summaries=summaries, sections=sections, runs=overview))
    return Report(out / "report.html", printed, scores)


def _section(name: str, runs: list[Run], out: Path) -> Section:
    """Returns all that is known of runs without an application. Of several seeds the first is drawn."""
    firsts = [of[0] for of in by_method(runs).values()]
    firsts.sort(key=runs.index)
    shown = firsts[:_SHOWN]
    section = Section(name, tiles=tiles_of(shown[0]), rows=rows_of(shown), labelled=len(firsts) > 1)
    section.summaries = [run.sentence() for run in shown if run.updates] or [run.sentence() for run in shown]
    section.warnings = [f"{run.label}: {sentence}" for run in shown for sentence in run.warnings()]
    section.shares = explained(shown[0])
    section.notes = [*filter(None, (droppable(shown[0]), unnamed_goal(shown[0]))), *_about_runs(runs)]
    if (comparison := compared(runs)) is not None:
        section.summaries[:0] = comparison.verdict()
        section.tiles[:0] = comparison.tiles()
        if len(comparison.methods) > 1:
            if any(len(one.line) > 1 for one in comparison.methods):
                section.rows.insert(0, comparison.row())
            section.tables.append(comparison.table(f"losses.{name}"))
    setting = runs[0].setting
    if setting:
        section.summaries = [f"{name}: {sentence}" for sentence in section.summaries]
    for run in firsts:
        if run.updates:
            key = ".".join(part for part in ("mixture", setting, run.label) if part)
            section.files.append(_write_mixture(key, run, out))
            section.tables.append(mixture_table(key, run))
    return section


def _about_runs(runs: Sequence[Run]) -> list[str]:
    """Returns the names of all runs, if there are several, and of those without an evaluation."""
    if len(runs) == 1:
        return []
    seeds = {of[0].title: [run.seed for run in of] for of in by_method(runs).values()}
    named = [f"{name} (seeds {', '.join(map(str, of))})" if len(of) > 1 else name for name, of in seeds.items()]
    first = " Of several seeds the first is drawn." if len(seeds) < len(runs) else ""
    sentences = [f"{len(runs)} runs: {', '.join(named)}.{first}"]
    missing = [run.label for run in runs if not run.evaluations]
    return [*sentences, f"Without an evaluation yet: {', '.join(missing)}."] if missing else sentences


def _write_mixture(key: str, run: Run, out: Path) -> tuple[str, str]:
    """Writes the figure of a mixture as SVG and PDF, the same bytes every time; returns its name and what it shows."""
    import matplotlib as mpl

    dates: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    canvas, settings = plot(run.folder), cast(Any, style("#1c1c1e"))
    for kind, metadata in dates.items():
        file = io.BytesIO()
        with mpl.rc_context(settings), warnings.catch_warnings():
            # Letters without a font are boxes in a PDF; in an SVG the reader's fonts show them.
            warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")
            canvas.savefig(file, format=kind, metadata=metadata)
        write_whole(out / "figures" / f"{file_name(key)}.{kind}", file.getvalue())
    return file_name(key), f"{run.label}: mixture, rewards, dev losses"


def tiles_of(run: Run) -> list[tuple[str, str]]:
    """Returns the few numbers that matter, of the run that a section is about."""
    if not run.updates:
        return []
    facts = [(f"{run.facts[fact]:.0%}", caption) for fact, caption in _TILES.items() if fact in run.facts]
    return [(f"{len(run.updates):,}", f"updates in {run.steps:,} steps"), *facts]


def _page(**content: Any) -> str:
    def text(name: str) -> str:
        return files(__package__).joinpath(name).read_text(encoding="utf-8")

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    own = {"style": Markup(text("page.css")), "script": Markup(text("page.js")), "file": file_name}
    return environment.from_string(text("page.html")).render(**own, **content)
