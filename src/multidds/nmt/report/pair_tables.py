"""The tables of `[examples]`: a histogram of the weights of sentence pairs, and the pairs at its ends.

Pure functions of runs. Texts are cells like any others: the writer of a table escapes them.
"""

import itertools
from collections.abc import Iterator

from multidds.report import ReportTable, number, text

from ..runs.records import Scored
from .runs import Setting


def pair_tables(setting: Setting) -> Iterator[ReportTable]:
    """Yields two tables for each method that weighs sentence pairs, by its first seed and its last record."""
    for method, runs in setting.methods.items():
        if (weighed := runs[0].weighed) is not None:
            yield _histogram(setting, method, weighed)
            yield _ends(setting, method, weighed)


def _histogram(setting: Setting, method: str, record: Scored) -> ReportTable:
    bounds = [f"{edge:g}" for edge in record.edges]
    between = [f"{low} to {high}" for low, high in itertools.pairwise(bounds)]
    bins = [f"below {bounds[0]}", *between, f"{bounds[-1]} and above"]
    table = ReportTable(
        f"{setting.name}.examples.{method}",
        f"{method}: weights of sentence pairs",
        {"dataset": "dataset", "mean": "mean weight", **{name: name for name in bins}},
        notes=[f"Sentence pairs by their last weights, after {record.step} steps: the chance to be trained on."],
    )
    for name, counts in record.histogram.items():
        cells = {name: number(count, ".0f") for name, count in zip(bins, counts, strict=True)}
        table.rows.append({"dataset": text(name), "mean": number(record.weight.get(name)), **cells})
    return table


def _ends(setting: Setting, method: str, record: Scored) -> ReportTable:
    table = ReportTable(
        f"{setting.name}.pairs.{method}",
        f"{method}: the sentence pairs with the highest and lowest weights",
        {key: key for key in ("weight", "dataset", "source", "target")},
        notes=["Texts are made from tokens; characters that the vocabulary does not have are missing."],
    )
    for pair in [*record.highest, *reversed(record.lowest)]:
        texts = {"dataset": text(pair.dataset), "source": text(pair.source), "target": text(pair.target)}
        table.rows.append({"weight": number(pair.weight, ".3g"), **texts})
    return table
