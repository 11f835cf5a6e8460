"""`multidds report`: every table and figure of the paper from run folders, as one page and as files.

runs.py reads the folders, tables.py and figures.py (drawn by drawing.py) are the contents, this file writes them. Text
from configs and data is escaped by jinja2 in HTML and by `latex` of names.py in LaTeX.
"""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import jinja2
from markupsafe import Markup

from ..errors import UserError
from ..files import LOCK, locked, write_whole
from ..names import file_name, latex, printable
from ..significance import compare
from . import tables
from .figures import figures_of
from .runs import Setting, find_runs, settings_of
from .tables import ReportTable

MAX_BYTES = 5_000_000  # of the page; figures beyond are linked instead of shown


@dataclass(frozen=True)
class Report:
    """What was written: the page, and the tables for the terminal."""

    page: Path
    summaries: list[str]
    by_language: list[ReportTable]


def report(folders: Sequence[Path], out: Path, say: Callable[[str], None] = lambda text: None) -> Report:
    """Write report.html, tables/ and figures/ into `out`."""
    say("reading")
    settings = settings_of(find_runs(folders))
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is not a folder; choose another -o.")
    if (out / "config.json").exists():
        raise UserError(f"{out}: is a run; choose another folder for the report with -o.")
    with locked(out / f"report{LOCK}", f"{out}: another process is writing a report there."):
        return _write(settings, out, say)


def _write(settings: list[Setting], out: Path, say: Callable[[str], None]) -> Report:
    compared = []
    for setting in settings:
        say(f"comparing {setting.name}")
        compared.append(tables.by_language(setting, compare))
    summaries = [tables.summary(setting, table) for setting, table in zip(settings, compared, strict=True)]
    general = [make(settings) for make in (tables.average_bleu, tables.priorities, tables.over_seeds,
                                           tables.step_ahead, tables.times)]  # fmt: skip
    per_setting = [
        (setting, [table, tables.all_methods(setting), tables.datasets(setting)], list(figures_of(setting)))
        for setting, table in zip(settings, compared, strict=True)
    ]
    runs = tables.list_of_runs(settings)
    for table in [*general, *(table for _, some, _ in per_setting for table in some), runs]:
        if table.rows:
            write_whole(out / "tables" / f"{file_name(table.key)}.csv", as_csv(table))
            write_whole(out / "tables" / f"{file_name(table.key)}.tex", as_latex(table))
    shown, size = {}, 0
    for figure in (figure for _, _, some in per_setting for figure in some if figure.canvas is not None):
        say(f"drawing {figure.title}")
        name = file_name(figure.key)
        write_whole(out / "figures" / f"{name}.svg", figure.svg)
        write_whole(out / "figures" / f"{name}.pdf", figure.pdf())
        body = figure.inline()
        if size + len(body) < 0.85 * MAX_BYTES:
            shown[figure.key] = Markup(body)
            size += len(body)
    template = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    page = template.from_string(files(__package__).joinpath("page.html").read_text(encoding="utf-8")).render(
        summaries=summaries, general=general, per_setting=per_setting, runs=runs, shown=shown, file=file_name
    )
    write_whole(out / "report.html", page)
    return Report(out / "report.html", summaries, compared)


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
