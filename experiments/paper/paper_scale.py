"""The paper's tables and figures at the scale of two cores, beside its own numbers: a part of docs/results.md.

Reads results.jsonl, which collect.py made of the runs of cpu.toml. Used by experiments/study/results.py.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import numpy as np
from bleu_counts import interval
from canvas import Canvas, drawn, saved
from study import NAMES, Setting, markdown

from multidds.history import COLOURS

RESULTS = Path(__file__).with_name("results.jsonl")
SETTINGS = {  # of cpu.toml: the name in the paper's tables, what it is
    "catalogues-m2o": ("m2o-related", "into English, related"),
    "catalogues-diverse-m2o": ("m2o-diverse", "into English, diverse"),
    "catalogues-o2m": ("o2m-related", "out of English, related"),
    "catalogues-diverse-o2m": ("o2m-diverse", "out of English, diverse"),
}
BASELINES = ("uniform", "temperature-5", "proportional")
MAIN = (*BASELINES, "multidds", "multidds-s")
PUBLISHED: dict[str, Any] = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
Settings = Mapping[str, Setting]


def parts(found: Settings) -> dict[str, str]:
    """Returns the tables by name; those without runs are a word."""
    whole = {name: found[name] for name in SETTINGS if name in found and set(MAIN) <= found[name].runs.keys()}
    made = {
        "paper-averages": averages(whole),
        "paper-languages": "\n\n".join(by_language(setting) for setting in whole.values()),
        "paper-priorities": priorities(whole),
        "paper-moved": moved(whole),
        "paper-seeds": over_seeds(whole),
        "paper-step-ahead": step_ahead(whole),
        "paper-rewards": rewards(whole),
        "paper-time": times(whole),
    }
    return {name: text or "Not run." for name, text in made.items()}


def papers(setting: Setting) -> dict[str, Any]:
    """Returns the paper's numbers for a setting."""
    facts: dict[str, Any] = PUBLISHED["settings"][SETTINGS[setting.name][0]]
    return facts


def words(setting: Setting) -> str:
    return SETTINGS[setting.name][1]


def bleu(setting: Setting, method: str, seeds: Sequence[int] = (1,)) -> float:
    return setting.mean(method, "test", seeds)


def best_baseline(setting: Setting) -> str:
    """Returns the baseline with the best test score, as the paper chooses it."""
    return max(BASELINES, key=lambda method: bleu(setting, method))


def averages(whole: Settings) -> str:
    head = ["mixture", *(heading for one in whole.values() for heading in (words(one), "paper"))]
    rows = []
    for method in MAIN if whole else ():
        row = [NAMES.get(method, method.replace("-", " "))]
        for setting in whole.values():
            ours, theirs = {one: bleu(setting, one) for one in MAIN}, papers(setting)["average"]
            row += [best(of[method], of.values()) for of in (ours, theirs)]
        rows.append(row)
    return markdown(head, rows) if rows else ""


def best(value: float, among: Any) -> str:
    """Returns a score as text, bold if it is the highest."""
    return f"**{value:.2f}**" if value == max(among) else f"{value:.2f}"


def by_language(setting: Setting) -> str:
    """Returns the best baseline and MultiDDS-S by language, with a star if a difference is significant."""
    baseline, theirs = best_baseline(setting), papers(setting)
    of_paper = max(BASELINES, key=lambda method: float(theirs["average"][method]))
    runs = {method: setting.runs[method][1] for method in (baseline, "multidds-s")}
    names = [setting.named(method) for method in runs]
    head = [
        words(setting),
        "pairs",
        *names,
        "paper's language",
        *(f"{setting.named(m)} (paper)" for m in (of_paper, "multidds-s")),
    ]
    rows = []
    counterparts = theirs["bleu"]["multidds-s"]
    for name, other in zip(runs["multidds-s"]["test"], counterparts, strict=True):
        pair = [run["test"][name]["bleu"] for run in runs.values()]
        low, high = interval(*([{name: run["sentences"][name]}] for run in reversed(runs.values())))
        stars = ("*" if high < 0 else "", "*" if low > 0 else "")
        cells = [f"{best(value, pair)}{star}" for value, star in zip(pair, stars, strict=True)]
        published_pair = [theirs["bleu"][method][other] for method in (of_paper, "multidds-s")]
        significant = ["*" if other in theirs["significant"].get(m, ()) else "" for m in (of_paper, "multidds-s")]
        last = [f"{best(value, published_pair)}{star}" for value, star in zip(published_pair, significant, strict=True)]
        rows.append([name, f"{runs['multidds-s']['config']['sizes'][name]:,}", *cells, other, *last])
    return markdown(head, rows)


def beside(whole: Settings, columns: Mapping[str, str], key: str) -> str:
    """Returns average BLEU by setting, ours and the paper's. columns: {its heading: our method}"""
    rows = []
    for setting in whole.values():
        if not set(columns.values()) <= setting.runs.keys() or key not in papers(setting):
            continue
        ours = {"best baseline": best_baseline(setting), **columns}
        rows.append([words(setting), *(f"{bleu(setting, method):.2f}" for method in ours.values())])
        rows.append([f"{words(setting)} (paper)", *(f"{papers(setting)[key][column]:.2f}" for column in ours)])
    return markdown(["setting", "best baseline", *columns], rows) if rows else ""


def priorities(whole: Settings) -> str:
    return beside(whole, {"regular": "multidds-s", "low": "low", "high": "high"}, "priorities")


