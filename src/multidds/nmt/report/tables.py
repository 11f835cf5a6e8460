"""The tables of a report, as data: every table of the paper, and some that it lacks. Pure functions of runs.

A table that cannot be filled (one seed, no baseline) has no rows and a note that says what is missing. Cells are found
by the key of their column; the heading is what readers see.
"""

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from .runs import Run, Setting, differences

SIGNIFICANT = 0.05
Compare = Callable[[Path, Path], dict[str, dict[str, Any]]]  # significance.compare


@dataclass(frozen=True)
class Cell:
    text: str
    number: float | None = None  # what the text shows, for sorting and for CSV
    bold: bool = False
    star: bool = False  # significantly better


Row = dict[str, Cell]  # by the key of the column


@dataclass
class ReportTable:
    key: str  # its name as a file
    title: str
    columns: dict[str, str] = field(default_factory=dict)  # key: heading
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def cells(self, row: Row) -> list[Cell]:
        """A row in the order of the columns."""
        return [row[key] for key in self.columns]

    @staticmethod
    def is_average(row: Row) -> bool:
        return "pair" in row and row["pair"].text == "average"


def named(*headings: str) -> dict[str, str]:
    """Columns whose headings are their keys."""
    return {heading: heading for heading in headings}


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


def average_bleu(settings: Sequence[Setting]) -> ReportTable:
    table = ReportTable("average-bleu", "Average BLEU by setting", named("method"))
    labels = list(dict.fromkeys(label for setting in settings for label in setting.labels))
    shown = [setting for setting in settings if any(setting.scored(label) for label in setting.labels)]
    if not shown:
        table.notes.append("No run has been scored yet: 'multidds evaluate RUN' does it.")
        return table
    for setting in shown:
        table.columns[f"bleu/{setting.name}"] = setting.name
        if published_for(setting):
            table.columns[f"paper/{setting.name}"] = "paper"
    best = {
        setting.name: max(mean for label in setting.labels if (mean := setting.mean_bleu(label)) is not None)
        for setting in shown
    }
    for label in labels:
        row = {"method": text(label)}
        for setting in shown:
            mean = setting.mean_bleu(label)
            row[f"bleu/{setting.name}"] = number(mean, bold=mean == best[setting.name])
            if facts := published_for(setting):
                as_paper = setting.of(label)[0].published_as if setting.of(label) else None
                row[f"paper/{setting.name}"] = number(facts["average"].get(as_paper))
        table.rows.append(row)
    several = {f"{setting.name}, {label}: {len(setting.scored(label))}" for setting in shown
               for label in setting.labels if len(setting.scored(label)) > 1}  # fmt: skip
    if several:
        table.notes.append(f"Means over seeds ({'; '.join(sorted(several))}).")
    table.notes += _signatures([run for setting in shown for run in setting.runs])
    if any(published_for(setting) for setting in shown):
        table.notes.append(f"paper: {published()['source']}; {published()['data']}.")
    return table


def by_language(setting: Setting, compare: Compare) -> ReportTable:
    """BLEU per language pair of the learned mixture and the best baseline, with significance."""
    table = ReportTable(f"languages.{setting.name}", f"{setting.name}: BLEU per language pair")
    baseline, learned = setting.best_baseline, main_method(setting)
    if baseline is None or learned is None or not setting.scored(learned):
        missing = "a scored static run" if baseline is None else "a scored run with a learned mixture"
        table.notes.append(f"There is nothing to compare: {missing} is missing.")
        return table
    ours, theirs = setting.scored(learned)[0], setting.scored(baseline)[0]
    table.columns = named("pair", "training pairs") | {"baseline": baseline, "learned": learned}
    table.columns |= named("difference", "p")
    facts = published_for(setting)
    papers = {f"{which} paper": run.published_as for which, run in (("baseline", theirs), ("learned", ours))
              if facts and run.published_as}  # fmt: skip
    table.columns |= {key: f"{name} (paper)" for key, name in papers.items()}
    compared = compare(ours.folder, theirs.folder)
    tested = not any(math.isnan(both["p"]) for both in compared.values())
    if not tested:
        del table.columns["p"]
    for pair in setting.pairs:
        row = {"pair": text(pair), "training pairs": number(ours.facts["pairs"][pair]["train"]["pairs"], ",d")}
        row |= _compared_cells(compared[pair])
        for key, name in papers.items():
            row[key] = number(facts["bleu"][name][pair], star=pair in facts["significant"].get(name, ()))
        table.rows.append(row)
    means = {
        key: sum(compared[pair][key] for pair in setting.pairs) / len(setting.pairs) for key in ("against", "bleu")
    }
    last = {"pair": text("average"), "training pairs": text(""), "p": text(""), "baseline": number(means["against"])}
    last |= {"learned": number(means["bleu"]), "difference": number(means["bleu"] - means["against"], "+.2f")}
    table.rows.append(last | {key: number(facts["average"][name]) for key, name in papers.items()})
    test = f"*: significantly better, p < {SIGNIFICANT} (paired bootstrap, 1,000 samples)."
    test = test if tested else "A test of significance takes pip install 'multidds[nmt]'."
    chosen = "The baseline is the static method with the best average on these test sets."
    table.notes.append(f"Bold: the better of the two. {test} {chosen}")
    if max(len(setting.scored(label)) for label in (baseline, learned)) > 1:
        table.notes.append(f"Of several seeds the first is compared: {ours.seed} and {theirs.seed}.")
    table.notes += _signatures([ours, theirs])
    return table


