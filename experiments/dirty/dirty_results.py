"""From the runs of `dirty.toml` to results/damaged-translations.json and the table of docs/dirty-data.md.

    python experiments/dirty/dirty_results.py data/catalogues-damaged runs/dirty > table.md

Scores by seed; how much of what the damage costs each remedy brings back, of the means over seeds; how well the trust
of the `dds` runs finds the damage (`damage_found.py`), and the time of their updates beside that of steps and drawing.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results" / "damaged-translations.json"
ROWS = {
    "clean": "catalogues-m2o/alike",
    "damaged": "catalogues-damaged/alike",
    "damaged, `dds`": "catalogues-damaged/dds",
    "damaged, a third with the highest losses left out": "catalogues-damaged/highest-losses",
    "damaged, exactly what is wrong left out": "catalogues-left-out/alike",
    "clean, `dds`": "catalogues-m2o/dds",
}


def collected(corpus: Path, folder: Path) -> dict[str, Any]:
    """What the runs that are there have reached, by name."""
    from damage_found import judged

    from multidds.nmt.runs import checkpoints

    runs, signatures = {}, {}
    for path in sorted(folder.glob("*/*/seed-*/scores.json")):
        scores = json.loads(path.read_text(encoding="utf-8"))
        name = path.parent.relative_to(folder).as_posix()
        found = {"average": scores["average"], "pairs": scores["pairs"]}
        _, state = checkpoints.read(checkpoints.listed(path.parent)[-1])
        found["seconds"] = {key: round(value, 1) for key, value in state["progress"]["seconds"].items()}
        if name.startswith("catalogues-damaged/dds"):
            found["found"] = {key: value for key, value in judged(path.parent, corpus).items() if key != "run"}
        runs[name], signatures = found, scores["signatures"]
    return {
        "what": "Translations from damaged training data (docs/dirty-data.md)",
        "signatures": signatures,
        "runs": runs,
    }


def table(results: dict[str, Any]) -> str:
    """As Markdown."""
    runs = results["runs"]
    bleu = {
        row: [runs[name]["average"]["bleu"] for name in sorted(runs) if name.startswith(f"{of}/")]
        for row, of in ROWS.items()
    }
    chrf = {
        row: [runs[name]["average"]["chrf"] for name in sorted(runs) if name.startswith(f"{of}/")]
        for row, of in ROWS.items()
    }
    best, worst = statistics.fmean(bleu["clean"]), statistics.fmean(bleu["damaged"])
    lines = ["| | test BLEU, by seed | mean | chrF | brought back |", "|---|---|---|---|---|"]
    for row in ROWS:
        if not bleu[row]:
            continue
        mean, seeds = statistics.fmean(bleu[row]), ", ".join(f"{value:.2f}" for value in bleu[row])
        back = f"{(mean - worst) / (best - worst):.0%}" if row.startswith("damaged,") else ""
        lines.append(f"| {row} | {seeds} | {mean:.2f} | {statistics.fmean(chrf[row]):.2f} | {back} |")
    return "\n".join(lines)


def facts(results: dict[str, Any]) -> str:
    """AUCs and times of the `dds` runs, in lines."""
    lines = []
    for name, run in results["runs"].items():
        seconds = run["seconds"]
        share = seconds["updates"] / (seconds["steps"] + seconds["data"])
        drawing = seconds["data"] / seconds["steps"]
        line = f"{name}: updates {share:.1%} of steps and drawing, drawing {drawing:.1%} of steps"
        found = run.get("found", {})
        lines.append(line + "".join(f"; {key} {value:.3f}" for key, value in found.items() if isinstance(value, float)))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="the damaged text")
    parser.add_argument("runs", type=Path, help="the folder of the experiment")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the results go")
    given = parser.parse_args()
    results = collected(given.corpus, given.runs)
    given.json.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(table(results))
    print(facts(results))


if __name__ == "__main__":
    main()
