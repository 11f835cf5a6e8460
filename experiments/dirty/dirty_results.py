"""Adds the runs of `dirty.toml` to results.jsonl, and prints the table of docs/dirty-data.md.

    python experiments/dirty/dirty_results.py data/catalogues-damaged runs/dirty > table.md

The table has the scores by seed, and how much of the lost BLEU each remedy brings back, by means over seeds. The lines
below it say how well the trust of the `dds` runs finds the damage (`damage_found.py`), and what their updates cost.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean

sys.path.append(str(Path(__file__).resolve().parents[1] / "study"))
from results_file import Key, Run, add_run, read_runs

RESULTS = Path(__file__).with_name("results.jsonl")
ROWS = {
    "clean": "catalogues-m2o/alike",
    "damaged": "catalogues-damaged/alike",
    "damaged, `dds`": "catalogues-damaged/dds",
    "damaged, a third with the highest losses left out": "catalogues-damaged/highest-losses",
    "damaged, exactly what is wrong left out": "catalogues-left-out/alike",
    "clean, `dds`": "catalogues-m2o/dds",
}


def finished(corpus: Path, folder: Path, there: Mapping[Key, Run]) -> Iterator[tuple[Key, Run]]:
    """Yields what the finished runs of a folder have reached, but for those that are there already."""
    from damage_found import judged

    from multidds.nmt.runs import checkpoints

    for path in sorted(folder.glob("*/*/seed-*/scores.json")):
        setting, method, seed = path.parent.relative_to(folder).parts
        key = setting, method, int(seed.removeprefix("seed-"))
        if key in there:
            continue
        scores = json.loads(path.read_text(encoding="utf-8"))
        facts = {name: scores[name] for name in ("average", "pairs", "signatures")}
        _, state = checkpoints.read(checkpoints.listed(path.parent)[-1])
        facts["seconds"] = state["progress"]["seconds"]
        if (setting, method) == ("catalogues-damaged", "dds"):
            facts["found"] = {name: value for name, value in judged(path.parent, corpus).items() if name != "run"}
        yield key, facts


def table(runs: Mapping[Key, Run]) -> str:
    """As Markdown."""
    average = {
        row: [run["average"] for key, run in sorted(runs.items()) if key[:2] == tuple(of.split("/"))]
        for row, of in ROWS.items()
    }
    best, worst = (fmean(one["bleu"] for one in average[row]) for row in ("clean", "damaged"))
    lines = ["| | test BLEU, by seed | mean | chrF | brought back |", "|---|---|---|---|---|"]
    for row, scores in average.items():
        if not scores:
            continue
        mean, chrf = (fmean(one[measure] for one in scores) for measure in ("bleu", "chrf"))
        back = f"{(mean - worst) / (best - worst):.0%}" if row.startswith("damaged,") else ""
        seeds = ", ".join(f"{one['bleu']:.2f}" for one in scores)
        lines.append(f"| {row} | {seeds} | {mean:.2f} | {chrf:.2f} | {back} |")
    return "\n".join(lines)


def facts(runs: Mapping[Key, Run]) -> str:
    """AUCs and times of the `dds` runs, in lines."""
    lines = []
    for (setting, method, seed), run in runs.items():
        seconds = run["seconds"]
        share = seconds["updates"] / (seconds["steps"] + seconds["data"])
        drawing = seconds["data"] / seconds["steps"]
        line = f"{setting} {method} {seed}: updates {share:.1%} of steps and drawing, drawing {drawing:.1%} of steps"
        found = run.get("found", {})
        lines.append(line + "".join(f"; {key} {value:.3f}" for key, value in found.items() if isinstance(value, float)))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="the damaged text")
    parser.add_argument("runs", type=Path, help="the folder of the experiment")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file to add lines to")
    given = parser.parse_args()
    for key, found in finished(given.corpus, given.runs, read_runs(given.results)):
        add_run(given.results, key, found)
    runs = read_runs(given.results)
    print(table(runs))
    print(facts(runs))


if __name__ == "__main__":
    main()
