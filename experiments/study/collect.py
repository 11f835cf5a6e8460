"""Adds each finished run of `multidds experiment` to a results file, with what tables, figures and tests need.

A line has the scores of the test sets with BLEU's counts per sentence, BLEU of the whole dev sets, curves, config,
seconds and commit. The dev sets are translated here, once. There are no models, no text and no paths. results.py makes
docs/results.md from these lines.

    python experiments/study/collect.py runs/study experiments/study/results.jsonl
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from bleu_counts import counts_of
from domains import commit
from results_file import add_run, read_runs
from sacrebleu.metrics.bleu import BLEU

from multidds import __version__
from multidds.history import moments_of
from multidds.nmt.batches.sentences import Sentences
from multidds.nmt.config.config import Config, read_run
from multidds.nmt.evaluation import export
from multidds.nmt.evaluation.scores import read_scores, scored_lines
from multidds.nmt.evaluation.translate import begin, open_model, text_of
from multidds.nmt.prepare import Prepared
from multidds.nmt.runs.record_files import read_records
from multidds.nmt.runs.records import Validated


def facts_of(run: Path, threads: int) -> dict[str, Any]:
    """Everything that is kept of a run that has been evaluated."""
    config, made = read_run(run)
    scores = read_scores(run)
    assert scores is not None
    records = read_records(run)
    validations = [record for record in records if isinstance(record, Validated)]
    updates = [moment for moment in moments_of(run) if moment.step > 0]
    last = validations[-1]
    best = [record for record in validations if record.best][-1]
    prepared = Prepared(config)
    dev = {name: Sentences(prepared, name, "dev") for name in config.data.names}
    bleu = bleu_of(run, config, prepared, dev, threads)
    measures = ("dev_loss", "accuracy", "expected_accuracy", "soft_bleu")
    dumped = json.loads(config.model_dump_json())
    data = {"pairs": config.data.names, "sizes": {name: made["pairs"][name]["train"]["pairs"] for name in bleu}}
    return {
        "test": scores["pairs"],
        "dev": {name: {"bleu": bleu[name]} | {key: getattr(best, key)[name] for key in measures} for name in bleu},
        "best_step": best.step,
        "steps": last.step,
        "curve": [{"step": v.step, "means": v.means, "passes": v.passes, "mixture": v.mixture} for v in validations],
        "updates": [
            {
                "step": u.step,
                "mixture": u.mixture,
                "rewards": u.groups["reward"],
                "noise": u.groups.get("noise", {}),
                "signal": u.facts.get("signal"),
            }
            for u in updates
        ],
        "seconds": last.clock,
        "config": data | {section: dumped[section] for section in ("model", "train", "mixture", "vocabulary")},
        "signatures": scores["signatures"],
        "versions": made["versions"] | {"multidds": __version__, "commit": commit(Path())},
        "sentences": {
            name: counts_of(*(scored_lines(run, part, name) for part in ("hypotheses", "references"))) for name in bleu
        },
    }


def bleu_of(run: Path, config: Config, prepared: Prepared, dev: dict[str, Sentences], threads: int) -> dict[str, float]:
    """Translates the dev sets, and scores them against their prepared text."""
    model, vocabulary, found = open_model(export(run), threads), prepared.vocabulary, {}
    for name, sentences in dev.items():
        tokens = [sentences.tokens(i) for i in range(len(sentences))]
        results = begin(model, config, [[vocabulary["source"][token] for token in source] for source, _ in tokens])
        hypotheses = [text_of(result.result().hypotheses[0]) for result in results]
        references = [text_of([vocabulary["target"][token] for token in target]) for _, target in tokens]
        found[name] = float(BLEU().corpus_score(hypotheses, [references]).score)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="the folder of an experiment")
    parser.add_argument("results", type=Path, help="the file to add lines to; runs that are there are kept")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    there = read_runs(given.results)
    for scores in sorted(given.runs.glob("*/*/*/scores.json")):
        run = scores.parent
        setting, method, seed = run.parts[-3:]
        key = setting, method, int(seed.removeprefix("seed-"))
        if key in there:
            continue
        facts = facts_of(run, given.threads)
        add_run(given.results, key, facts)
        test, dev = (sum(one["bleu"] for one in facts[part].values()) / len(facts[part]) for part in ("test", "dev"))
        print(f"{setting} {method} {key[2]}: dev BLEU {dev:.2f}, test BLEU {test:.2f}", file=sys.stderr)


if __name__ == "__main__":
    main()
