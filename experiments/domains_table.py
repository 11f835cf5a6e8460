"""Runs of domains.py as tables: every method beside the best static or scheduled one, chosen by its dev loss.

Pure: from what the JSON files hold to text. Differences are between runs of the same seed.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import nan
from statistics import mean, stdev
from typing import Any

LEARNED = ("multidds-s", "multidds", "constant", "doge", "odm", "anchored", "learned", "shuffled")
# Two-sided 95% quantiles of Student's distribution, by degrees of freedom.
_STUDENT = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306}

Run = Mapping[str, Any]


def table(runs: Iterable[Run]) -> str:
    """Markdown: one table per regime and corpus. Corpora that differ are never in one table."""
    groups: dict[tuple[str, str, int], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run["config"]["regime"], run["corpus"], run["config"]["steps"]].append(run)
    return "\n\n".join(_group(*key, groups[key]) for key in sorted(groups)) or "no runs"


def rival(by_method: Mapping[str, Mapping[int, Run]]) -> str | None:
    """The static or scheduled method with the lowest mean dev loss over the seeds that all of them have."""
    free = {name: seeds for name, seeds in by_method.items() if name not in LEARNED}
    if not free:
        return None
    common = set.intersection(*(set(seeds) for seeds in free.values()))
    if not common:
        return None
    return min(free, key=lambda name: mean(average(free[name][seed], "dev", "loss") for seed in common))


def student(differences: Sequence[float]) -> float:
    """Half of the 95% interval of a mean of differences between runs of the same seeds; NaN for a single one."""
    n = len(differences)
    return _STUDENT[n - 1] * stdev(differences) / n**0.5 if n > 1 else nan


def average(run: Run, split: str, score: str) -> float:
    return mean(one[score] for one in run[split].values())


def _group(regime: str, corpus: str, steps: int, runs: Sequence[Run]) -> str:
    by_method: dict[str, dict[int, Run]] = defaultdict(dict)
    for run in runs:
        by_method[run["config"]["method"]][run["config"]["seed"]] = run
    best = rival(by_method)
    domains = list(runs[0]["sizes"])
    head = [
        "method",
        "seeds",
        "dev loss",
        "test loss",
        "accuracy",
        "expected",
        "against the rival, % of test loss",
        *domains,
        "seconds",
        "of them updates",
    ]
    rows = []
    for method, seeds in sorted(by_method.items(), key=lambda item: _mean(item[1], "dev", "loss")):
        passes = [mean(run["curve"][-1]["passes"][domain] for run in seeds.values()) for domain in domains]
        found = [[run["test"][name]["loss"] for run in seeds.values() if name in run["test"]] for name in domains]
        losses = [f"{mean(one):.3f}" if one else "" for one in found]
        rows.append(
            [
                f"**{method}**" if method == best else method,
                ", ".join(map(str, sorted(seeds))),
                *(
                    f"{_mean(seeds, split, score):.4f}"
                    for split, score in (
                        ("dev", "loss"),
                        ("test", "loss"),
                        ("test", "accuracy"),
                        ("test", "expected_accuracy"),
                    )
                ),
                "" if best is None or method == best else _gain(seeds, by_method[best]),
                *(f"{loss} ({count:.1f})".strip() for loss, count in zip(losses, passes, strict=True)),
                f"{mean(sum(run['seconds'].values()) for run in seeds.values()):.0f}",
                f"{mean(run['seconds']['updates'] for run in seeds.values()):.0f}",
            ]
        )
    title = f"### {regime}: {steps} steps, corpus {corpus}"
    note = "Mean over the domains; per domain the test loss (passes over its text)."
    return "\n".join(
        [title, "", note, "", *("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))]
    )


def _mean(seeds: Mapping[int, Run], split: str, score: str) -> float:
    return mean(average(run, split, score) for run in seeds.values())


def _gain(seeds: Mapping[int, Run], rivals: Mapping[int, Run]) -> str:
    """By how much the test loss is lower, in percent, with the 95% interval over seeds where there are some."""
    common = sorted(seeds.keys() & rivals.keys())
    gains = [
        100 * (1 - average(seeds[seed], "test", "loss") / average(rivals[seed], "test", "loss")) for seed in common
    ]
    if not gains:
        return ""
    if len(gains) == 1:
        return f"{gains[0]:+.2f}"
    return f"{mean(gains):+.2f} ± {student(gains):.2f}"
