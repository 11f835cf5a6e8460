"""The tables of a report as data: every table of the paper, and some that it lacks. Pure functions of runs.

A table that cannot be filled (one seed, no baseline) has no rows. Cells are found by the key of their column.
"""

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

from .runs import Run, Setting, differences

SIGNIFICANT = 0.05
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


@cache
def published() -> dict[str, Any]:
    """Returns the numbers of the paper, by setting."""
    loaded: dict[str, Any] = json.loads(files(__package__).joinpath("published.json").read_text(encoding="utf-8"))
    return loaded


def published_for(setting: Setting) -> dict[str, Any]:
    """Returns the numbers of the paper for its own settings, by `[data] setting`; empty for others."""
    facts: dict[str, Any] = published()["settings"].get(setting.runs[0].config.data.setting, {})
    return facts if set(facts.get("sizes", ())) == set(setting.pairs) else {}


def average_bleu(settings: Sequence[Setting]) -> ReportTable:
    table = ReportTable("average-bleu", "Average BLEU by setting")
    shown = [setting for setting in settings if any(setting.scored(label) for label in setting.labels)]
    if not shown:
        return table
    for label in dict.fromkeys(label for setting in settings for label in setting.labels):
        row = {"method": text(label)}
        for setting in shown:
            mean, paper = setting.mean_bleu(label), published_for(setting)
            best = max(setting.mean_bleu(other) or 0.0 for other in setting.labels)
            row[f"bleu/{setting.name}"] = number(mean, bold=mean == best)
            if paper:
                as_paper = setting.of(label)[0].published_as if setting.of(label) else None
                row[f"paper/{setting.name}"] = number(paper["average"].get(as_paper))
        table.rows.append(row)
    for setting in shown:
        table.headings |= {f"bleu/{setting.name}": setting.name, f"paper/{setting.name}": "paper"}
        table.notes += [*_seeds(setting, f"{setting.name}, "), *_weights(setting)]
    table.notes += _signatures([run for setting in shown for run in setting.runs])
    if any(published_for(setting) for setting in shown):
        table.notes.append(f"paper: {published()['source']}; {published()['data']}.")
    return table


def by_language(setting: Setting, compare: Compare) -> ReportTable:
    """Compares the learned mixture and the best baseline by BLEU per language pair, with significance."""
    table = ReportTable(f"languages.{setting.name}", f"{setting.name}: BLEU per language pair")
    baseline, learned = setting.best_baseline, main_method(setting)
    if baseline is None or learned is None or not setting.scored(learned):
        return table
    ours, theirs = setting.scored(learned)[0], setting.scored(baseline)[0]
    table.headings = {"baseline": baseline, "learned": learned}
    paper, papers = published_for(setting), {}
    for key, run in (("baseline paper", theirs), ("learned paper", ours)):
        if paper and run.published_as:
            papers[key] = run.published_as
            table.headings[key] = f"{run.published_as} (paper)"
    compared = compare(ours.folder, theirs.folder)
    tested = not any(math.isnan(both["p"]) for both in compared.values())
    for pair in setting.pairs:
        row = {"pair": text(pair), "training pairs": number(ours.facts["pairs"][pair]["train"]["pairs"], ",d")}
        row |= _compared_cells(compared[pair], tested)
        for key, name in papers.items():
            row[key] = number(paper["bleu"][name][pair], star=pair in paper["significant"].get(name, ()))
        table.rows.append(row)
    means = {key: setting.mean({pair: both[key] for pair, both in compared.items()}) for key in ("against", "bleu")}
    last = {"pair": text("average"), "training pairs": text(""), **_compared_cells(means | {"p": math.nan}, False)}
    last |= {key: Cell(last[key].text, last[key].number) for key in ("baseline", "learned")}  # not bold
    last |= {"p": text("")} if tested else {}
    table.rows.append(last | {key: number(paper["average"][name]) for key, name in papers.items()})
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


def priorities(settings: Sequence[Setting]) -> ReportTable:
    table = ReportTable("priorities", "Which dev sets count: regular, low and high priority (average BLEU)")
    for setting in settings:
        labels = setting.by_priority()
        if labels["low"] or labels["high"]:
            table.rows += _with_paper(setting, {"best baseline": setting.best_baseline, **labels}, "priorities")
    return table


def step_ahead(settings: Sequence[Setting]) -> ReportTable:
    table = ReportTable("step-ahead", "Moving average of gradients against step-ahead (average BLEU)")
    for setting in settings:
        average = setting.learned_with("moving-average")
        ahead = [label for label in setting.labels if setting.of(label)[0].config.mixture.step_ahead]
        if average is None or not ahead:
            continue
        # The one that has most settings in common with the moving average: mixing per batch, for instance.
        run = setting.of(average)[0]
        closest = min(ahead, key=lambda label: (len(differences(run, setting.of(label)[0])), len(label)))
        labels = {"best baseline": setting.best_baseline, "moving average": average, "step-ahead": closest}
        table.rows += _with_paper(setting, labels, "step_ahead")
        table.notes.append(f"{setting.name}: {average} against {closest}.")
    return table