def moved(whole: Settings) -> str:
    """Returns what low and high change for the dev sets that they name and for the others: shares at the end, BLEU."""
    rows = []
    for setting in whole.values():
        for method in ("low", "high"):
            if method not in setting.runs:
                continue
            run, regular = setting.runs[method][1], setting.runs["multidds-s"][1]
            losses = {name: one["dev_loss"] for name, one in regular["dev"].items()}
            ranked = sorted(losses, key=lambda name: -losses[name])  # the worst first
            half = ranked[: len(ranked) // 2] if method == "low" else ranked[len(ranked) // 2 :]
            row = [words(setting), method]
            for group in (half, [name for name in ranked if name not in half]):
                share = sum(last_mixture(run)[n] - last_mixture(regular)[n] for n in group)
                gain = fmean(run["test"][n]["bleu"] - regular["test"][n]["bleu"] for n in group)
                row += [f"{100 * share:+.0f}%", f"{gain:+.2f}"]
            rows.append(row)
    head = ["setting", "priority", "share of those that count", "their BLEU", "share of the others", "their BLEU"]
    return markdown(head, rows) if rows else ""


def last_mixture(run: Mapping[str, Any]) -> Mapping[str, float]:
    mixture: Mapping[str, float] = run["updates"][-1]["mixture"]
    return mixture


def over_seeds(whole: Settings) -> str:
    rows = []
    for setting in whole.values():
        for method, theirs in papers(setting).get("seeds", {}).items():
            values = [setting.score(method, seed, "test") for seed in setting.runs[method]]
            if len(values) > 1:
                ours = f"{fmean(values):.2f} | {variance(values):.3f} | {len(values)}"
                rows.append(
                    [words(setting), setting.named(method), ours, f"{theirs['mean']:.2f} | {theirs['variance']:.2f}"]
                )
    head = ["setting", "mixture", "mean", "variance", "seeds", "mean (paper, 4 seeds)", "variance (paper)"]
    return markdown(head, rows) if rows else ""


def step_ahead(whole: Settings) -> str:
    return beside(whole, {"moving average": "moving-average", "step-ahead": "multidds-batch"}, "step_ahead")


def rewards(whole: Settings) -> str:
    """Returns how much the rewards of a dataset vary from update to update, averaged over datasets."""
    rows = []
    for setting in whole.values():
        found = []
        for method in ("multidds", "multidds-s"):
            updates = setting.runs[method][1]["updates"]
            by_name = [[one["rewards"][name] for one in updates] for name in updates[0]["rewards"]]
            found.append((fmean(map(variance, by_name)), fmean(abs(value) for values in by_name for value in values)))
        rows.append([words(setting), *(f"{of:.4f}" for of, _ in found), *(f"{size:.3f}" for _, size in found)])
    head = ["setting", "variance, MultiDDS", "variance, MultiDDS-S", "mean size, MultiDDS", "mean size, MultiDDS-S"]
    return markdown(head, rows) if rows else ""


def times(whole: Settings) -> str:
    """Returns the time of the updates by the time of the steps."""
    rows = []
    for setting in whole.values():
        shares = []
        for method in ("multidds", "multidds-s"):
            seconds = setting.runs[method][1]["seconds"]
            shares.append(f"{100 * seconds['updates'] / seconds['steps']:.0f}%")
        rows.append([words(setting), *shares])
    return markdown(["setting", "MultiDDS, step ahead", "MultiDDS-S"], rows) if rows else ""


def picture(found: Settings) -> Iterator[str]:
    """Yields SVG on white, usage and rewards by step, of both rewards, in each setting; nothing without runs."""
    whole = [found[name] for name in SETTINGS if name in found and set(MAIN) <= found[name].runs.keys()]

    if not whole:
        return

    def draw(canvas: Canvas) -> None:
        canvas.set_size_inches(9.6, 8.4)
        panels = canvas.subplots(4, len(whole), squeeze=False, sharex=True)
        for column, setting in zip(panels.T, whole, strict=True):
            for panel, (name, series) in zip(column, rows_of(setting), strict=True):
                for i, (pair, (steps, values)) in enumerate(series.items()):
                    drawstyle = "steps-post" if "usage" in name else "default"
                    label = pair.replace("eng", "").strip("-")
                    panel.plot(steps, values, color=COLOURS[i], linewidth=1, drawstyle=drawstyle, label=label)
                panel.set_title(name, fontsize=7)
                panel.tick_params(labelsize=6)
            column[0].set_title(f"{words(setting)}\n{column[0].get_title()}", fontsize=7)
            column[-1].set_xlabel("step", fontsize=7)
            column[-1].legend(loc="upper center", bbox_to_anchor=(0.5, -0.35), ncol=2, fontsize=6)

    svg = saved(drawn(draw)).decode()
    end = svg.index(">", svg.index("<svg")) + 1
    yield svg[svg.index("<svg") : end] + '<rect width="100%" height="100%" fill="white"/>' + svg[end:]


def rows_of(setting: Setting) -> Iterator[tuple[str, dict[str, tuple[Any, Any]]]]:
    """Yields the panels of a setting: (title, {language pair: (steps, values)})."""
    for what in ("usage (%)", "reward"):
        for method in ("multidds-s", "multidds"):
            run = setting.runs[method][1]
            series = {}
            for name in run["test"]:
                if what == "reward":
                    points = [(one["step"], one["rewards"][name]) for one in run["updates"]]
                else:
                    sizes = run["config"]["sizes"]  # all begin with the proportional mixture
                    points = [(0, 100 * sizes[name] / sum(sizes.values()))]
                    points += [(one["step"], 100 * one["mixture"][name]) for one in run["updates"]]
                    points.append((run["steps"], points[-1][1]))
                series[name] = tuple(np.asarray(points).T)
            yield f"{what}, {setting.named(method)}", series