def _compared_cells(both: dict[str, Any]) -> Row:
    """The scores of a pair, the better one bold, with a star where it is significantly better."""
    difference = both["bleu"] - both["against"]
    star = both["p"] < SIGNIFICANT
    return {
        "baseline": number(both["against"], bold=difference < 0, star=star and difference < 0),
        "learned": number(both["bleu"], bold=difference > 0, star=star and difference > 0),
        "difference": number(difference, "+.2f"),
        "p": number(both["p"], ".3f"),
    }


def all_methods(setting: Setting) -> ReportTable:
    table = ReportTable(f"methods.{setting.name}", f"{setting.name}: BLEU per language pair, all methods")
    labels = [label for label in setting.labels if setting.scored(label)]
    if not labels:
        table.notes.append("No run has been scored yet.")
        return table
    if set(labels) <= {setting.best_baseline, main_method(setting)}:
        table.notes.append("There are no others than the two above.")
        return table
    table.columns = named("pair") | {f"bleu/{label}": label for label in labels}
    means: dict[str, list[float]] = {label: [] for label in labels}
    for pair in setting.pairs:
        for label in labels:
            values = [value for run in setting.scored(label) if (value := run.bleu_of(pair)) is not None]
            means[label].append(statistics.fmean(values))
        best = max(means[label][-1] for label in labels)
        cells = {f"bleu/{label}": number(means[label][-1], bold=means[label][-1] == best) for label in labels}
        table.rows.append({"pair": text(pair)} | cells)
    cells = {f"bleu/{label}": number(statistics.fmean(means[label])) for label in labels}
    table.rows.append({"pair": text("average")} | cells)
    table.notes.append("Bold: the highest; no test of significance. " + _seeds(setting, labels))
    return table


def priorities(settings: Sequence[Setting]) -> ReportTable:
    table = ReportTable("priorities", "Which dev sets count: regular, low and high priority (average BLEU)")
    names = ["best baseline", "regular", "low", "high"]
    for setting in settings:
        found = setting.by_priority()
        if not (found["low"] or found["high"]):
            continue
        labels = dict(zip(names, [setting.best_baseline, *found.values()], strict=True))
        table.rows += _with_paper(setting, labels, "priorities")
    if table.rows:
        table.columns = named("setting", *names)
    else:
        table.notes.append("No run has the priority low or high ([mixture] priority).")
    return table


def over_seeds(settings: Sequence[Setting]) -> ReportTable:
    table = ReportTable("seeds", "Mean and variance over seeds (average BLEU)")
    for setting in settings:
        for label in setting.labels:
            runs = setting.scored(label)
            values = [run.bleu for run in runs if run.bleu is not None]
            if len(values) < 2:
                continue
            facts = published_for(setting).get("seeds", {}).get(runs[0].published_as or "", {})
            table.rows.append({
                "setting": text(setting.name), "method": text(label), "mean": number(statistics.fmean(values)),
                "variance": number(statistics.variance(values), ".3f"), "lowest": number(min(values)),
                "highest": number(max(values)), "seeds": text(", ".join(str(run.seed) for run in runs)),
                "mean (paper)": number(facts.get("mean")), "variance (paper)": number(facts.get("variance")),
            })  # fmt: skip
    if table.rows:
        table.columns = named(*table.rows[0])
        table.notes.append("The variance is the unbiased one, over the seeds of the row.")
    else:
        table.notes.append("No method has been run with more than one seed.")
    return table


def step_ahead(settings: Sequence[Setting]) -> ReportTable:
    table = ReportTable("step-ahead", "Moving average of gradients against step-ahead (average BLEU)")
    names = ["best baseline", "moving average", "step-ahead"]
    for setting in settings:
        average = setting.learned_with("moving-average")
        ahead = [label for label in setting.labels if setting.of(label)[0].config.mixture.step_ahead]
        if average is None or not ahead:
            continue
        # The one that has most settings in common with the moving average: mixing per batch, for instance.
        run = setting.of(average)[0]
        closest = min(ahead, key=lambda label: (len(differences(run, setting.of(label)[0])), len(label)))
        labels = dict(zip(names, [setting.best_baseline, average, closest], strict=True))
        table.rows += _with_paper(setting, labels, "step_ahead")
        table.notes.append(f"{setting.name}: {average} against {closest}.")
    if table.rows:
        table.columns = named("setting", *names)
    else:
        table.notes.append("No setting has both a run with moving averages and one with step-ahead.")
    return table


