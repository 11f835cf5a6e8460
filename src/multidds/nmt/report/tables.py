"""The tables of runs of the application: scores by language and method, datasets, runs. Pure functions of runs.

A table that cannot be filled (one seed, no baseline) has no rows.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from multidds.report import Cell, ReportTable, Row, Run, half_interval, number, text, with_interval

from .runs import Setting, TranslationRun

SIGNIFICANT = 0.05
_SPLITS = ("train", "dev", "test")
_NOISE = 1.0  # BLEU: below, no difference is significant
Compare: TypeAlias = Callable[[Path, Path], dict[str, dict[str, Any]]]  # significance.compare


def by_language(setting: Setting, compare: Compare) -> ReportTable:
    """Compares the learned mixture and the best baseline by BLEU per language pair, with significance."""
    table = ReportTable(f"languages.{setting.name}", f"{setting.name}: BLEU per language pair")
    baseline, learned = setting.best_static(), setting.main
    if baseline is None or learned not in setting.scored:
        return table
    ours, theirs = setting.scored[learned][0], setting.scored[baseline][0]
    table.headings = {"baseline": theirs.title, "learned": ours.title}
    compared = compare(ours.folder, theirs.folder)
    for pair in setting.pairs:
        row = {"pair": text(pair), "training pairs": number(ours.counts[pair]["train"]["pairs"], ",d")}
        table.rows.append(row | _compared_cells(compared[pair]))
    means = {key: setting.mean({pair: both[key] for pair, both in compared.items()}) for key in ("against", "bleu")}
    last = {"pair": text("average"), "training pairs": text(""), **_compared_cells(means | {"p": math.nan})}
    last |= {key: replace(last[key], bold=False) for key in ("baseline", "learned")}
    bleu = {"baseline": setting.bleu_by_seed(baseline), "learned": setting.bleu_by_seed(learned)}
    several = any(len(of) > 1 for of in bleu.values())
    if several:
        last |= {key: _mean_cell(statistics.fmean(of), half_interval(of)) for key, of in bleu.items()}
        difference = statistics.fmean(bleu["learned"]) - statistics.fmean(bleu["baseline"])
        last["difference"] = _mean_cell(difference, half_interval(*bleu.values()), "+.2f")
    table.rows.append(last | {"p": text("")})
    test = f"*: significantly better, p < {SIGNIFICANT} (paired bootstrap, 1,000 samples)."
    chosen = "The baseline is the static method with the best average on these test sets."
    table.notes += [f"Bold: the better of the two. {test} {chosen}", *_weights(setting)]
    if several:
        counts = f"{len(bleu['learned'])} and {len(bleu['baseline'])} seeds"
        table.notes.append(
            f"Averages: means over {counts}, ± half of their 95% interval. Language pairs: the first seeds."
        )
    table.notes += _signatures([ours, theirs])
    return table


def _mean_cell(value: float, half: float | None, pattern: str = ".2f") -> Cell:
    return Cell(with_interval(value, half, pattern), value)


def _compared_cells(both: Mapping[str, Any]) -> Row:
    """Returns the scores of a pair, the better one bold, with a star if it is significantly better."""
    difference = both["bleu"] - both["against"]
    star = both["p"] < SIGNIFICANT and max(both["against"], both["bleu"]) >= _NOISE
    return {
        "baseline": number(both["against"], bold=difference < 0, star=star and difference < 0),
        "learned": number(both["bleu"], bold=difference > 0, star=star and difference > 0),
        "difference": number(difference, "+.2f"),
        "p": number(both["p"], ".3f"),
    }


def all_methods(setting: Setting) -> ReportTable:
    table = ReportTable(f"methods.{setting.name}", f"{setting.name}: BLEU per language pair, all methods")
    if set(setting.scored) <= {setting.best_static(), setting.main}:
        return table
    means = {
        method: {pair: statistics.fmean(run.bleu_of(pair) for run in runs) for pair in setting.pairs}
        for method, runs in setting.scored.items()
    }
    table.headings = {f"bleu/{method}": method for method in means}
    for pair in setting.pairs:
        best = max(of[pair] for of in means.values())
        cells = {f"bleu/{method}": number(of[pair], bold=of[pair] == best) for method, of in means.items()}
        table.rows.append({"pair": text(pair)} | cells)
    cells = {f"bleu/{method}": number(setting.mean(of)) for method, of in means.items()}
    table.rows.append({"pair": text("average")} | cells)
    seeds = _seeds(setting) or ["One seed each."]
    table.notes = ["Bold: the highest; no test of significance.", *seeds, *_weights(setting)]
    return table


def datasets(setting: Setting) -> ReportTable:
    table = ReportTable(f"datasets.{setting.name}", f"{setting.name}: sentence pairs")
    for pair in setting.pairs:
        splits = setting.first.counts[pair]
        row = {"pair": text(pair)}
        row |= {split: number(splits[split]["pairs"] if split in splits else None, ",d") for split in _SPLITS}
        row["target tokens"] = number(splits["train"]["target tokens"], ",d")
        row["dropped"] = number(sum(splits["train"]["dropped"].values()), ",d")
        table.rows.append(row)
    return table


def list_of_runs(runs: Sequence[Run]) -> ReportTable:
    table = ReportTable("runs", "The runs")
    own = [run for run in runs if isinstance(run, TranslationRun)]
    for run in sorted(own, key=lambda run: str(run.folder)):
        best = run.best
        means = best.means if best else {}
        table.rows.append(
            {
                "folder": text(run.folder),
                "setting": text(run.setting),
                "method": text(run.method),
                "seed": number(run.seed, "d"),
                "steps": number(run.steps, ",d"),
                "ended": text(run.finished or "not yet"),
                "at step": number(best.step if best else None, ",d"),
                "dev loss": number(means.get("dev_loss"), ".4f"),
                "expected accuracy": number(means.get("expected_accuracy"), ".4f"),
                "soft BLEU": number(means.get("soft_bleu"), ".4f"),
                "updates (% of steps)": number(None if run.overhead is None else 100 * run.overhead, ".1f"),
                "BLEU": number(run.mean("bleu")),
                "chrF": number(run.mean("chrf")),
            }
        )
    table.notes = _signatures(own, ("bleu", "chrf"))
    return table


def summary(setting: Setting, table: ReportTable) -> str:
    """Returns one sentence on the table of `by_language`, which has rows."""
    *pairs, average = table.rows
    counted = [row for row in pairs if setting.weights[row["pair"].text] > 0]
    better, worse = (sum(row[key].star for row in counted) for key in ("learned", "baseline"))
    ours = f"{table.columns['learned']} {average['learned'].text}"
    weighted = f", mean BLEU, weighted by the priority: {ours}"
    first = "of the first seeds " if any("±" in cell.text for cell in average.values()) else ""
    which = "language pairs" if len(counted) == len(pairs) else "that count" + "s" * (len(counted) == 1)
    return (
        f"{setting.name}{weighted if setting.weighted else f': {ours} BLEU on average'}, "
        f"{table.columns['baseline']} {average['baseline'].text} ({average['difference'].text}); {first}"
        f"significantly better in {better} and worse in {worse} of {len(counted)} {which}."
    )


def findings(setting: Setting) -> list[str]:
    """Returns how near the learned mixture is to what someone who knows the data would do."""
    learned, baseline, by_hand = setting.main, setting.best_static(), setting.best_static(by_hand=True)
    if learned not in setting.scored or baseline is None or by_hand is None:
        return []
    ours, theirs, aim = (setting.bleu(method) for method in (learned, baseline, by_hand))
    if aim <= theirs:
        return [f"{by_hand}, by hand: {aim:.2f} BLEU, no better than {baseline}."]
    way = (ours - theirs) / (aim - theirs)
    found = f"{way:.0%} of the way from {baseline} to it" if way > 0 else f"no nearer to it than {baseline}"
    found = found if way < 1 else "ahead of it, without being told"
    return [f"{by_hand}, by hand: {aim:.2f} BLEU; {learned} is {found}."]


def _weights(setting: Setting) -> list[str]:
    """Returns a note on averages that are weighted, or would be if runs did not disagree."""
    if setting.weighted:
        counted = ", ".join(f"{name} {weight:g}" for name, weight in setting.weights.items() if weight)
        return [f"Averages are weighted by the priority: {counted}."]
    if setting.priorities_differ:
        return ["Averages count all language pairs alike: the runs have different priorities."]
    return []


def _seeds(setting: Setting) -> list[str]:
    """Returns a note on the methods with several seeds, if there are some."""
    several = [f"{method}: {len(runs)}" for method, runs in setting.scored.items() if len(runs) > 1]
    return [f"Means over seeds ({'; '.join(several)})."] if several else []


def _signatures(runs: Sequence[TranslationRun], metrics: Sequence[str] = ("bleu",)) -> list[str]:
    scored = [run.scores["signatures"] for run in runs if run.scores is not None]
    return sorted({f"{metric}: {signatures[metric]}" for signatures in scored for metric in metrics})
