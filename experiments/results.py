"""docs/results.md, the table of README.md and the picture of both, from the JSON files of the study's runs.

python experiments/results.py            # writes them
python experiments/results.py --check    # says whether they are up to date
"""

import argparse
import io
import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import gains
import matplotlib as mpl
from bleu_counts import interval
from matplotlib.figure import Figure
from readme_picture import FONTS, INKS

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
BEGIN, END = "<!-- made by experiments/results.py -->\n", "<!-- end -->"
FIXED = ("proportional", "temperature-3", "temperature-5", "uniform")
# {setting: (what it is, whether the README has it)}
SETTINGS = {
    "trl-goal": ("TRL: one goal among six instruction sets", True),
    "embeddings-noise": ("sentence-transformers: one of six datasets is noise", True),
    "goal": ("language model: one goal among seven datasets", True),
    "goal-elsewhere": ("language model: one goal, none of six datasets its own", True),
    "unwanted": ("language model: eight goals, and a dataset that serves none", True),
    "under-trained": ("language model: eight goals, each with good data", True),
    "data-limited": ("language model: the same with little data, ten passes", True),
    "untranslated": ("translation: two of eight corpora are broken", True),
    "goal-into-english": ("translation: one goal among eight languages, into English", True),
    "goal-out-of-english": ("translation: one goal among eight languages, out of English", True),
    "into-english": ("translation into English: all languages alike", True),
    "out-of-english": ("translation out of English: all languages alike", True),
    "tatoeba": ("translation of everyday sentences: little data", True),
}
GOALS = {"goal-into-english": "bel-eng", "goal-out-of-english": "eng-bel"}  # in others, every test set of a run counts
NAMES = {  # of methods, if they are not their own
    "learned-in-budget": "learned",
    "learned": "learned, 20 updates",
    "shuffled": "learned from the gradients of other datasets",
    "multidds-s": "MultiDDS-S",
    "planned": "plan",
}
# Two-sided 95% quantiles of Student's distribution, by degrees of freedom.
_STUDENT = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306}

Run = Mapping[str, Any]


def student(differences: Sequence[float]) -> float:
    """Returns half of the 95% interval of a mean difference between runs of the same seeds; NaN for a single one."""
    n = len(differences)
    return _STUDENT[n - 1] * stdev(differences) / n**0.5 if n > 1 else math.nan


@dataclass(frozen=True)
class Setting:
    """One task: {method: {seed: run}}."""

    name: str
    runs: Mapping[str, Mapping[int, Run]]

    @property
    def measure(self) -> str:
        """Which score counts: "bleu", "loss" or "error"."""
        run = next(iter(next(iter(self.runs.values())).values()))
        return next(key for key in ("bleu", "loss", "error") if key in next(iter(run["test"].values())))

    @property
    def sign(self) -> int:
        """1 if more is better, -1 if less is."""
        return 1 if self.measure == "bleu" else -1

    @property
    def default(self) -> str:
        """The default with its own budget; the language model has one with 20 updates as well."""
        return "learned-in-budget" if "learned-in-budget" in self.runs else "learned"

    def score(self, method: str, seed: int, part: str) -> float:
        scores = self.runs[method][seed][part]
        goal = GOALS.get(self.name)
        return fmean(one[self.measure] for name, one in scores.items() if goal in (None, name))

    def mean(self, method: str, part: str, seeds: Collection[int] | None = None) -> float:
        return fmean(self.score(method, seed, part) for seed in seeds or self.runs[method])

    def common(self, methods: Iterable[str]) -> list[int]:
        """Returns the seeds that all of these methods have: only such runs are compared."""
        return sorted(set.intersection(*(set(self.runs[method]) for method in methods)))

    def best(self, methods: Iterable[str]) -> str | None:
        """Returns the method with the best mean dev score, over the seeds that all have."""
        there = [method for method in methods if method in self.runs]
        if not there:
            return None
        seeds = self.common(there)
        return max(there, key=lambda method: self.sign * self.mean(method, "dev", seeds))

    @property
    def rival(self) -> str:
        found = self.best(FIXED)
        assert found is not None
        return found

    @property
    def by_hand(self) -> str | None:
        return self.best([name for name in self.runs if name.startswith(("by-hand", "left-out", "bel-and-rus"))])

    def difference(self, ours: str, theirs: str) -> tuple[float, float, float, int]:
        """Returns (difference, its 95% interval, seeds): BLEU points, or per cent of the other's score."""
        seeds = self.common([ours, theirs])
        pairs = [(self.score(ours, seed, "test"), self.score(theirs, seed, "test")) for seed in seeds]
        found = fmean(a - b for a, b in pairs)
        if self.measure == "bleu":
            goal = GOALS.get(self.name)
            texts = [
                [{n: s for n, s in self.runs[m][seed]["sentences"].items() if goal in (None, n)} for seed in seeds]
                for m in (ours, theirs)
            ]
            return found, *interval(*texts), len(seeds)
        scale, around = 100 / fmean(b for _, b in pairs), student([a - b for a, b in pairs])
        return found * scale, (found - around) * scale, (found + around) * scale, len(seeds)

    def gap_closed(self) -> float | None:
        """Returns how far the default is on the way from the best fixed mixture to the best one by hand."""
        if self.by_hand is None:
            return None
        seeds = self.common([self.default, self.rival, self.by_hand])
        ours, fixed, known = (self.mean(m, "test", seeds) for m in (self.default, self.rival, self.by_hand))
        return (ours - fixed) / (known - fixed)


