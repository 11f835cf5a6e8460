"""The table of README.md from the runs of the language model: the default, the best fixed mixture, the best by hand.

python experiments/learned_results.py            # writes the table into README.md
python experiments/learned_results.py --check    # says whether it is up to date
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from domains_table import average, student

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "results" / "learned"
BEGIN, END = "<!-- made by experiments/learned_results.py -->\n", "<!-- end -->"
FIXED = ("proportional", "temperature-3", "temperature-5", "uniform")
WORDS = {  # {regime: what it is}
    "goal": "one goal among seven datasets, with 100 examples of its own",
    "goal-elsewhere": "one goal among six datasets, none of them its own",
    "unwanted": "eight goals, and a ninth dataset that serves none",
    "under-trained": "eight goals, each with a dataset of its own",
    "data-limited": "the same with little data, gone through ten times",
}

Runs = dict[str, dict[int, Mapping[str, Any]]]  # {method: {seed: run}}


def read(folder: Path) -> dict[str, Runs]:
    """Returns {regime: its runs}."""
    found: dict[str, Runs] = defaultdict(lambda: defaultdict(dict))
    for path in sorted(folder.glob("*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        config = run["config"]
        found[config["regime"]][config["method"]][config["seed"]] = run
    return found


def best(runs: Runs, methods: list[str]) -> str | None:
    """Returns the method with the lowest mean dev loss, over the seeds that all of them have."""
    there = [method for method in methods if method in runs]
    if not there:
        return None
    seeds = set.intersection(*(set(runs[method]) for method in there))
    return min(there, key=lambda method: mean(average(runs[method][seed], "dev", "loss") for seed in seeds))


def row(regime: str, runs: Runs) -> str:
    """Returns a line of the table: test losses, over the seeds that the default and its rival have."""
    rival, by_hand = best(runs, list(FIXED)), best(runs, [name for name in runs if name.startswith("by-hand")])
    assert rival is not None
    seeds = sorted(set(runs["learned"]) & set(runs[rival]))
    ours, theirs = ([average(runs[m][seed], "test", "loss") for seed in seeds] for m in ("learned", rival))
    change = 100 * (mean(ours) - mean(theirs)) / mean(theirs)
    around = 100 * student([a - b for a, b in zip(ours, theirs, strict=True)]) / mean(theirs)
    known = "-"
    if by_hand is not None:
        known = f"{mean(average(run, 'test', 'loss') for run in runs[by_hand].values()):.3f} ({len(runs[by_hand])})"
    fixed = f"{mean(theirs):.3f} ({rival.replace('-', ' ')})"
    plan = f"{mean(average(runs['planned'][seed], 'test', 'loss') for seed in seeds if seed in runs['planned']):.3f}"
    difference = f"{change:+.1f}% ± {around:.1f}"
    cells = (WORDS[regime], fixed, plan, f"**{mean(ours):.3f}**", difference, known, str(len(seeds)))
    return f"| {' | '.join(cells)} |"


def table(found: Mapping[str, Runs]) -> str:
    head = [
        "| setting | best fixed mixture | plan | learned | difference | best by hand (seeds) | seeds |",
        "|---" * 7 + "|",
    ]
    return "\n".join([*head, *(row(regime, found[regime]) for regime in WORDS if "learned" in found.get(regime, {}))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether README.md is up to date")
    given = parser.parse_args()
    page = ROOT / "README.md"
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    made = before + BEGIN + table(read(RUNS)) + "\n" + END + rest.partition(END)[2]
    if not given.check:
        page.write_text(made, encoding="utf-8")
    elif made != text:
        sys.exit("README.md is not what results/learned says: python experiments/learned_results.py")


if __name__ == "__main__":
    main()
