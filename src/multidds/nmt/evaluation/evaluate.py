"""Scores of the test sets by sacreBLEU, against the raw references.

Writes scores.json, hypotheses/ and references/ into the run, so that significance.py can compare runs without the data
that they were trained on. Does not import torch.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from multidds._base.errors import DamagedError, UserError
from multidds._base.escaping import file_name
from multidds._base.files import LOCK, locked, write_whole

from ..common.checksummed import read_checksummed, sha256, write_checksummed
from ..config.config import mean_of, read_run
from ..prepare import Prepared
from .export import STAMP, export
from .scores import FILE, check_texts, read_scores
from .translate import Translator

Show = Callable[[str], None]


def evaluate(
    run: Path, threads: int = 0, show: Show = lambda text: None, notice: Show = lambda text: None
) -> dict[str, Any]:
    """Translates all test sets with the best model, scores them, and keeps both; existing scores are used again.

    threads: the number of threads; 0: one per core.
    show: called with the present task.
    notice: called with a line if something is damaged and made again.
    """
    config, facts = read_run(run)
    prepared = Prepared(config)
    if facts["data"] != prepared.fingerprint:
        raise UserError(
            f"{run}: was trained on other data than is in {prepared.folder} now, and so were its test sets."
        )
    made_for = {
        "model": read_checksummed(export(run, notice) / STAMP, ""),
        "settings": json.loads(config.translate.model_dump_json()),
        "data": facts["data"],
    }
    scores = _existing(run, notice)
    if scores is not None and all(scores[key] == value for key, value in made_for.items()):
        return scores
    with locked(run / f"scores{LOCK}", f"{run}: is being evaluated by another process."):
        translator = Translator(run, threads)
        pairs: dict[str, dict[str, Any]] = {}
        files, signatures = {}, {}
        for pair in config.data.pairs:
            show(f"translating {pair.name}")
            sources, references = (prepared.test_lines(pair.name, side) for side in ("source", "target"))
            hypotheses = list(translator.translate(sources, pair.source, pair.target, long_lines="split"))
            for folder, lines in (("hypotheses", hypotheses), ("references", references)):
                place = f"{folder}/{file_name(pair.name)}.txt"
                write_whole(run / place, "".join(line + "\n" for line in lines))
                files[place] = sha256(run / place)
            pairs[pair.name] = {"sentences": len(references)}
            for key, metric in (("bleu", BLEU()), ("chrf", CHRF())):
                pairs[pair.name][key] = metric.corpus_score(hypotheses, [references]).score
                signatures[key] = str(metric.get_signature())
        averages = {
            key: mean_of({name: scored[key] for name, scored in pairs.items()}, config.dev_weights)
            for key in signatures
        }
        scores = {"pairs": pairs, "average": averages, "signatures": signatures, **made_for}
        scores |= {"run": facts.get("run"), "seed": config.train.seed, "files": files}
        write_checksummed(run / FILE, scores)
    return scores


def _existing(run: Path, notice: Show) -> dict[str, Any] | None:
    """Returns the scores of an earlier call, if they and the texts that they score are whole."""
    try:
        scores = read_scores(run)
        if scores is not None:
            check_texts(run, scores)
    except DamagedError as error:
        notice(f"{error} Doing so now.")
        return None
    return scores
