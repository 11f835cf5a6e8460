"""docs/results.md from the JSON files of the study: what every mixture is worth, the default against the best rival.

python experiments/results.py            # writes docs/results.md with its figure
python experiments/results.py --check    # says whether it is up to date
"""

import argparse
import json
import math
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gains
from bleu_counts import interval
from domains_table import student

ROOT = Path(__file__).parent.parent
DEFAULT, ANCHOR, CONTROL = "anchored", "planned", "shuffled"
TRIALS = ("anchored-accuracy", "anchored-transfer", "planned-transfer")  # other forms of the default
NAMES = {  # {method: its name on a page}; others are their own names
    "anchored": "learned (0.2.0)",
    "anchored-accuracy": "learned (0.2.0), by accuracy",
    "anchored-transfer": "learned (0.2.0), with transfer",
}
WORDS = {  # {setting: what it is, for those who do not know its name}
    "catalogues-m2o": "program messages into English",
    "catalogues-o2m": "program messages out of English",
    "tatoeba-m2o": "everyday sentences into English",
    "domains, under-trained": "language model, short training",
    "domains, unwanted": "language model, one dataset unwanted",
}
RIVALS = (  # what has to be beaten: static and scheduled mixtures that others use
    "proportional",
    "temperature-3",
    "temperature-5",
    "temperature-10",
    "uniform",
    "unimax",
    "proportional-to-uniform",
    "cooldown",
    "reverse-cooldown",
)
FIELD = (DEFAULT, ANCHOR, "proportional", "temperature-3", "temperature-5")  # without which a setting shows no price
ORDER = (DEFAULT, ANCHOR, CONTROL, *TRIALS, *RIVALS, "multidds-s", "multidds", "doge", "odm", "constant")


@dataclass(frozen=True)
class Setting:
    """One task: {method: [run, ...]}, and what counts in it."""

    name: str
    runs: Mapping[str, Sequence[Mapping[str, Any]]]
    measure: str  # "bleu" or "loss"

    @property
    def sign(self) -> int:
        """1 where more is better."""
        return 1 if self.measure == "bleu" else -1

    def scores(self, method: str, part: str, seeds: Collection[int] | None = None) -> list[float]:
        """The mean over datasets, one for each seed, or for each of these."""
        return [
            mean([one[self.measure] for one in run[part].values()])
            for run in self.runs[method]
            if seeds is None or run["seed"] in seeds
        ]

    def common(self, methods: Iterable[str]) -> set[int]:
        """The seeds that all of these methods have: only such runs are compared."""
        return set.intersection(*({run["seed"] for run in self.runs[method]} for method in methods))

    def rival(self) -> str:
        """The static or scheduled mixture that is best by its mean dev score, over the seeds that all of them have."""
        there = [method for method in RIVALS if method in self.runs]
        seeds = self.common(there)
        return max(there, key=lambda method: self.sign * mean(self.scores(method, "dev", seeds)))

    def gain(self, ours: str, theirs: str) -> tuple[float, float, float, int]:
        """(difference of the test scores, its 95% interval, seeds), positive where `ours` is better; losses in %."""
        seeds = self.common([ours, theirs])
        one, other = (self.scores(method, "test", seeds) for method in (ours, theirs))
        if self.measure == "bleu":
            low, high = interval(
                *([r["sentences"] for r in self.runs[m] if r["seed"] in seeds] for m in (ours, theirs))
            )
            return mean(one) - mean(other), low, high, len(seeds)
        found = 100 * (mean(other) - mean(one)) / mean(other)
        spread = 100 * student([b - a for a, b in zip(one, other, strict=True)]) / mean(other)
        return found, found - spread, found + spread, len(seeds)


