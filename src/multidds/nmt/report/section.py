"""The part of a report about runs of the application: scores in front, its tables behind them."""

from collections.abc import Sequence

from multidds.report import ReportTable, Run, Section, tiles_of

from ..evaluation.significance import compare
from . import tables
from .pair_tables import pair_tables
from .runs import Setting, TranslationRun


def fill_section(section: Section, runs: Sequence[Run]) -> None:
    setting = Setting(section.name, [run for run in runs if isinstance(run, TranslationRun)])
    section.about = setting.about
    scores = tables.by_language(setting, compare)
    if scores.rows:
        section.scores = scores
        section.summaries = [tables.summary(setting, scores), *tables.findings(setting)]
        bleu = "BLEU by priority" if setting.weighted else "BLEU"
        section.tiles = [*_tiles(scores, bleu), *tiles_of(runs[0])]
    missing = [run.label for run in runs if isinstance(run, TranslationRun) and run.scores is None]
    if missing and scores.rows:
        section.notes.append(f"Not evaluated on the test sets: {', '.join(missing)}.")
    own = [tables.all_methods(setting), tables.datasets(setting), *pair_tables(setting)]
    section.tables[:0] = [table for table in own if table.rows]


def _tiles(scores: ReportTable, bleu: str) -> list[tuple[str, str]]:
    average = scores.rows[-1]
    both = [(average[key].text, f"{bleu}, {scores.columns[key]}") for key in ("learned", "baseline")]
    return [*both, (average["difference"].text, "difference in BLEU")]
