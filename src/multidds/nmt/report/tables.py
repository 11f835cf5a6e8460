"""The tables of a report as data: scores by language and method, datasets, runs. Pure functions of runs.

A table that cannot be filled (one seed, no baseline) has no rows. Cells are found by the key of their column.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from .runs import Run, Setting

SIGNIFICANT = 0.05
_SPLITS = ("train", "dev", "test")
_GIVEN_UP = 0.25  # of its first share: at this or less, a dataset is drawn next to never
Compare: TypeAlias = Callable[[Path, Path], dict[str, dict[str, Any]]]  # significance.compare


@dataclass(frozen=True)
class Cell:
    text: str
    number: float | None = None  # the value of the text, for sorting and for CSV
    bold: bool = False
    star: bool = False  # significantly better


Row: TypeAlias = dict[str, Cell]  # by the key of the column


@dataclass
class ReportTable:
    """A table.

    key: its name as a file.
    title: the heading on the page.
    headings: {key of a column: heading}, if that is not the key itself.
    rows: all with the same keys, in the order of the columns.
    notes: sentences below the table.
    """

    key: str
    title: str
    headings: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def columns(self) -> dict[str, str]:
        """{key: heading}"""
        return {key: self.headings.get(key, key) for key in (self.rows[0] if self.rows else {})}

    @staticmethod
    def is_average(row: Row) -> bool:
        return "pair" in row and row["pair"].text == "average"


def number(value: float | None, pattern: str = ".2f", **style: bool) -> Cell:
    if value is None or not math.isfinite(value):
        return Cell("-")
    return Cell(format(value, pattern), float(value), **style)


def text(value: object) -> Cell:
    return Cell(str(value))


def by_language(setting: Setting, compare: Compare) -> ReportTable:
    """Compares the learned mixture and the best baseline by BLEU per language pair, with significance."""
    table = ReportTable(f"languages.{setting.name}", f"{setting.name}: BLEU per language pair")
    baseline, learned = setting.best_baseline, main_method(setting)
    if baseline is None or learned is None or not setting.scored(learned):
        return table
    ours, theirs = setting.scored(learned)[0], setting.scored(baseline)[0]
    table.headings = {"baseline": baseline, "learned": learned}
    compared = compare(ours.folder, theirs.folder)
    tested = not any(math.isnan(both["p"]) for both in compared.values())
    for pair in setting.pairs:
        row = {"pair": text(pair), "training pairs": number(ours.facts["pairs"][pair]["train"]["pairs"], ",d")}
        table.rows.append(row | _compared_cells(compared[pair], tested))
    means = {key: setting.mean({pair: both[key] for pair, both in compared.items()}) for key in ("against", "bleu")}
    last = {"pair": text("average"), "training pairs": text(""), **_compared_cells(means | {"p": math.nan}, False)}
    last |= {key: Cell(last[key].text, last[key].number) for key in ("baseline", "learned")}  # not bold
    table.rows.append(last | ({"p": text("")} if tested else {}))
    test = f"*: significantly better, p < {SIGNIFICANT} (paired bootstrap, 1,000 samples)."
    test = test if tested else "A test of significance takes pip install 'multidds[nmt]'."
    chosen = "The baseline is the static method with the best average on these test sets."
    table.notes += [f"Bold: the better of the two. {test} {chosen}", *_weights(setting)]
    if max(len(setting.scored(label)) for label in (baseline, learned)) > 1:
        table.notes.append(f"Of several seeds the first is compared: {ours.seed} and {theirs.seed}.")
    table.notes += _signatures([ours, theirs])
    return table


def _compared_cells(both: Mapping[str, Any], tested: bool) -> Row:
    """Returns the scores of a pair, the better one bold, with a star if it is significantly better."""
    difference = both["bleu"] - both["against"]
    star = both["p"] < SIGNIFICANT
    return {
        "baseline": number(both["against"], bold=difference < 0, star=star and difference < 0),
        "learned": number(both["bleu"], bold=difference > 0, star=star and difference > 0),
        "difference": number(difference, "+.2f"),
        **({"p": number(both["p"], ".3f")} if tested else {}),
    }


def all_methods(setting: Setting) -> ReportTable:
    table = ReportTable(f"methods.{setting.name}", f"{setting.name}: BLEU per language pair, all methods")
    labels = [label for label in setting.labels if setting.scored(label)]
    if set(labels) <= {setting.best_baseline, main_method(setting)}:
        return table
    means = {
        label: {
            pair: statistics.fmean(run.bleu_of(pair) or 0.0 for run in setting.scored(label)) for pair in setting.pairs
        }
        for label in labels
    }
    table.headings = {f"bleu/{label}": label for label in labels}
    for pair in setting.pairs:
        best = max(of[pair] for of in means.values())
        cells = {f"bleu/{label}": number(of[pair], bold=of[pair] == best) for label, of in means.items()}
        table.rows.append({"pair": text(pair)} | cells)
    cells = {f"bleu/{label}": number(setting.mean(of)) for label, of in means.items()}
    table.rows.append({"pair": text("average")} | cells)
    seeds = _seeds(setting) or ["One seed each."]
    table.notes = ["Bold: the highest; no test of significance.", *seeds, *_weights(setting)]
    return table


def datasets(setting: Setting) -> ReportTable:
    table = ReportTable(f"datasets.{setting.name}", f"{setting.name}: sentence pairs")
    for pair in setting.pairs:
        splits = setting.runs[0].facts["pairs"][pair]
        row = {"pair": text(pair)}
        row |= {split: number(splits[split]["pairs"] if split in splits else None, ",d") for split in _SPLITS}
        row["target tokens"] = number(splits["train"]["target tokens"], ",d")
        row["dropped"] = number(sum(splits["train"]["dropped"].values()), ",d")
        table.rows.append(row)
    return table


def list_of_runs(settings: Sequence[Setting]) -> ReportTable:
    table = ReportTable("runs", "The runs")
    for setting in settings:
        for run in sorted([*setting.runs, *setting.repeated], key=lambda run: str(run.folder)):
            best = run.best
            means = best.means if best else {}
            table.rows.append(
                {
                    "folder": text(run.folder),
                    "setting": text(setting.name),
                    "method": text(run.label),
                    "seed": number(run.seed, "d"),
                    "steps": number(run.steps, ",d"),
                    "ended": text(run.finished or "not yet"),
                    "at step": number(best.step if best else None, ",d"),
                    "dev loss": number(means.get("dev_loss"), ".4f"),
                    "expected accuracy": number(means.get("expected_accuracy"), ".4f"),
                    "soft BLEU": number(means.get("soft_bleu"), ".4f"),
                    "updates (% of steps)": number(None if run.overhead is None else 100 * run.overhead, ".1f"),
                    "BLEU": number(run.bleu),
                    "chrF": number(run.mean("chrf")),
                }
            )
        for run in setting.repeated:
            kept = next(other for other in setting.of(run.label) if other.seed == run.seed)
            why = "is finished and " if kept.finished and not run.finished else ""
            table.notes.append(
                f"{run.folder} repeats the method and seed of {kept.folder}, which {why}stands for both in the other "
                "tables."
            )
    table.notes += _signatures([run for setting in settings for run in setting.runs], ("bleu", "chrf"))
    return table


def main_method(setting: Setting) -> str | None:
    """Returns the learned mixture that a report is about: the default's if there is one, else MultiDDS-S."""
    for method in ("learned", "multidds-s", "multidds", "moving-average"):
        for priority in ("own", "regular") if setting.weighted else ("regular", "own"):
            if (label := setting.learned_with(method, priority)) is not None:
                return label
    return next((label for label in setting.labels if setting.of(label)[0].learned), None)


