"""`multidds report`: what a mixture did in runs of any trainer, and every table and figure of the paper, as one page.

runs.py reads our run folders and courses.py the histories of other trainers; tables.py, figures.py (drawn by
drawing.py) and charts.py are the contents; this file writes them. Text from configs and data is escaped by jinja2 and
charts.py in HTML and by `latex` of names.py in LaTeX.
"""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from multidds.history import plot

from ..common.errors import UserError
from ..common.escaping import file_name, latex, printable
from ..common.files import LOCK, locked, write_whole
from ..evaluation.scores import scores_of_both
from . import tables
from .drawing import Figure, saved
from .mixture_runs import MixtureRun, Panel, Row, groups_of, rows_of
from .mixture_table import mixtures
from .pair_tables import example_tables
from .paper_figures import figures_of
from .runs import Setting, course_of, found_in, settings_of
from .tables import ReportTable

MAX_BYTES = 5_000_000  # of the page; charts beyond are left to the files
_SHOWN = 4  # runs of a setting whose mixtures are shown


@dataclass(frozen=True)
class Report:
    """What was written: the page, and the tables for the terminal."""

    page: Path
    summaries: list[str]
    by_language: list[ReportTable]


@dataclass
class Section:
    """What the page says of one setting, or of runs on the same datasets. What is empty is left out."""

    name: str
    tiles: list[tuple[str, str]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    labelled: bool = True  # whether panels need the name of their run
    scores: ReportTable | None = None  # what it comes down to: right behind the first row
    tables: list[ReportTable] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    files: list[tuple[str, str]] = field(default_factory=list)  # (name of the file, what it shows)


def report(folders: Sequence[Path], out: Path, say: Callable[[str], None] = lambda text: None) -> Report:
    """Write report.html, tables/ and figures/ into `out`."""
    say("reading")
    runs, courses = found_in(folders)
    settings = settings_of(runs)
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is not a folder; choose another -o.")
    if (out / "config.json").exists():
        raise UserError(f"{out}: is a run; choose another folder for the report with -o.")
    with locked(out / f"report{LOCK}", f"{out}: another process is writing a report there."):
        return _write(settings, courses, out, say)


def _write(settings: list[Setting], courses: list[MixtureRun], out: Path, say: Callable[[str], None]) -> Report:
    compare = _comparison()
    sections, summaries, compared = [], [], []
    for setting in settings:
        say(f"comparing {setting.name}")
        table = tables.by_language(setting, compare)
        section, sentences = _of_setting(setting, table, out, say)
        sections.append(section)
        summaries += sentences
        compared.append(table)
    for name, members in groups_of(courses):
        say(f"drawing {name}")
        sections.append(_of_courses(name, members, out))
        summaries += [course.sentence() for course in members[:_SHOWN]]
    general = [made for make in (tables.average_bleu, tables.priorities, tables.over_seeds, tables.step_ahead,
                                 tables.times) if (made := make(settings)).rows]  # fmt: skip
    runs = tables.list_of_runs(settings)
    for shown in [*general, *compared, *(table for section in sections for table in section.tables), runs]:
        if shown.rows:
            write_whole(out / "tables" / f"{file_name(shown.key)}.csv", as_csv(shown))
            write_whole(out / "tables" / f"{file_name(shown.key)}.tex", as_latex(shown))
    _keep_small(sections)
    title = sections[0].name if len(sections) == 1 else f"{len(sections)} settings"
    write_whole(
        out / "report.html", _page(title=title, summaries=summaries, sections=sections, general=general, runs=runs)
    )
    return Report(out / "report.html", summaries, compared)


def _of_setting(
    setting: Setting, compared: ReportTable, out: Path, say: Callable[[str], None]
) -> tuple[Section, list[str]]:
    """The section of runs of ours, and the sentences that stand above everything."""
    chosen = tables.main_method(setting)
    order = [label for label in setting.labels if setting.of(label)[0].learned and label != chosen]
    labels = [*([chosen] if chosen else []), *([setting.best_baseline] if setting.best_baseline else []), *order]
    courses = [course_of(setting.of(label)[0]) for label in dict.fromkeys(labels or setting.labels[:1])][:_SHOWN]
    courses = [course for course in courses if course.moments]
    section = Section(setting.name, _tiles(courses[:1], compared), rows_of(courses))
    section.scores = compared if compared.rows else None
    section.tables = [table for table in (tables.all_methods(setting), tables.datasets(setting)) if table.rows]
    section.tables += example_tables(setting)
    for figure in figures_of(setting):
        if figure.canvas is not None:
            say(f"drawing {figure.title}")
            name = file_name(figure.key)
            write_whole(out / "figures" / f"{name}.svg", figure.svg)
            write_whole(out / "figures" / f"{name}.pdf", figure.pdf())
            section.files.append((name, figure.title))
            if figure.chart:
                section.figures.append(figure)
    if compared.rows:
        return section, [tables.summary(setting, compared)]
    moved = [f"{setting.name}: {course.sentence()}" for course in courses[:2] if course.updates]
    return section, moved or [f"{setting.name}: {len(setting.runs)} runs; no mixture has moved yet."]


def _of_courses(name: str, courses: list[MixtureRun], out: Path) -> Section:
    """The section of runs of other trainers."""
    section = Section(name, _tiles(courses[:1], None), rows_of(courses[:_SHOWN]), labelled=len(courses) > 1)
    for course in courses:
        key = f"mixture.{course.label}"
        figure = plot(course.folder)
        for kind in ("svg", "pdf"):
            write_whole(out / "figures" / f"{file_name(key)}.{kind}", saved(figure, kind))
        section.files.append((file_name(key), f"{course.label}: mixture, rewards, dev losses"))
        section.tables.append(mixtures(key, course))
    return section


def _tiles(courses: Sequence[MixtureRun], compared: ReportTable | None) -> list[tuple[str, str]]:
    """The few numbers that matter, of the run that a section is about."""
    tiles = []
    if compared is not None and compared.rows:
        average = compared.rows[-1]
        tiles += [(average[key].text, f"BLEU, {compared.columns[key]}") for key in ("learned", "baseline")]
        tiles.append((average["difference"].text, "difference in BLEU"))
    for course in courses:
        if not course.updates:
            continue
        told = {"drift": "from the prior (total variation)", "unlearned": "of that without rewards",
                "learned": "moved by rewards", "signal": "signal (1: no noise)"}  # fmt: skip
        tiles.append((f"{len(course.updates):,}", f"updates in {course.steps:,} steps"))
        tiles += [(f"{course.facts[fact]:.2f}", what) for fact, what in told.items() if fact in course.facts]
    return tiles


def _keep_small(sections: Iterable[Section]) -> None:
    """Leave out what would make the page larger than MAX_BYTES; the files have it."""
    size, missing = 60_000, Markup('<p class="note">Not on this page, to keep it small; it is among the files.</p>')

    def kept(chart: Markup) -> Markup:
        nonlocal size
        fits = size + len(chart.encode()) < 0.85 * MAX_BYTES
        size += len(chart.encode()) if fits else len(missing)
        return chart if fits else missing

    for section in sections:
        section.rows = [
            replace(row, panels=[Panel(panel.label, kept(panel.chart)) for panel in row.panels]) for row in section.rows
        ]
        section.figures = [replace(figure, chart=kept(figure.chart)) for figure in section.figures]


def _page(**content: Any) -> str:
    def text(name: str) -> str:
        return files(__package__).joinpath(name).read_text(encoding="utf-8")

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    own = {"style": Markup(text("page.css")), "script": Markup(text("page.js")), "file": file_name}
    return environment.from_string(text("page.html")).render(**own, **content)


def _comparison() -> tables.Compare:
    """The test of significance, or the scores alone where sacreBLEU is not installed (extra: nmt)."""
    try:
        from ..evaluation.significance import compare
    except ImportError:
        return scores_of_both
    return compare


def as_csv(table: ReportTable) -> str:
    """Numbers in full, without marks: what a program reads."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(table.columns.values())
    for row in table.rows:
        writer.writerow([cell.text if cell.number is None else repr(cell.number) for cell in table.cells(row)])
    return file.getvalue()


def as_latex(table: ReportTable) -> str:
    """A booktabs tabular, with bold and stars as on the page."""
    numeric = [any(row[key].number is not None for row in table.rows) for key in table.columns]
    shape = "".join("r" if some else "l" for some in numeric)
    lines = [f"% {printable(table.title)}", rf"\begin{{tabular}}{{{shape}}}", r"\toprule",
             " & ".join(map(latex, table.columns.values())) + r" \\", r"\midrule"]  # fmt: skip
    for row in table.rows:
        cells = []
        for cell in table.cells(row):
            shown = latex(cell.text)
            shown = rf"\textbf{{{shown}}}" if cell.bold else shown
            cells.append(shown + ("$^{*}$" if cell.star else ""))
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [f"% {printable(note)}" for note in table.notes]
    return "\n".join(lines) + "\n"
