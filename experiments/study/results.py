"""docs/results.md, the table of README.md and the pictures of both, from the results of the experiments.

python experiments/study/results.py            # writes them
python experiments/study/results.py --check    # says whether they are up to date
"""

import argparse
import io
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

import matplotlib as mpl
from matplotlib.figure import Figure
from readme_picture import FONTS, INKS
from results_file import Run, read_runs
from study import FIXED, SETTINGS, Setting, markdown, read

from multidds import __version__

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "experiments" / name) for name in ("dirty", "paper")]

import dirty_results  # noqa: E402
import paper_scale  # noqa: E402

RESULTS = Path(__file__).with_name("results.jsonl")
BEGIN, END = "<!-- made by experiments/study/results.py -->\n", "<!-- end -->"


PAPER = "multidds-s"


def versions(runs: Mapping[int, Run]) -> str:
    """Returns the versions of runs that are not of this version, in words; empty: all are."""
    return ", ".join(sorted({run["versions"].get("multidds", "0.2.0") for run in runs.values()} - {__version__}))


def row(setting: Setting) -> list[str]:
    """Returns the cells of a setting, over the seeds that the default and its rival have; the best but by hand bold."""
    ours, rival, by_hand = setting.default, setting.rival, setting.by_hand
    gain, low, high, seeds = setting.gain(ours, rival)
    common = setting.common([ours, rival])
    unit = " BLEU" if setting.measure == "bleu" else "%"
    around = "" if math.isnan(low) else f" ({low:+.1f} to {high:+.1f})"
    means = {method: setting.mean(method, "test", common) for method in (rival, ours)}
    if PAPER in setting.runs:
        means[PAPER] = setting.mean(PAPER, "test")
    best = max(means, key=lambda method: setting.sign * means[method])
    shown = {m: f"**{setting.shown(v)}**" if m == best else setting.shown(v) for m, v in means.items()}
    if older := versions(setting.runs[ours]):
        shown[ours] += f" ({older})"
    return [
        SETTINGS[setting.name],
        f"{shown[rival]} ({setting.named(rival)})",
        shown.get(PAPER, "not run"),
        shown[ours],
        f"{gain:+.1f}{unit}{around}",
        setting.shown(setting.mean(by_hand, "test")) if by_hand else "none made",
        str(seeds),
    ]


def summary(settings: Sequence[Setting]) -> str:
    head = ["setting", "best fixed mixture", "MultiDDS-S", "learned", "gain", "by hand", "seeds"]
    return markdown(head, map(row, settings))


def front(settings: Sequence[Setting]) -> str:
    """Returns the first lines of the README: what learning brings in four settings."""
    by_name = {setting.name: setting for setting in settings}
    lines = []
    for name, words in (
        ("embeddings-noise", "One of six datasets is noise (sentence-transformers)"),
        ("trl-goal", "One goal among six instruction sets (TRL)"),
        ("untranslated", "Two of eight corpora are broken (translation)"),
    ):
        setting = by_name[name]
        seeds = setting.common([setting.default, setting.rival])
        fixed, ours = (setting.shown(setting.mean(one, "test", seeds)) for one in (setting.rival, setting.default))
        measure = "" if setting.measure == "bleu" else f"{setting.measure} "
        known = setting.shown(setting.mean(setting.by_hand, "test")) if setting.by_hand else ""
        lines.append(
            f"- **{words}**: {measure}{fixed} with the best fixed mixture, **{ours}** learned, {known} by hand."
        )
    good = by_name["under-trained"].gain(by_name["under-trained"].default, by_name["under-trained"].rival)[0]
    lines.append(f"- **All data is good** (language model): {good:+.1f}%, level with the best of four fixed mixtures.")
    return "\n".join(lines)


def levels(settings: Sequence[Setting]) -> str:
    """Returns the three ways to use it, each with its cost and what it was measured to bring."""
    found = regrets(settings)
    said = {name: f"{fmean(values):.1f}% (worst {max(values):.0f}%)" for name, values in found.items()}
    fixed = min(FIXED, key=lambda method: fmean(found[method]))
    ahead = sorted(-one.behind(one.default, [one.rival]) for one in settings if one.by_hand is not None)
    dirty = dirty_results.table(read_runs(dirty_results.RESULTS))
    (recovered,) = re.findall(r"\| damaged, `dds` .* \| (\d+%) \|", dirty)
    rows = [
        [
            "**1. Plan**: `Mixture.planned(sizes, draws)` instead of a temperature",
            "nothing",
            f"average [regret](docs/results.md#one-choice-for-everything) {said['planned']}; "
            f"the best single fixed mixture, {settings[0].named(fixed)}, has {said[fixed]}",
        ],
        [
            "**2. Learn**: a `Balancer`, for goals and for data of unknown worth",
            "2% of a long training, up to 15% of a short one",
            f"average regret {said['learned']}; where data is broken or one goal counts, {median(ahead):.0f}% ahead of "
            "the best fixed mixture (median)",
        ],
        [
            "**3. Single examples**: [dirty data](docs/dirty-data.md)",
            "a fifth of the time",
            f"recovers {recovered} of the BLEU lost to wrong targets",
        ],
    ]
    return markdown(["", "costs", "measured"], rows)


