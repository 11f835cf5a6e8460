"""What the application adds to reports of its runs: BLEU and its significance, datasets, weights of sentence pairs.

`multidds.report` makes the page and calls the three functions here. `runs` reads what a run of the application has
beyond the history of its mixture; `tables` and `pair_tables` are data. Only for runs of the application, more is
imported.

>>> from pathlib import Path
>>> from multidds.report import Run
>>> of_a_trainer = Run("checkpoint-40", Path("out/checkpoint-40"), [])
>>> read(of_a_trainer) is of_a_trainer
True
"""

from collections.abc import Sequence

from multidds.report import ReportTable, Run, Section


def read(run: Run) -> Run:
    """Returns a run with its config, validations and scores; the same if it is of another trainer."""
    if not (run.folder / "config.json").exists():
        return run
    from .runs import read_translation_run

    return read_translation_run(run)


def fill(section: Section, runs: Sequence[Run]) -> None:
    """Adds BLEU and the tables of the application to the section about these runs."""
    if any(type(run) is not Run for run in runs):
        from .section import fill_section

        fill_section(section, runs)


def list_of_runs(runs: Sequence[Run]) -> ReportTable:
    """Returns a row for each run of the application."""
    if all(type(run) is Run for run in runs):
        return ReportTable("runs", "The runs")
    from .tables import list_of_runs

    return list_of_runs(runs)
