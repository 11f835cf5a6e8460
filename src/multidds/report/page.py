"""`multidds report`: the mixtures of runs of any trainer as one page, with its tables and figures as files.

Text from configs and data is escaped by jinja2 and charts.py.
"""

import csv
import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import jinja2
import matplotlib as mpl
from markupsafe import Markup

from multidds._base.errors import UserError
from multidds._base.escaping import csv_text, file_name
from multidds._base.files import LOCK, locked, write_whole
from multidds.history import plot, style

from ..evaluation.scores import scores_of_both
from . import tables
from .comparison import compared as compared_by_loss
from .mixture_runs import MixtureRun, Row, groups_of, rows_of
from .mixture_table import mixture_table
from .pair_tables import pair_tables
from .runs import Setting, find_runs, mixture_run_of, settings_of
from .tables import ReportTable

_SHOWN = 4  # runs of a setting whose mixtures are shown
_TILES = {
    "unlearned": "of the draws moved by the plan",
    "learned": "of the draws moved by learning",
    "signal": "of the evidence is signal, not noise",
}


@dataclass(frozen=True)
class Report:
    """The files of a report: the page; and the tables for the terminal."""

    page: Path
    summaries: list[str]
    by_language: list[ReportTable]


@dataclass
class Section:
    """The part of the page about one setting, or about runs on the same datasets. What is empty is left out."""

    name: str
    about: str = ""  # a line below the name
    summaries: list[str] = field(default_factory=list)
    tiles: list[tuple[str, str]] = field(default_factory=list)  # (value, caption)
    warnings: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    labelled: bool = True  # whether panels need the name of their run
    scores: ReportTable | None = None  # the main result: right behind the first row
    tables: list[ReportTable] = field(default_factory=list)
    files: list[tuple[str, str]] = field(default_factory=list)  # (name of the file, its contents)


def report(folders: Sequence[Path], out: Path, show: Callable[[str], None] = lambda text: None) -> Report:
    """Writes report.html, tables/ and figures/.

    folders: runs, or folders that hold some.
    out: the folder to write into.
    show: called with the present task.
    """
    show("reading")
    runs, mixture_runs = find_runs(folders)
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is not a folder; choose another -o.")
    if (out / "config.json").exists():
        raise UserError(f"{out}: is a run; choose another folder for the report with -o.")
    with locked(out / f"report{LOCK}", f"{out}: another process is writing a report there."):
        return _write(settings_of(runs), mixture_runs, out, show)


def _write(settings: list[Setting], mixture_runs: list[MixtureRun], out: Path, show: Callable[[str], None]) -> Report:
    compare = _comparison()
    sections = []
    for setting in settings:
        show(f"drawing {setting.name}")
        sections.append(_section_of_setting(setting, tables.by_language(setting, compare), out))
    for name, members in groups_of(mixture_runs):
        show(f"drawing {name}")
        sections.append(_section_of_mixture_runs(name, members, out))
    runs, compared = tables.list_of_runs(settings), [section.scores for section in sections if section.scores]
    for table in [*compared, *(table for section in sections for table in section.tables), runs]:
        if table.rows:
            write_whole(out / "tables" / f"{file_name(table.key)}.csv", as_csv(table))
    summaries = [sentence for section in sections for sentence in section.summaries]
    title = sections[0].name if len(sections) == 1 else f"{len(sections)} settings"
    page = _page(title=title, summaries=summaries, sections=sections, runs=runs)
    write_whole(out / "report.html", page)
    return Report(out / "report.html", summaries, compared)