def times(settings: Sequence[Setting]) -> ReportTable:
    table = ReportTable("time", "Training time and the cost of balancing")
    for setting in settings:
        for label in setting.labels:
            for run in setting.of(label):
                if not run.validations:
                    continue
                table.rows.append({"setting": text(setting.name), "method": text(label)} | _times(run))
        if hours := published_for(setting).get("training_hours"):
            table.notes.append(
                f"{setting.name} in the paper, on one GPU: {hours['standard']} hours without and "
                f"{hours['multidds']} with MultiDDS."
            )
    if table.rows:
        table.columns = named(*table.rows[0])
        table.notes.append("Seconds of wall time, as measured in the runs; runs that shared a machine slow each other.")
        table.notes.append(
            "In steps: of the time that is not updates or validation; the rest is data, logs, checkpoints."
        )
    else:
        table.notes.append("No run has been validated yet.")
    return table


def _times(run: Run) -> Row:
    last = run.validations[-1]
    clock = last.clock
    steps, data = clock["steps"], clock.get("data", 0.0)
    beside = sum(clock.get(name, 0.0) for name in ("data", "saving", "rest"))
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
    run = setting.runs[0]
    facts = published_for(setting).get("sizes", {})
    table = ReportTable(f"datasets.{setting.name}", f"{setting.name}: sentence pairs")
    names = ("train", "dev", "test")
    table.columns = named("pair", *names, "target tokens", "dropped")
    table.columns |= named(*(f"{split} (paper)" for split in names if facts))
    for pair in setting.pairs:
        splits = run.facts["pairs"][pair]
        row = {"pair": text(pair)}
        row |= {split: number(splits[split]["pairs"] if split in splits else None, ",d") for split in names}
        row["target tokens"] = number(splits["train"]["target tokens"], ",d")
        row["dropped"] = number(sum(splits["train"]["dropped"].values()), ",d")
        row |= {f"{split} (paper)": number(facts[pair][split], ",d") for split in names if facts}
        table.rows.append(row)
    return table


def list_of_runs(settings: Sequence[Setting]) -> ReportTable:
    table = ReportTable("runs", "The runs")
    for setting in settings:
        for run in sorted([*setting.runs, *setting.repeated], key=lambda run: str(run.folder)):
            best = run.best
            chrf = None if run.scores is None else run.scores["average"]["chrf"]
            means = best.means if best else {}
            table.rows.append({
                "folder": text(run.folder), "setting": text(setting.name), "method": text(run.label),
                "seed": number(run.seed, "d"), "steps": number(run.steps, ",d"),
                "ended": text(run.finished or "not yet"), "at step": number(best.step if best else None, ",d"),
                "dev loss": number(means.get("dev_loss"), ".4f"),
                "expected accuracy": number(means.get("expected_accuracy"), ".4f"),
                "soft BLEU": number(means.get("soft_bleu"), ".4f"), "BLEU": number(run.bleu), "chrF": number(chrf),
            })  # fmt: skip
        for run in setting.repeated:
            table.notes.append(
                f"{run.folder} repeats another run's method and seed and is left out of the other tables."
            )
    table.columns = named(*table.rows[0]) if table.rows else {}
    table.notes += _signatures([run for setting in settings for run in setting.runs], ("bleu", "chrf"))
    return table


def main_method(setting: Setting) -> str | None:
    """The learned mixture that a report is about: the default's where there is one, else MultiDDS-S."""
    for method in ("anchored", "multidds-s", "multidds", "moving-average"):
        if (label := setting.learned_with(method)) is not None:
            return label
    learned = [label for label in setting.labels if setting.of(label)[0].learned]
    return learned[0] if learned else None


def summary(setting: Setting, table: ReportTable) -> str:
    """One sentence on what came out, from the table of `by_language`."""
    if not table.rows:
        return f"{setting.name}: {table.notes[0]}"
    *pairs, average = table.rows
    tested = "p" in table.columns
    better, worse = (
        sum(row[key].star if tested else row[key].bold for row in pairs) for key in ("learned", "baseline")
    )
    return (
        f"{setting.name}: {table.columns['learned']} {average['learned'].text} BLEU on average, "
        f"{table.columns['baseline']} {average['baseline'].text} ({average['difference'].text}); "
        f"{'significantly ' if tested else ''}better in {better} and worse in {worse} of {len(pairs)} language pairs."
    )


def _with_paper(setting: Setting, labels: Mapping[str, str | None], key: str) -> list[Row]:
    """A row of average BLEU, and one of the paper's figures for the same methods where it has the setting."""
    means = {name: number(setting.mean_bleu(label) if label else None) for name, label in labels.items()}
    rows = [{"setting": text(setting.name)} | means]
    if facts := published_for(setting).get(key):
        rows.append({"setting": text(f"{setting.name} (paper)")} | {name: number(facts[name]) for name in labels})
    return rows


def _seeds(setting: Setting, labels: Sequence[str]) -> str:
    several = [f"{label}: {len(setting.scored(label))}" for label in labels if len(setting.scored(label)) > 1]
    return f"Means over seeds ({'; '.join(several)})." if several else "One seed each."


def _signatures(runs: Sequence[Run], metrics: Sequence[str] = ("bleu",)) -> list[str]:
    found = {
        f"{metric}: {run.scores['signatures'][metric]}" for run in runs if run.scores is not None for metric in metrics
    }
    return sorted(found)