def named(method: str) -> str:
    """A method as it is called in a table, the default in bold."""
    name = NAMES.get(method, method)
    return f"**{name}**" if method == DEFAULT else name


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def read(folder: Path) -> list[Setting]:
    """All settings that have runs, translation first."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for path in sorted([*folder.glob("study/*.json"), *folder.glob("domains/*.json")]):
        run = json.loads(path.read_text(encoding="utf-8"))
        if path.parent.name == "domains":
            setting, method, seed = (
                f"domains, {run['config']['regime']}",
                run["config"]["method"],
                run["config"]["seed"],
            )
        else:
            setting, method, seed = run["setting"], run["method"], run["seed"]
        found.setdefault(setting, {}).setdefault(method, []).append({**run, "seed": seed})
    settings = []
    for name, runs in found.items():
        ordered = {method: sorted(runs[method], key=lambda run: run["seed"]) for method in ORDER if method in runs}
        settings.append(Setting(name, ordered, "loss" if name.startswith("domains") else "bleu"))
    return sorted(settings, key=lambda setting: (setting.measure, setting.name))


def shown(values: Sequence[float], digits: int) -> str:
    """A mean, and the lowest and the highest where there are several."""
    text = f"{mean(values):.{digits}f}"
    return text if len(values) == 1 else f"{text} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def table(setting: Setting) -> list[str]:
    """All methods of a setting, the best by dev score first."""
    word, digits = ("BLEU", 2) if setting.measure == "bleu" else ("loss", 4)
    lines = [f"| mixture | seeds | dev {word} | test {word} | dev expected accuracy | most passes | updates take |"]
    lines.append("|---|---|---|---|---|---|---|")
    for method in sorted(setting.runs, key=lambda one: -setting.sign * mean(setting.scores(one, "dev"))):
        runs = setting.runs[method]
        accuracy = mean([mean([one["expected_accuracy"] for one in run["dev"].values()]) for run in runs])
        passes = max(mean([run["curve"][-1]["passes"][name] for run in runs]) for name in runs[0]["dev"])
        seconds = [run["seconds"] for run in runs]
        cost = 100 * mean([one.get("updates", 0.0) / one["steps"] for one in seconds])
        lines.append(
            f"| {named(method)} | {len(runs)} | {shown(setting.scores(method, 'dev'), digits)} "
            f"| {shown(setting.scores(method, 'test'), digits)} | {accuracy:.4f} | {passes:.0f} | "
            f"{f'{cost:.0f}%' if cost >= 0.5 else '-'} |"
        )
    return lines


def summary(settings: Sequence[Setting]) -> list[str]:
    """The default against the rival of each setting, its own anchor and its control."""
    lines = [
        "| setting | best rival by dev score | default against it | against its anchor | against shuffled rewards |",
        "|---|---|---|---|---|",
    ]
    for setting in settings:
        if DEFAULT not in setting.runs:
            continue
        cells = []
        for other in (setting.rival(), ANCHOR, CONTROL):
            if other not in setting.runs:
                cells.append("-")
                continue
            gain, low, high, seeds = setting.gain(DEFAULT, other)
            percent = "" if setting.measure == "bleu" else "%"
            around = "" if math.isnan(low) else f" ({low:+.2f} to {high:+.2f})"
            cells.append(f"{gain:+.2f}{percent}{around}, {seeds} seed{'' if seeds == 1 else 's'}")
        lines.append(f"| {setting.name} | {setting.rival()} | {' | '.join(cells)} |")
    return lines


def overall(settings: Sequence[Setting]) -> str:
    """The mean of the gains over the rivals of the settings with BLEU, and how sure it is."""
    gains = [one.gain(DEFAULT, one.rival()) for one in settings if DEFAULT in one.runs and one.measure == "bleu"]
    gain = mean([one[0] for one in gains])
    around = math.sqrt(math.fsum(((high - low) / 2) ** 2 for _, low, high, _ in gains)) / len(gains)
    return f"{gain:+.2f} BLEU (± {around:.2f}) on average over the {len(gains)} settings of translation."


def regrets(settings: Sequence[Setting]) -> list[str]:
    """How far every mixture is behind the best of its setting, in per cent of the test score: the price of one choice
    for all settings. Only settings that the whole field ran in, and mixtures that ran in all of those.
    """
    settings = [setting for setting in settings if all(method in setting.runs for method in FIELD)]
    everywhere = [m for m in ORDER if m not in (CONTROL, *TRIALS) and all(m in setting.runs for setting in settings)]
    if not settings:
        return ["No setting has all of them yet."]
    seeds = {s.name: s.common(everywhere) for s in settings}
    best = {s.name: max(s.sign * mean(s.scores(m, "test", seeds[s.name])) for m in everywhere) for s in settings}

    def behind(method: str, setting: Setting) -> float:
        score = setting.sign * mean(setting.scores(method, "test", seeds[setting.name]))
        return 100 * (best[setting.name] - score) / abs(best[setting.name])

    lines = [
        "| mixture | " + " | ".join(WORDS.get(setting.name, setting.name) for setting in settings) + " | mean | worst |"
    ]
    lines.append("|---|" + "---|" * (len(settings) + 2))
    rows = {method: [behind(method, setting) for setting in settings] for method in everywhere}
    for method in sorted(rows, key=lambda one: mean(rows[one])):
        cells = " | ".join(f"{value:.1f}%" for value in (*rows[method], mean(rows[method]), max(rows[method])))
        lines.append(f"| {named(method)} | {cells} |")
    lines.append(f"| *seeds* | {' | '.join(str(len(seeds[setting.name])) for setting in settings)} | | |")
    return lines


def page(settings: Sequence[Setting], measured: Mapping[str, Sequence[gains.Moment]]) -> str:
    text = (ROOT / "experiments" / "results-intro.md").read_text(encoding="utf-8").rstrip() + "\n\n"
    text += "## The default against the best that can be had without learning\n\n" + "\n".join(summary(settings))
    text += "\n\nThe default against its rivals: " + overall(settings)
    text += (
        "\n\nBLEU points, or per cent of the loss for the language model; positive: the default is better. In brackets "
        "95% intervals: for BLEU over seeds and test sentences (both drawn anew, sentences alike), for losses over "
        "seeds (Student's, by pairs of the same seed). Only runs of the same seeds are compared; with one seed the "
        "interval of BLEU is over sentences alone, and equal runs differ by half a point for no reason.\n\n"
    )
    text += "## The price of one choice for everything\n\n" + "\n".join(regrets(settings)) + "\n\n"
    text += (
        "How far behind the best mixture of each setting, by test score, among those that ran in all of them, over the "
        "seeds that all have.\n"
    )
    text += "\n" + gains.section(measured)
    for setting in settings:
        text += f"\n## {setting.name}\n\n" + "\n".join(table(setting)) + "\n"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether docs/results.md is up to date")
    given = parser.parse_args()
    settings, measured = read(ROOT / "results"), gains.read(ROOT / "results")
    path, text = ROOT / "docs" / "results.md", page(settings, measured)
    if not given.check:
        path.write_text(text, encoding="utf-8")
        # The same points are other bytes with another version of matplotlib.
        path.with_name("gains.svg").write_text(gains.picture(measured), encoding="utf-8")
    elif not path.exists() or path.read_text(encoding="utf-8") != text:
        sys.exit(f"{path.relative_to(ROOT)} is not what results/ says: python experiments/results.py")


if __name__ == "__main__":
    main()