def _section_of_setting(setting: Setting, compared: ReportTable, out: Path) -> Section:
    """Returns the section of runs of ours."""
    chosen = tables.main_method(setting)
    others = [label for label in setting.labels if setting.of(label)[0].learned]
    labels = [label for label in (chosen, setting.best_baseline, *others) if label] or setting.labels[:1]
    shown = [mixture_run_of(setting.of(label)[0]) for label in dict.fromkeys(labels)][:_SHOWN]
    shown = [run for run in shown if run.moments]
    section = Section(
        setting.name,
        setting.about,
        tiles=_tiles(shown[:1], compared, setting.weighted),
        rows=rows_of(shown),
        warnings=_warnings(shown),
    )
    if compared.rows:
        section.scores = compared
        section.summaries = [tables.summary(setting, compared), *tables.findings(setting)]
    else:
        by_loss = compared_by_loss(
            [mixture_run_of(setting.of(label)[0]) for label in dict.fromkeys([chosen, *setting.labels]) if label]
        )
        verdict = by_loss.verdict() if by_loss else []
        moved = [*verdict, *(run.sentence() for run in shown[:2] if run.updates)]
        moved = moved or [f"{len(setting.runs)} runs; no mixture has moved yet."]
        section.summaries = [f"{setting.name}: {sentence}" for sentence in moved]
    section.tables = [table for table in (tables.all_methods(setting), tables.datasets(setting)) if table.rows]
    section.tables += pair_tables(setting)
    for run in shown:
        if run.updates:
            section.files.append(_write_mixture(f"mixture.{setting.name}.{run.label}", run, out))
    return section


def _section_of_mixture_runs(name: str, runs: list[MixtureRun], out: Path) -> Section:
    """Returns the section of runs of other trainers."""
    shown = runs[:_SHOWN]
    section = Section(name, tiles=_tiles(runs[:1]), rows=rows_of(shown), labelled=len(runs) > 1)
    section.summaries = [run.sentence() for run in shown if run.updates] or [run.sentence() for run in shown]
    section.warnings = _warnings(shown)
    if (comparison := compared_by_loss(runs)) is not None:
        section.summaries[:0] = comparison.verdict()
        section.tiles[:0] = comparison.tiles()
        if len(comparison.runs) > 1:
            section.rows.insert(0, comparison.row())
            section.tables.append(comparison.table(f"losses.{name}"))
    for run in runs:
        if not run.moments:
            continue
        key = f"mixture.{run.label}"
        section.files.append(_write_mixture(key, run, out))
        section.tables.append(mixture_table(key, run))
    return section


def _warnings(runs: Sequence[MixtureRun]) -> list[str]:
    return [f"{run.label}: {sentence}" for run in runs for sentence in run.warnings()]


def _write_mixture(key: str, run: MixtureRun, out: Path) -> tuple[str, str]:
    """Writes the figure of a mixture as SVG and PDF, the same bytes every time; returns its name and what it shows."""
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


def _tiles(
    runs: Sequence[MixtureRun], compared: ReportTable | None = None, weighted: bool = False
) -> list[tuple[str, str]]:
    """Returns the few numbers that matter, of the run that a section is about."""
    tiles = []
    if compared is not None and compared.rows:
        average = compared.rows[-1]
        bleu = "BLEU by priority" if weighted else "BLEU"
        tiles += [(average[key].text, f"{bleu}, {compared.columns[key]}") for key in ("learned", "baseline")]
        tiles.append((average["difference"].text, "difference in BLEU"))
    for run in runs:
        if run.updates:
            tiles.append((f"{len(run.updates):,}", f"updates in {run.steps:,} steps"))
            tiles += [(f"{run.facts[fact]:.0%}", caption) for fact, caption in _TILES.items() if fact in run.facts]
    return tiles


def _page(**content: Any) -> str:
    def text(name: str) -> str:
        return files(__package__).joinpath(name).read_text(encoding="utf-8")

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    own = {"style": Markup(text("page.css")), "script": Markup(text("page.js")), "file": file_name}
    return environment.from_string(text("page.html")).render(**own, **content)


def _comparison() -> tables.Compare:
    """Returns the test of significance, or the scores alone if sacreBLEU is not installed (extra: nmt)."""
    try:
        from ..evaluation.significance import compare
    except ImportError:
        return scores_of_both
    return compare


def as_csv(table: ReportTable) -> str:
    """Returns numbers in full, without marks, for programs; `text_of_csv` reads a cell."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(csv_text, table.columns.values()))
    for row in table.rows:
        writer.writerow([csv_text(cell.text) if cell.number is None else repr(cell.number) for cell in row.values()])
    return file.getvalue()