def read(folder: Path) -> list[Setting]:
    """Returns all settings that have runs of the default and of a fixed mixture."""
    found: dict[str, dict[str, dict[int, Run]]] = defaultdict(lambda: defaultdict(dict))
    for path in sorted(one for part in ("trainers", "learned", "study") for one in folder.glob(f"{part}/*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        setting, method, seed = path.name.removesuffix(".json").split(".")
        found[setting][method][int(seed)] = run
    settings = [Setting(name, found[name]) for name in SETTINGS if name in found]
    return [one for one in settings if one.default in one.runs and one.best(FIXED) is not None]


def named(method: str) -> str:
    return NAMES.get(method, method.replace("-", " "))


def shown(setting: Setting, value: float) -> str:
    return {"bleu": f"{value:.2f} BLEU", "loss": f"{value:.3f}", "error": f"{value:.1%}"}[setting.measure]


def row(setting: Setting) -> str:
    """Returns a line of the table, over the seeds that the default and its rival have."""
    ours, rival, by_hand = setting.default, setting.rival, setting.by_hand
    change, low, high, seeds = setting.difference(ours, rival)
    common = setting.common([ours, rival])
    unit = "" if setting.measure == "bleu" else "%"
    around = "" if math.isnan(low) else f" ({low:+.1f} to {high:+.1f})"
    closed = setting.gap_closed()
    cells = [
        SETTINGS[setting.name][0],
        f"{shown(setting, setting.mean(rival, 'test', common))} ({named(rival)})",
        shown(setting, setting.mean("planned", "test")) if "planned" in setting.runs else "-",
        f"**{shown(setting, setting.mean(ours, 'test', common))}**",
        f"{change:+.1f}{unit}{around}",
        shown(setting, setting.mean(by_hand, "test")) if by_hand else "-",
        "-" if closed is None else f"{closed:.0%}",
        str(seeds),
    ]
    return f"| {' | '.join(cells)} |"


def summary(settings: Sequence[Setting]) -> str:
    head = "| setting | best fixed mixture | plan | learned | difference | by hand | gap closed | seeds |"
    return "\n".join([head, "|---" * 8 + "|", *map(row, settings)])


def table(setting: Setting) -> str:
    """Returns all methods of a setting, the best by dev score first."""
    lines = [f"### {SETTINGS[setting.name][0].capitalize()} (`{setting.name}`)", ""]
    lines += ["| mixture | seeds | dev | test | updates take |", "|---|---|---|---|---|"]
    for method in sorted(setting.runs, key=lambda one: -setting.sign * setting.mean(one, "dev")):
        runs = setting.runs[method]
        times = [run["seconds"] for run in runs.values()]
        cost = 100 * fmean(one.get("updates", 0.0) / one.get("steps", 1.0) for one in times)
        scores = [setting.score(method, seed, "test") for seed in runs]
        spread = f" ({shown(setting, min(scores))} to {shown(setting, max(scores))})" if len(scores) > 1 else ""
        name = f"**{named(method)}**" if method == setting.default else named(method)
        cells = (name, str(len(runs)), shown(setting, setting.mean(method, "dev")))
        last = f"{cost:.0f}%" if cost >= 0.5 else "-"
        lines.append(f"| {' | '.join(cells)} | {shown(setting, fmean(scores))}{spread} | {last} |")
    return "\n".join(lines) + "\n"


def regrets(settings: Sequence[Setting]) -> str:
    """Returns how far each mixture is behind the best of each setting, in per cent of the test score."""
    methods = [*FIXED, "planned", "multidds-s", "default"]
    rows: dict[str, list[float | None]] = {method: [] for method in methods}
    for setting in settings:
        there = {m: setting.default if m == "default" else m for m in methods}
        there = {m: own for m, own in there.items() if own in setting.runs}
        scores = {m: setting.sign * setting.mean(own, "test") for m, own in there.items()}
        top = max(scores.values())
        for method in methods:
            rows[method].append(100 * (top - scores[method]) / abs(top) if method in scores else None)
    whole = {method: [one for one in values if one is not None] for method, values in rows.items()}
    lines = ["| mixture | settings | mean | worst |", "|---|---|---|---|"]
    for method in sorted(methods, key=lambda one: fmean(whole[one])):
        name = "**learned**" if method == "default" else named(method)
        lines.append(f"| {name} | {len(whole[method])} | {fmean(whole[method]):.1f}% | {max(whole[method]):.1f}% |")
    return "\n".join(lines)


def more_steps(settings: Sequence[Setting], folder: Path) -> str:
    """Returns the best fixed mixture with the time of the updates as extra steps, beside the default."""
    lines = ["| setting | best fixed mixture, 800 steps | the same, 904 steps | learned, 800 steps | seeds |"]
    lines.append("|---|---|---|---|---|")
    for setting in settings:
        runs = {path.name.split(".")[2]: path for path in folder.glob(f"{setting.name}.{setting.rival}.*.json")}
        if runs:
            seeds = sorted(map(int, runs))
            longer = [json.loads(runs[str(seed)].read_text(encoding="utf-8"))["test"] for seed in seeds]
            loss = fmean(one["loss"] for test in longer for one in test.values())
            ours, fixed = (setting.mean(method, "test", seeds) for method in (setting.default, setting.rival))
            lines.append(f"| {SETTINGS[setting.name][0]} | {fixed:.3f} | {loss:.3f} | **{ours:.3f}** | {len(seeds)} |")
    return "\n".join(lines)


def picture(settings: Sequence[Setting], ink: str) -> str:
    """Returns the gap closed in each setting that has a mixture by hand, as SVG."""
    rows = [(SETTINGS[one.name][0], closed) for one in settings if (closed := one.gap_closed()) is not None]
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "multidds", "text.color": ink}):
        figure = Figure(figsize=(7.4, 0.9 + 0.34 * len(rows)), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        places = range(len(rows), 0, -1)
        axes.barh(places, [100 * closed for _, closed in rows], color="#4c8bf5", height=0.6)
        for place, (_, closed) in zip(places, rows, strict=True):
            axes.text(100 * max(closed, 0) + 1.5, place, f"{closed:.0%}", va="center", fontsize=9, color=ink)
        axes.set_yticks(list(places), [words for words, _ in rows], fontsize=9, color=ink)
        axes.axvline(100, color=ink, linewidth=0.8, linestyle=":")
        axes.set_xlim(min(0.0, *(100 * closed for _, closed in rows)), max(115.0, *(100 * c + 12 for _, c in rows)))
        axes.set_xticks([0, 100], ["best fixed mixture", "best by hand"], fontsize=9, color=ink)
        axes.tick_params(length=0)
        for side in axes.spines.values():
            side.set_visible(False)
        axes.axvline(0, color=ink, linewidth=0.8)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = re.sub(r"(?s)<metadata>.*?</metadata>\s*", "", file.getvalue())
    return re.sub(r"[ \t]+\n", "\n", re.sub(r"font-family: [^;\"]*", FONTS, text))


def page(settings: Sequence[Setting], measured: Mapping[str, Sequence[gains.Moment]]) -> str:
    text = (ROOT / "experiments" / "results-intro.md").read_text(encoding="utf-8")
    parts = {"summary": summary(settings), "regrets": regrets(settings)}
    parts["more-steps"] = more_steps(settings, RESULTS / "more-steps")
    for name, part in parts.items():
        text = text.replace(f"<!-- {name} -->", part)
    return f"{text.rstrip()}\n\n## All mixtures\n\n" + "\n".join(map(table, settings)) + "\n" + gains.section(measured)


def readme(settings: Sequence[Setting], text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    return (
        before
        + BEGIN
        + summary([one for one in settings if SETTINGS[one.name][1]])
        + "\n"
        + END
        + rest.partition(END)[2]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether the pages are up to date")
    given = parser.parse_args()
    settings, measured = read(RESULTS), gains.read(RESULTS)
    front = ROOT / "README.md"
    made = {ROOT / "docs" / "results.md": page(settings, measured)}
    made[front] = readme(settings, front.read_text(encoding="utf-8"))
    if given.check:
        old = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
        if old:
            names = ", ".join(str(path.relative_to(ROOT)) for path in old)
            sys.exit(f"{names}: not what results/ says: python experiments/results.py")
        return
    # The same points are other bytes with another version of matplotlib, so --check leaves the pictures out.
    made |= {ROOT / "docs" / f"gap-{kind}.svg": picture(settings, ink) for kind, ink in INKS.items()}
    made[ROOT / "docs" / "gains.svg"] = gains.picture(measured)
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