def table(setting: Setting) -> str:
    """Returns all methods of a setting, the best by dev score first."""
    rows = []
    for method in sorted(setting.runs, key=lambda one: -setting.sign * setting.mean(one, "dev")):
        runs = setting.runs[method]
        times = [run["seconds"] for run in runs.values()]
        cost = 100 * fmean(one.get("updates", 0.0) / one.get("steps", 1.0) for one in times)
        scores = [setting.score(method, seed, "test") for seed in runs]
        spread = f" ({setting.shown(min(scores))} to {setting.shown(max(scores))})" if len(scores) > 1 else ""
        name = f"**{setting.named(method)}**" if method == setting.default else setting.named(method)
        if method in ("learned", "shuffled") and (older := versions(runs)):
            name += f" ({older})"
        test = setting.shown(fmean(scores)) + spread
        last = f"{cost:.0f}%" if cost >= 0.5 else "-"
        rows.append([name, str(len(runs)), setting.shown(setting.mean(method, "dev")), test, last])
    title = f"### {SETTINGS[setting.name]} (`{setting.name}`)\n\n"
    return title + markdown(["mixture", "seeds", "dev", "test", "updates take"], rows) + "\n"


def regrets(settings: Sequence[Setting]) -> dict[str, list[float]]:
    """Returns {mixture: [its regret in each setting: per cent of the test score behind the best of those that ran]}."""
    methods = {method: method for method in (*FIXED, "planned", PAPER)}
    found: dict[str, list[float]] = {method: [] for method in (*methods, "learned")}
    for setting in settings:
        own = {name: one for name, one in (methods | {"learned": setting.default}).items() if one in setting.runs}
        for name, method in own.items():
            found[name].append(setting.behind(method, list(own.values())))
    return found


def regret_table(settings: Sequence[Setting]) -> str:
    rows = []
    for method, values in sorted(regrets(settings).items(), key=lambda item: fmean(item[1])):
        name = "**learned**" if method == "learned" else settings[0].named(method)
        rows.append([name, f"{fmean(values):.1f}%", f"{max(values):.1f}%", str(len(values))])
    return markdown(["mixture", "average regret", "worst", "settings"], rows)


def more_steps(settings: Sequence[Setting], variants: Mapping[str, Setting]) -> str:
    """Returns the best fixed mixture with the time of the updates as extra steps, beside the default."""
    head = ["setting", "best fixed mixture, 800 steps", "the same, 904 steps", "learned, 800 steps", "seeds"]
    rows = []
    for setting in settings:
        longer, method = variants.get(setting.name), f"{setting.rival}-904-steps"
        if longer is not None and method in longer.runs:
            seeds, loss = sorted(longer.runs[method]), longer.mean(method, "test")
            ours, fixed = (setting.mean(method, "test", seeds) for method in (setting.default, setting.rival))
            values = [f"{fixed:.3f}", f"{loss:.3f}", f"**{ours:.3f}**", str(len(seeds))]
            rows.append([SETTINGS[setting.name], *values])
    return markdown(head, rows)


def costs(settings: Sequence[Setting], variants: Mapping[str, Setting]) -> str:
    """Returns the test score of the default by the share of the training that probes may take, seed 1."""
    rows = []
    for setting in settings:
        other, name = variants.get(setting.name), f"{setting.default}-at-0.05"
        if other is not None and name in other.runs:
            values = (other.mean(name, "test", [1]), setting.mean(setting.default, "test", [1]))
            counts = (other.runs[name][1]["updates"], setting.runs[setting.default][1]["updates"])
            cells = [f"{value:.3f} ({len(updates)} updates)" for value, updates in zip(values, counts, strict=True)]
            rows.append([SETTINGS[setting.name], *cells])
    return markdown(["setting, test loss", "at most 5%", "at most 15%"], rows)


