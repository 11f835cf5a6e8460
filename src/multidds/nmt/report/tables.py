"""The tables of a report, as data: every table of the paper, and some that it lacks. Pure functions of runs.

A table that cannot be filled (one seed, no baseline) has no rows and a note that says what is missing.
"""

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from .runs import Run, Setting, differences

SIGNIFICANT = 0.05
Compare = Callable[[Path, Path], dict[str, dict[str, Any]]]  # evaluate.compare


@dataclass(frozen=True)
class Cell:
    text: str
    number: float | None = None  # what the text shows, for sorting and for CSV
    bold: bool = False
    star: bool = False  # significantly better


@dataclass
class Table:
    key: str  # its name as a file
    title: str
    columns: list[str] = field(default_factory=list)
    rows: list[list[Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def number(value: float | None, pattern: str = ".2f", **style: bool) -> Cell:
    if value is None or not math.isfinite(value):
        return Cell("-")
    return Cell(format(value, pattern), float(value), **style)


def text(value: object) -> Cell:
    return Cell(str(value))


@cache
def published() -> dict[str, Any]:
    """The paper's own figures, by setting."""
    loaded: dict[str, Any] = json.loads(files(__package__).joinpath("published.json").read_text(encoding="utf-8"))
    return loaded


def published_for(setting: Setting) -> dict[str, Any]:
    """The paper's figures for a setting that is one of its own, by [data] setting of the resolved config."""
    facts: dict[str, Any] = published()["settings"].get(setting.runs[0].config.data.setting, {})
    return facts if set(facts.get("sizes", ())) == set(setting.pairs) else {}


def average_bleu(settings: Sequence[Setting]) -> Table:
    table = Table("average-bleu", "Average BLEU by setting", ["method"])
    labels = list(dict.fromkeys(label for setting in settings for label in setting.labels))
    shown = [setting for setting in settings if any(setting.scored(label) for label in setting.labels)]
    if not shown:
        table.notes.append("No run has been scored yet: 'multidds evaluate RUN' does it.")
        return table
    for setting in shown:
        table.columns += [setting.name] + (["paper"] if published_for(setting) else [])
    best = {
        setting.name: max(mean for label in setting.labels if (mean := setting.mean_bleu(label)) is not None)
        for setting in shown
    }
    for label in labels:
        row = [text(label)]
        for setting in shown:
            mean = setting.mean_bleu(label)
            row.append(number(mean, bold=mean == best[setting.name]))
            if facts := published_for(setting):
                as_paper = setting.of(label)[0].published_as if setting.of(label) else None
                row.append(number(facts["average"].get(as_paper)))
        table.rows.append(row)
    several = {f"{setting.name}, {label}: {len(setting.scored(label))}" for setting in shown
               for label in setting.labels if len(setting.scored(label)) > 1}  # fmt: skip
    if several:
        table.notes.append(f"Means over seeds ({'; '.join(sorted(several))}).")
    table.notes += _signatures([run for setting in shown for run in setting.runs])
    if any(published_for(setting) for setting in shown):
        table.notes.append(f"paper: {published()['source']}; {published()['data']}.")
    return table


def by_language(setting: Setting, compare: Compare) -> Table:
    """BLEU per language pair of MultiDDS-S (or another learned mixture) and the best baseline, with significance."""
    table = Table(f"languages.{setting.name}", f"{setting.name}: BLEU per language pair")
    baseline, learned = setting.best_baseline, main_method(setting)
    if baseline is None or learned is None or not setting.scored(learned):
        missing = "a scored static run" if baseline is None else "a scored run with a learned mixture"
        table.notes.append(f"There is nothing to compare: {missing} is missing.")
        return table
    ours, theirs = setting.scored(learned)[0], setting.scored(baseline)[0]
    facts = published_for(setting)
    papers = [run.published_as for run in (theirs, ours)] if facts else []
    table.columns = ["pair", "training pairs", baseline, learned, "difference", "p"]
    table.columns += [f"{name} (paper)" for name in papers if name]
    compared = compare(ours.folder, theirs.folder)
    for pair in setting.pairs:
        both = compared[pair]
        difference = both["bleu"] - both["against"]
        star = both["p"] < SIGNIFICANT
        row = [
            text(pair),
            number(ours.facts["pairs"][pair]["train"]["pairs"], ",d"),
            number(both["against"], bold=difference < 0, star=star and difference < 0),
            number(both["bleu"], bold=difference > 0, star=star and difference > 0),
            number(difference, "+.2f"),
            number(both["p"], ".3f"),
        ]
        for name in papers:
            if name:
                star = pair in facts["significant"].get(name, ())
                row.append(number(facts["bleu"][name][pair], star=star))
        table.rows.append(row)
    means = [sum(compared[pair][key] for pair in setting.pairs) / len(setting.pairs) for key in ("against", "bleu")]
    last = [
        text("average"),
        text(""),
        number(means[0]),
        number(means[1]),
        number(means[1] - means[0], "+.2f"),
        text(""),
    ]
    table.rows.append(last + [number(facts["average"][name]) for name in papers if name])
    table.notes.append(
        f"Bold: the better of the two. *: significantly better, p < {SIGNIFICANT} (paired bootstrap, 1,000 samples). "
        "The baseline is the static method with the best average on these test sets."
    )
    if max(len(setting.scored(label)) for label in (baseline, learned)) > 1:
        table.notes.append(f"Of several seeds the first is compared: {ours.seed} and {theirs.seed}.")
    table.notes += _signatures([ours, theirs])
    return table


def all_methods(setting: Setting) -> Table:
    table = Table(f"methods.{setting.name}", f"{setting.name}: BLEU per language pair, all methods")
    labels = [label for label in setting.labels if setting.scored(label)]
    if not labels:
        table.notes.append("No run has been scored yet.")
        return table
    if set(labels) <= {setting.best_baseline, main_method(setting)}:
        table.notes.append("There are no others than the two above.")
        return table
    table.columns = ["pair", *labels]
    means: dict[str, list[float]] = {label: [] for label in labels}
    for pair in setting.pairs:
        for label in labels:
            values = [value for run in setting.scored(label) if (value := run.bleu_of(pair)) is not None]
            means[label].append(statistics.fmean(values))
        best = max(means[label][-1] for label in labels)
        table.rows.append([text(pair), *(number(means[label][-1], bold=means[label][-1] == best) for label in labels)])
    table.rows.append([text("average"), *(number(statistics.fmean(means[label])) for label in labels)])
    table.notes.append("Bold: the highest; no test of significance. " + _seeds(setting, labels))
    return table


def priorities(settings: Sequence[Setting]) -> Table:
    table = Table("priorities", "Which dev sets count: regular, low and high priority (average BLEU)")
    names = ["best baseline", "regular", "low", "high"]
    for setting in settings:
        found = {name: setting.learned_with("multidds-s", name) for name in names[1:]}
        if not (found["low"] or found["high"]):
            continue
        table.rows += _with_paper(setting, [setting.best_baseline, *found.values()], names, "priorities")
    if table.rows:
        table.columns = ["setting", *names]
    else:
        table.notes.append("No run has the priority low or high ([mixture] priority).")
    return table


def over_seeds(settings: Sequence[Setting]) -> Table:
    table = Table("seeds", "Mean and variance over seeds (average BLEU)")
    for setting in settings:
        for label in setting.labels:
            runs = setting.scored(label)
            values = [run.bleu for run in runs if run.bleu is not None]
            if len(values) < 2:
                continue
            cells = [number(statistics.fmean(values)), number(statistics.variance(values), ".3f")]
            spread = [number(min(values)), number(max(values)), text(", ".join(str(run.seed) for run in runs))]
            facts = published_for(setting).get("seeds", {}).get(runs[0].published_as or "", {})
            paper = [number(facts.get("mean")), number(facts.get("variance"))]
            table.rows.append([text(setting.name), text(label), *cells, *spread, *paper])
    if table.rows:
        table.columns = ["setting", "method", "mean", "variance", "lowest", "highest", "seeds",
                         "mean (paper)", "variance (paper)"]  # fmt: skip
        table.notes.append("The variance is the unbiased one, over the seeds of the row.")
    else:
        table.notes.append("No method has been run with more than one seed.")
    return table


def step_ahead(settings: Sequence[Setting]) -> Table:
    table = Table("step-ahead", "Moving average of gradients against step-ahead (average BLEU)")
    names = ["best baseline", "moving average", "step-ahead"]
    for setting in settings:
        average = setting.learned_with("moving-average")
        ahead = [label for label in setting.labels if setting.of(label)[0].config.mixture.step_ahead]
        if average is None or not ahead:
            continue
        # The one that has most settings in common with the moving average: mixing per batch, for instance.
        run = setting.of(average)[0]
        closest = min(ahead, key=lambda label: (len(differences(run, setting.of(label)[0])), len(label)))
        table.rows += _with_paper(setting, [setting.best_baseline, average, closest], names, "step_ahead")
        table.notes.append(f"{setting.name}: {average} against {closest}.")
    if table.rows:
        table.columns = ["setting", *names]
    else:
        table.notes.append("No setting has both a run with moving averages and one with step-ahead.")
    return table


def times(settings: Sequence[Setting]) -> Table:
    table = Table("time", "Training time and the cost of balancing")
    for setting in settings:
        for label in setting.labels:
            for run in setting.of(label):
                if not run.validations:
                    continue
                last = run.validations[-1]
                clock = last["clock"]
                cells = [number(last["step"], ",d"), number(last["tokens"], ",d"), number(clock["steps"], ",.1f")]
                beside = sum(clock.get(name, 0.0) for name in ("data", "saving", "rest"))
                cells += [number(last["tokens"] / max(clock["steps"] + clock.get("data", 0.0), 1e-9), ",.0f")]
                cells += [number(100 * clock["steps"] / max(clock["steps"] + beside, 1e-9), ".1f")]
                cells += [number(len(run.updates), ",d"), number(clock["updates"], ",.1f")]
                cells += [number(100 * (run.overhead or 0.0), ".1f"), number(clock["validation"], ",.1f")]
                table.rows.append([text(setting.name), text(label), number(run.seed, "d"), *cells])
        if hours := published_for(setting).get("training_hours"):
            table.notes.append(
                f"{setting.name} in the paper, on one GPU: {hours['standard']} hours without and "
                f"{hours['multidds']} with MultiDDS."
            )
    if table.rows:
        table.columns = ["setting", "method", "seed", "steps", "target tokens", "steps (s)", "target tokens/s",
                         "in steps (%)", "updates", "updates (s)", "updates / steps (%)", "validation (s)"]  # fmt: skip
        table.notes.append("Seconds of wall time, as measured in the runs; runs that shared a machine slow each other.")
        table.notes.append(
            "In steps: of the time that is not updates or validation; the rest is data, logs, checkpoints."
        )
    else:
        table.notes.append("No run has been validated yet.")
    return table


def datasets(setting: Setting) -> Table:
    run = setting.runs[0]
    facts = published_for(setting).get("sizes", {})
    table = Table(f"datasets.{setting.name}", f"{setting.name}: sentence pairs")
    table.columns = ["pair", "train", "dev", "test", "target tokens", "dropped"]
    table.columns += [f"{split} (paper)" for split in ("train", "dev", "test") if facts]
    for pair in setting.pairs:
        splits = run.facts["pairs"][pair]
        sizes = [
            number(splits[split]["pairs"] if split in splits else None, ",d") for split in ("train", "dev", "test")
        ]
        dropped = sum(splits["train"]["dropped"].values())
        row = [text(pair), *sizes, number(splits["train"]["target tokens"], ",d"), number(dropped, ",d")]
        row += [number(facts[pair][split], ",d") for split in ("train", "dev", "test") if facts]
        table.rows.append(row)
    return table


def list_of_runs(settings: Sequence[Setting]) -> Table:
    table = Table("runs", "The runs")
    table.columns = [
        "folder",
        "setting",
        "method",
        "seed",
        "steps",
        "ended",
        "at step",
        "dev loss",
        "expected accuracy",
        "soft BLEU",
        "BLEU",
        "chrF",
    ]
    for setting in settings:
        for run in sorted([*setting.runs, *setting.repeated], key=lambda run: str(run.folder)):
            best = run.best
            chrf = None if run.scores is None else run.scores["average"]["chrf"]
            table.rows.append([
                text(run.folder), text(setting.name), text(run.label), number(run.seed, "d"), number(run.steps, ",d"),
                text(run.finished or "not yet"), number(best["step"] if best else None, ",d"),
                *(number(best["means"][key] if best else None, ".4f")
                  for key in ("dev_loss", "expected_accuracy", "soft_bleu")),
                number(run.bleu), number(chrf),
            ])  # fmt: skip
        for run in setting.repeated:
            table.notes.append(
                f"{run.folder} repeats another run's method and seed and is left out of the other tables."
            )
    table.notes += _signatures([run for setting in settings for run in setting.runs], ("bleu", "chrf"))
    return table


def main_method(setting: Setting) -> str | None:
    """The learned mixture that a report is about: MultiDDS-S where there is one."""
    for method in ("multidds-s", "multidds", "moving-average", "constant"):
        if (label := setting.learned_with(method)) is not None:
            return label
    learned = [label for label in setting.labels if setting.of(label)[0].learned]
    return learned[0] if learned else None


def summary(setting: Setting, table: Table) -> str:
    """One sentence on what came out, from the table of `by_language`."""
    if not table.rows:
        return f"{setting.name}: {table.notes[0]}"
    *pairs, average = table.rows
    better, worse = (sum(row[column].star for row in pairs) for column in (3, 2))
    return (
        f"{setting.name}: {table.columns[3]} {average[3].text} BLEU on average, {table.columns[2]} {average[2].text} "
        f"({average[4].text}); significantly better in {better} and worse in {worse} of {len(pairs)} language pairs."
    )


def _with_paper(setting: Setting, labels: Sequence[str | None], names: Sequence[str], key: str) -> list[list[Cell]]:
    """A row of average BLEU, and one of the paper's figures for the same methods where it has the setting."""
    rows = [[text(setting.name), *(number(setting.mean_bleu(label) if label else None) for label in labels)]]
    if facts := published_for(setting).get(key):
        rows.append([text(f"{setting.name} (paper)"), *(number(facts[name]) for name in names)])
    return rows


def _seeds(setting: Setting, labels: Sequence[str]) -> str:
    several = [f"{label}: {len(setting.scored(label))}" for label in labels if len(setting.scored(label)) > 1]
    return f"Means over seeds ({'; '.join(several)})." if several else "One seed each."


def _signatures(runs: Sequence[Run], metrics: Sequence[str] = ("bleu",)) -> list[str]:
    found = {
        f"{metric}: {run.scores['signatures'][metric]}" for run in runs if run.scores is not None for metric in metrics
    }
    return sorted(found)
