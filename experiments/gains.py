"""What more of a dataset really brings, beside what gradients say: a table and a figure for docs/results.md.

Reads the files that benchmarks/marginal_gains.py writes, results/marginal-gains.*.json. Pure but for reading them;
used by results.py.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from canvas import Canvas, drawn, saved
from matplotlib.axes import Axes

# Okabe and Ito's colours, which colour-blind people can tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7b52ab", "#e69f00", "#8c564b", "#808080")
MARKS = "os^Dv<>Ph*"

SIGNALS = {  # what they are called in the files: what a reader calls them
    "loss | mean of cosines | averaged | all": "**mean of cosines at averaged weights**, which the default uses",
    "loss | mean of cosines | raw | all": "the same at the trained weights, which MultiDDS-S uses",
    "loss | mean of cosines, 512 tokens | raw | all": "there, with a quarter of the text",
    "loss | mean of cosines, 8,192 tokens | raw | all": "there, with four times the text",
    "loss | mean of cosines, three moments | raw | all": "there, averaged over three moments, ten steps apart",
    "loss | mean of cosines | raw | without embeddings": "there, without embeddings",
    "loss | mean of cosines, mixture projected out | raw | all": "there, the mixture's own gradient projected out",
    "loss | mean of cosines, Adam on both | raw | all": "there, in Adam's metric",
    "loss | inner product | raw | all": "inner product, as DoGE",
    "expected accuracy | mean of cosines | averaged | all": "at averaged weights, dev sets want expected accuracy",
    "expected accuracy | mean of cosines | raw | all": "the same at the trained weights",
    "expected accuracy, fitted | mean of cosines | averaged | all": "at averaged weights, at a fitted temperature",
    "size: the smaller, the better": "size alone: the smaller, the better",
}
USED = next(iter(SIGNALS))
MEASURES = {"loss": "dev loss", "expected": "expected accuracy", "soft_bleu": "soft BLEU"}

Moment = Mapping[str, Any]


def read(folder: Path) -> dict[str, list[Moment]]:
    """{setting: moments}"""
    files = sorted(folder.glob("marginal-gains.*.json"))
    return {path.name.split(".")[1]: json.loads(path.read_text(encoding="utf-8"))["moments"] for path in files}


def gain(moment: Moment, measure: str) -> Any:
    """What more of each dataset changed, averaged over repeats and dev sets, positive where it helped. [dataset]"""
    return np.asarray(moment["gains"][measure]).mean((0, 1))


def correlation(one: Any, other: Any) -> float:
    return 0.0 if np.std(one) == 0 or np.std(other) == 0 else float(np.corrcoef(one, other)[0, 1])


def correlations(moments: Sequence[Moment], signal: str, measure: str) -> list[float]:
    """With the measured gains, at every moment."""
    return [correlation(np.asarray(m["signals"][signal]).mean(0), gain(m, measure)) for m in moments]


def repeats(moments: Sequence[Moment], measure: str) -> float:
    """How well two measurements of the gains agree: no signal can be expected to predict better."""
    both = [np.asarray(moment["gains"][measure]).mean(1) for moment in moments]  # [repeat, dataset] each
    return fmean(correlation(one[0], one[-1]) for one in both)


def table(moments: Sequence[Moment]) -> list[str]:
    """Every signal: its mean and worst correlation with the gains over the moments, and how well two probes agree."""
    lines = ["| signal | " + " | ".join(f"with gains in {word}: mean, worst" for word in MEASURES.values())]
    lines[0] += " | two probes |"
    lines.append("|---|" + "---|" * (len(MEASURES) + 1))
    for signal, words in SIGNALS.items():
        if not all(signal in moment["signals"] for moment in moments):
            continue
        cells = []
        for measure in MEASURES:
            found = correlations(moments, signal, measure)
            cells.append(f"{fmean(found):+.2f}, {min(found):+.2f}")
        probes = [np.asarray(moment["signals"][signal]) for moment in moments]
        cells.append("" if "size" in signal else f"{fmean(correlation(one[0], one[-1]) for one in probes):+.2f}")
        lines.append(f"| {words} | {' | '.join(cells)} |")
    cells = [f"{repeats(moments, measure):+.2f}" for measure in MEASURES]
    lines.append(f"| *a second measurement of the gains* | {' | '.join(cells)} | |")
    return lines


def picture(settings: Mapping[str, Sequence[Moment]]) -> str:
    """SVG on white: the rewards of the default against measured gains in dev loss, one panel for each setting."""

    def draw(canvas: Canvas) -> None:
        panels = np.atleast_1d(canvas.subplots(1, len(settings)))
        for panel, (setting, moments) in zip(panels, settings.items(), strict=True):
            draw_setting(panel, moments)
            panel.set_title(setting)
            panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
        panels[0].set_ylabel("measured gain in dev loss")

    svg = saved(drawn(draw)).decode()
    head, end = svg.index("<svg"), svg.index(">", svg.index("<svg")) + 1
    return svg[head:end] + '<rect width="100%" height="100%" fill="white"/>' + svg[end:]


def draw_setting(panel: Axes, moments: Sequence[Moment]) -> None:
    for i, moment in enumerate(moments):
        rewards = np.asarray(moment["signals"][USED]).mean(0)
        found = gain(moment, "loss")
        words = f"step {moment['step']:,} (r = {correlation(rewards, found):+.2f})"
        panel.scatter(
            rewards - rewards.mean(), found - found.mean(), s=16, color=COLOURS[i], marker=MARKS[i], label=words
        )
    panel.axhline(0, color="grey", linewidth=0.5)
    panel.axvline(0, color="grey", linewidth=0.5)
    panel.set_xlabel("reward, less the mean")


def section(settings: Mapping[str, Sequence[Moment]]) -> str:
    """The part of docs/results.md, or nothing where nothing has been measured."""
    if not settings:
        return ""
    text = (
        "## Do gradients know which dataset helps?\n\nAt several moments of a run with a temperature of 3, and for "
        "each dataset, a copy of the run goes on for 40 steps with that dataset's share raised by 0.2, twice, with "
        "common random numbers; the gain is what the averaged weights then score on the dev sets. Beside it are the "
        "signals that gradients give at the same moment, from two probes of 2,048 tokens. Correlations over the eight "
        "datasets (`benchmarks/marginal_gains.py`; m2o: many-to-one, into English).\n\n"
        "![Rewards against measured gains](gains.svg)\n"
    )
    for setting, moments in settings.items():
        steps = ", ".join(f"{moment['step']:,}" for moment in moments)
        text += (
            f"\n**{setting}**, at step{'s' if len(moments) > 1 else ''} {steps}:\n\n" + "\n".join(table(moments)) + "\n"
        )
    return text + "\n"