def summary(setting: Setting, table: ReportTable) -> str:
    """Returns one sentence on the table of `by_language`, which has rows."""
    *pairs, average = table.rows
    counted = [row for row in pairs if setting.weights[row["pair"].text] > 0]
    tested = "p" in table.columns
    better, worse = (
        sum(row[key].star if tested else row[key].bold for row in counted) for key in ("learned", "baseline")
    )
    ours = f"{table.columns['learned']} {average['learned'].text}"
    weighted = f", mean BLEU, weighted by the priority: {ours}"
    which = "language pairs" if len(counted) == len(pairs) else "that count" + "s" * (len(counted) == 1)
    return (
        f"{setting.name}{weighted if setting.weighted else f': {ours} BLEU on average'}, "
        f"{table.columns['baseline']} {average['baseline'].text} ({average['difference'].text}); "
        f"{'significantly ' if tested else ''}better in {better} and worse in {worse} of {len(counted)} {which}."
    )


def findings(setting: Setting) -> list[str]:
    """Returns what the learned mixture found out, and how near it is to what someone who knows the data would do."""
    learned, baseline, by_hand = main_method(setting), setting.best_baseline, setting.best_by_hand
    sentences = [] if learned is None else _given_up(setting.of(learned)[0])
    if learned is None or baseline is None or by_hand is None or not setting.scored(learned):
        return sentences
    ours, theirs, aim = (setting.mean_bleu(label) or 0.0 for label in (learned, baseline, by_hand))
    if aim <= theirs:
        return [*sentences, f"{by_hand}, by hand: {aim:.2f} BLEU, no better than {baseline}."]
    way = (ours - theirs) / (aim - theirs)
    found = f"{way:.0%} of the way from {baseline} to it" if way > 0 else f"no nearer to it than {baseline}"
    found = found if way < 1 else "ahead of it, without being told"
    return [*sentences, f"{by_hand}, by hand: {aim:.2f} BLEU; {learned} is {found}."]


def _given_up(run: Run) -> list[str]:
    """Returns a sentence about datasets whose share fell to a quarter or less, and stayed there."""
    (_, start), *moved = run.mixtures
    steps: dict[int, list[str]] = {}
    for name, share in start.items():
        if share == 0:  # left out from the start
            continue
        kept = [step for step, mixture in moved if mixture[name] > _GIVEN_UP * share]
        last_kept = max(kept, default=0)
        if after := [step for step, _ in moved if step > last_kept]:
            steps.setdefault(after[0], []).append(name)
    if not steps:
        return []
    parts = [f"{' and '.join(names)} from step {step:,} on" for step, names in sorted(steps.items())]
    return [f"{run.label} draws next to nothing from {', from '.join(parts)}: by their gradients they do not help."]


def _weights(setting: Setting) -> list[str]:
    """Returns a note on averages that are weighted, or would be if runs did not disagree."""
    if setting.weighted:
        counted = ", ".join(f"{name} {weight:g}" for name, weight in setting.weights.items() if weight)
        return [f"Averages are weighted by the priority: {counted}."]
    if any(run.config.weighted for run in setting.runs):
        return ["Averages count all language pairs alike: the runs have different priorities."]
    return []


def _seeds(setting: Setting) -> list[str]:
    """Returns a note on the methods with several seeds, if there are some."""
    counts = {label: len(setting.scored(label)) for label in setting.labels}
    several = [f"{label}: {count}" for label, count in counts.items() if count > 1]
    return [f"Means over seeds ({'; '.join(several)})."] if several else []


def _signatures(runs: Sequence[Run], metrics: Sequence[str] = ("bleu",)) -> list[str]:
    scored = [run.scores["signatures"] for run in runs if run.scores is not None]
    return sorted({f"{metric}: {signatures[metric]}" for signatures in scored for metric in metrics})
