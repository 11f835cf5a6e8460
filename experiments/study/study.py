"""The study's runs by setting, method and seed, and comparisons between them. It reads files and writes none.

Used by results.py and paper_scale.py, which make the pages.
"""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from bleu_counts import interval
from results_file import Run, read_runs

FIXED = ("proportional", "temperature-3", "temperature-5", "uniform")
SETTINGS = {
    "trl-goal": "TRL: one goal among six instruction sets",
    "embeddings-noise": "sentence-transformers: one of six datasets is noise",
    "goal": "language model: one goal among seven datasets",
    "goal-elsewhere": "language model: one goal, none of six datasets its own",
    "unwanted": "language model: eight goals, and a dataset that serves none",
    "under-trained": "language model: eight goals, each with good data",
    "data-limited": "language model: the same with little data, ten passes",
    "untranslated": "translation: two of eight corpora are broken",
    "goal-into-english": "translation: one goal among eight languages, into English",
    "goal-out-of-english": "translation: one goal among eight languages, out of English",
    "into-english": "translation into English: all languages alike",
    "out-of-english": "translation out of English: all languages alike",
    "tatoeba": "translation of everyday sentences: little data",
}
GOALS = {"goal-into-english": "bel-eng", "goal-out-of-english": "eng-bel"}  # in others, every test set of a run counts
NAMES = {  # of methods, if they are not their own
    "learned-in-budget": "learned",
    "shuffled": "learned from the gradients of other datasets",
    "multidds": "MultiDDS",
    "multidds-s": "MultiDDS-S",
    "planned": "plan",
}
# Mixtures of the study with one setting changed. They have tables of their own and are not compared with the others.
VARIANT = re.compile(r"repetition-\d+|.+-\d+-steps|.+-at-[\d.]+")
# Two-sided 95% quantiles of Student's distribution, by degrees of freedom.
_STUDENT = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306}


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

    def named(self, method: str) -> str:
        """Returns what a reader calls a method."""
        if method == "learned" != self.default:
            return "learned, 20 updates"
        return NAMES.get(method, method.replace("-", " "))

    def shown(self, value: float) -> str:
        """Returns a score as text."""
        return {"bleu": f"{value:.2f} BLEU", "loss": f"{value:.3f}", "error": f"{value:.1%}"}[self.measure]

    def score(self, method: str, seed: int, part: str) -> float:
        scores = self.runs[method][seed][part]
        goal = GOALS.get(self.name)
        return fmean(one[self.measure] for name, one in scores.items() if goal in (None, name))

    def mean(self, method: str, part: str, seeds: Collection[int] | None = None) -> float:
        return fmean(self.score(method, seed, part) for seed in (self.runs[method] if seeds is None else seeds))

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
        """The best fixed mixture."""
        found = self.best(FIXED)
        assert found is not None
        return found

    @property
    def complete(self) -> bool:
        """Whether there are runs of the default and of two fixed mixtures or more."""
        return self.default in self.runs and len(self.fixed) > 1

    @property
    def fixed(self) -> list[str]:
        """The fixed mixtures that ran."""
        return [method for method in FIXED if method in self.runs]

    @property
    def by_hand(self) -> str | None:
        return self.best([name for name in self.runs if name.startswith(("by-hand", "left-out", "bel-and-rus"))])

    def behind(self, method: str, others: Collection[str]) -> float:
        """Returns how far a method is behind the best of others by test score, in per cent of that; below 0: ahead."""
        best = max(self.sign * self.mean(one, "test") for one in others)
        return 100 * (best - self.sign * self.mean(method, "test")) / abs(best)

    def gain(self, ours: str, theirs: str) -> tuple[float, float, float, int]:
        """Returns (gain, its 95% interval, seeds): BLEU points, or per cent of the other's score; above 0 is better."""
        seeds = self.common([ours, theirs])
        pairs = [(self.score(ours, seed, "test"), self.score(theirs, seed, "test")) for seed in seeds]
        gains = [self.sign * (a - b) for a, b in pairs]
        if self.measure == "bleu":
            goal = GOALS.get(self.name)
            texts = [
                [{n: s for n, s in self.runs[m][seed]["sentences"].items() if goal in (None, n)} for seed in seeds]
                for m in (ours, theirs)
            ]
            return fmean(gains), *interval(*texts), len(seeds)
        scale, around = 100 / fmean(b for _, b in pairs), student(gains)
        return fmean(gains) * scale, (fmean(gains) - around) * scale, (fmean(gains) + around) * scale, len(seeds)


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Returns a table."""
    head = list(head)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def read(path: Path, variants: bool = False) -> dict[str, Setting]:
    """Returns the settings of a results file by name, with their methods or with the variants of these."""
    found: dict[str, dict[str, dict[int, Run]]] = defaultdict(lambda: defaultdict(dict))
    for (setting, method, seed), run in sorted(read_runs(path).items()):
        if bool(VARIANT.fullmatch(method)) == variants:
            found[setting][method][seed] = run
    return {name: Setting(name, runs) for name, runs in found.items()}
