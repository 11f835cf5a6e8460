"""What `[examples]` did in the runs of a setting: how much sentence pairs count, and which ones count most and least.

Pure functions of runs. Texts are cells like any others: whoever writes a table escapes them.
"""

import itertools
from collections.abc import Iterator

from ..runs.records import ExampleFacts, Scored
from .runs import Run, Setting
from .tables import Cell, ReportTable, number, text


def example_tables(setting: Setting) -> Iterator[ReportTable]:
    """Two tables for each method that weighs sentence pairs, by its first seed and its last record."""
    for label in setting.labels:
        run = setting.of(label)[0]
        if records := [record for record in run.records if isinstance(record, Scored)]:
            yield _histogram(setting, run, records[-1])
            yield _ends(setting, run, records[-1])


def _histogram(setting: Setting, run: Run, record: Scored) -> ReportTable:
    bounds = [f"{edge:g}" for edge in record.edges]
    headings = [f"below {bounds[0]}", *(f"{a} to {b}" for a, b in itertools.pairwise(bounds)),
                f"{bounds[-1]} and above"]  # fmt: skip
    table = ReportTable(
        f"{setting.name}.examples.{run.label}",
        f"{run.label}: how much sentence pairs count",
        {"dataset": "dataset", "mean": "mean weight", **{heading: heading for heading in headings}},
        notes=[f"Sentence pairs by their last weights, after {record.step} steps: the chance to be trained on."],
    )
    for name, counts in record.histogram.items():
        cells = {heading: number(count, ".0f") for heading, count in zip(headings, counts, strict=True)}
        table.rows.append({"dataset": text(name), "mean": number(record.weight.get(name)), **cells})
    return table


def _ends(setting: Setting, run: Run, record: Scored) -> ReportTable:
    table = ReportTable(
        f"{setting.name}.pairs.{run.label}",
        f"{run.label}: the sentence pairs that count most and least",
        {"weight": "weight", "dataset": "dataset", "source": "source", "target": "target"},
        notes=["As their tokens tell; characters that the vocabulary does not have are missing."],
    )
    table.rows = [_row(example) for example in [*record.highest, *reversed(record.lowest)]]
    return table


def _row(example: ExampleFacts) -> dict[str, Cell]:
    texts = {"dataset": example.dataset, "source": example.source, "target": example.target}
    return {"weight": number(example.weight, ".3g"), **{key: text(value) for key, value in texts.items()}}