def _with_paper(setting: Setting, labels: Mapping[str, str | None], key: str) -> list[Row]:
    """Returns a row of average BLEU, and one of the paper's for the same methods if it has the setting."""
    means = {name: number(setting.mean_bleu(label) if label else None) for name, label in labels.items()}
    rows = [{"setting": text(setting.name)} | means]
    if paper := published_for(setting).get(key):
        rows.append({"setting": text(f"{setting.name} (paper)")} | {name: number(paper[name]) for name in labels})
    return rows


def over_seeds(settings: Sequence[Setting]) -> ReportTable:
    note = "The variance is the unbiased one, over the seeds of the row."
    table = ReportTable("seeds", "Mean and variance over seeds (average BLEU)", notes=[note])
    for setting in settings:
        for label in setting.labels:
            runs = setting.scored(label)
            values = [run.bleu for run in runs if run.bleu is not None]
            if len(values) < 2:
                continue
            paper = published_for(setting).get("seeds", {}).get(runs[0].published_as or "", {})
            table.rows.append(
                {
                    "setting": text(setting.name),
                    "method": text(label),
                    "mean": number(statistics.fmean(values)),
                    "variance": number(statistics.variance(values), ".3f"),
                    "lowest": number(min(values)),
                    "highest": number(max(values)),
                    "seeds": text(", ".join(str(run.seed) for run in runs)),
                    "mean (paper)": number(paper.get("mean")),
                    "variance (paper)": number(paper.get("variance")),
                }
            )
    return table


def times(settings: Sequence[Setting]) -> ReportTable:
    table = ReportTable("time", "Training time and the cost of balancing")
    for setting in settings:
        for label in setting.labels:
            for run in setting.of(label):
                if run.validations:
                    table.rows.append({"setting": text(setting.name), "method": text(label)} | _times(run))
        if hours := published_for(setting).get("training_hours"):
            table.notes.append(
                f"{setting.name} in the paper, on one GPU: {hours['standard']} hours without and "
                f"{hours['multidds']} with MultiDDS."
            )
    table.notes += [
        "Seconds of wall time, as measured in the runs; runs that shared a machine slow each other.",
        "In steps: of the time that is not updates or validation; the rest is data, logs, checkpoints.",
    ]
    return table


def _times(run: Run) -> Row:
    last = run.validations[-1]
    clock = last.clock
    steps, data = clock["steps"], clock["data"]
    beside = data + clock["saving"] + clock["rest"]
    return {
        "seed": number(run.seed, "d"),
        "steps": number(last.step, ",d"),
        "target tokens": number(last.tokens, ",d"),
        "steps (s)": number(steps, ",.1f"),
        "target tokens/s": number(last.tokens / max(steps + data, 1e-9), ",.0f"),
        "in steps (%)": number(100 * steps / max(steps + beside, 1e-9), ".1f"),
        "updates": number(len(run.updates), ",d"),
        "updates (s)": number(clock["updates"], ",.1f"),
        "updates / steps (%)": number(100 * (run.overhead or 0.0), ".1f"),
        "validation (s)": number(clock["validation"], ",.1f"),
    }


def datasets(setting: Setting) -> ReportTable:
    table = ReportTable(f"datasets.{setting.name}", f"{setting.name}: sentence pairs")
    paper, names = published_for(setting).get("sizes", {}), ("train", "dev", "test")
    for pair in setting.pairs:
        splits = setting.runs[0].facts["pairs"][pair]
        row = {"pair": text(pair)}
        row |= {split: number(splits[split]["pairs"] if split in splits else None, ",d") for split in names}
        row["target tokens"] = number(splits["train"]["target tokens"], ",d")
        row["dropped"] = number(sum(splits["train"]["dropped"].values()), ",d")
        row |= {f"{split} (paper)": number(paper[pair][split], ",d") for split in names if paper}
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


def _seeds(setting: Setting, before: str = "") -> list[str]:
    """Returns a note on the methods with several seeds, if there are some."""
    counts = {label: len(setting.scored(label)) for label in setting.labels}
    several = [f"{before}{label}: {count}" for label, count in counts.items() if count > 1]
    return [f"Means over seeds ({'; '.join(several)})."] if several else []


def _signatures(runs: Sequence[Run], metrics: Sequence[str] = ("bleu",)) -> list[str]:
    scored = [run.scores["signatures"] for run in runs if run.scores is not None]
    return sorted({f"{metric}: {signatures[metric]}" for signatures in scored for metric in metrics})