def repetition(settings: Sequence[Setting], variants: Mapping[str, Setting]) -> str:
    """Returns the learned mixture by the repetition that it assumes, seed 1."""
    rows = []
    for setting in settings:
        other = variants.get(setting.name)
        if other is not None and "repetition-15" in other.runs:
            runs = [
                (part, of, name)
                for part in ("dev", "test")
                for of, name in ((other, "repetition-15"), (setting, "learned"))
            ]
            rows.append([SETTINGS[setting.name], *(f"{of.mean(name, part, [1]):.2f}" for part, of, name in runs)])
    return markdown(["setting, BLEU", "R = 15, dev", "R = 40, dev", "R = 15, test", "R = 40, test"], rows)


def picture(settings: Sequence[Setting], ink: str) -> str:
    """Returns the gain of the default over the best fixed mixture in each setting, in per cent with its interval."""
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "multidds", "text.color": ink}):
        figure = Figure(figsize=(8.4, 1.1 + 0.36 * len(settings)), layout="constrained")
        figure.patch.set_alpha(1.0 if ink == INKS["light"] else 0.0)  # docs/results.md shows the light one on any page
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        places = list(range(len(settings), 0, -1))
        axes.axvline(0, color=ink, linewidth=0.8)
        for place, setting in zip(places, settings, strict=True):
            common = setting.common([setting.default, setting.rival])
            scale = 100 / setting.mean(setting.rival, "test", common) if setting.measure == "bleu" else 1.0
            gain, low, high = (scale * value for value in setting.gain(setting.default, setting.rival)[:3])
            if not math.isnan(low):
                axes.plot([low, high], [place, place], color="#4c8bf5", linewidth=2.5, alpha=0.45)
            axes.plot(gain, place, "o", color="#4c8bf5", markersize=7)
            axes.annotate(
                f"{gain:+.1f}%", (gain, place), (0, 6), textcoords="offset points", ha="center", fontsize=8, color=ink
            )
            if setting.by_hand is not None:
                known = setting.gain(setting.by_hand, setting.rival)[0] * scale
                axes.plot(known, place, "D", color="none", markeredgecolor=ink, markersize=6)
        axes.set_yticks(places, [SETTINGS[setting.name] for setting in settings], fontsize=9, color=ink)
        axes.set_xlabel("gain over the best fixed mixture, % of its test score (◇ by hand)", fontsize=9, color=ink)
        axes.set_ylim(0.4, len(settings) + 0.8)
        axes.tick_params(axis="x", labelsize=9, colors=ink)
        axes.tick_params(axis="y", length=0)
        for side in axes.spines.values():
            side.set_visible(False)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = re.sub(r"(?s)<metadata>.*?</metadata>\s*", "", file.getvalue())
    return re.sub(r"[ \t]+\n", "\n", re.sub(r"font-family: [^;\"]*", FONTS, text))


def page(settings: Sequence[Setting], variants: Mapping[str, Setting], paper: Mapping[str, Setting]) -> str:
    """Returns docs/results.md: the text of results-intro.md, with the tables at their marks."""
    text = Path(__file__).with_name("results-intro.md").read_text(encoding="utf-8")
    parts = {
        "summary": summary(settings),
        "regrets": regret_table(settings),
        "repetition": repetition(settings, variants),
        "costs": costs(settings, variants),
        "more-steps": more_steps(settings, variants),
        "all": "\n".join(map(table, settings)).rstrip(),
        **paper_scale.parts(paper),
    }
    for name, part in parts.items():
        assert f"<!-- {name} -->" in text, name
        text = text.replace(f"<!-- {name} -->", part)
    return text


def readme(settings: Sequence[Setting], text: str) -> str:
    """Returns README.md with its first lines and its two tables anew."""
    first, *parts = text.split(BEGIN)
    made = (front(settings), levels(settings), summary(settings))
    ends = [part.partition(END)[2] for part in parts]
    return first + "".join(f"{BEGIN}{new}\n{END}{rest}" for new, rest in zip(made, ends, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether the pages are up to date")
    given = parser.parse_args()
    found = read(RESULTS)
    settings = [found[name] for name in SETTINGS if name in found and found[name].complete]
    paper = read(paper_scale.RESULTS)
    front = ROOT / "README.md"
    made = {ROOT / "docs" / "results.md": page(settings, read(RESULTS, variants=True), paper)}
    made[front] = readme(settings, front.read_text(encoding="utf-8"))
    if given.check:
        old = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
        if old:
            names = ", ".join(str(path.relative_to(ROOT)) for path in old)
            sys.exit(f"{names}: not what the results say. Run python experiments/study/results.py")
        return
    # The same points are other bytes with another version of matplotlib, so --check leaves the pictures out.
    made |= {ROOT / "docs" / f"gap-{kind}.svg": picture(settings, ink) for kind, ink in INKS.items()}
    for text in paper_scale.picture(paper):
        made[ROOT / "docs" / "paper-scale.svg"] = text
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
