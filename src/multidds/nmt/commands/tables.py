"""The tables that the commands print."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from multidds._base.terminal import escaped, new_table


def prepared_table(folder: Path, pairs: Mapping[str, Any]) -> Table:
    splits = ("train", "dev", "test")
    table = new_table(["pair", *splits, "dropped"], ["pair", "dropped"], str(folder))
    for name, counts in pairs.items():
        dropped = Counter(counts["train"]["dropped"]) + Counter(counts["dev"]["dropped"])
        cells = [f"{counts[split]['pairs']:,}" if split in counts else "-" for split in splits]
        table.add_row(escaped(name), *cells, ", ".join(f"{n} {reason}" for reason, n in dropped.items()) or "-")
    return table


def scores_table(
    run: Path, scores: Mapping[str, Any], against: Path | None, compared: Mapping[str, Any], weighted: bool
) -> Table:
    """Returns the scores of a run and, if it is compared, those of another run with the significance.

    weighted: whether the average is one by the priority.
    """
    beside = [] if against is None else [str(against), "p"]
    table = new_table(["pair", "sentences", "BLEU", "chrF", *beside], ["pair"], str(run))
    for name, pair in scores["pairs"].items():
        bleu, others = f"{pair['bleu']:.2f}", []
        if name in compared:
            both = compared[name]
            star = "*" if both["p"] < 0.05 else ""
            bleu += star if both["bleu"] > both["against"] else ""
            others = [f"{both['against']:.2f}" + (star if both["against"] > both["bleu"] else ""), f"{both['p']:.3f}"]
        table.add_row(escaped(name), f"{pair['sentences']:,}", bleu, f"{pair['chrf']:.2f}", *others)
    table.add_section()
    average = "average, by priority" if weighted else "average"
    table.add_row(average, "", f"{scores['average']['bleu']:.2f}", f"{scores['average']['chrf']:.2f}")
    return table
