"""Test-set scores with sacreBLEU against the raw references.

Writes scores.json, hypotheses/ and references/ into the run, so that significance.py can compare runs without the data
they were trained on. Does not import torch.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from ..common.checksummed import read_checksummed, sha256, write_checksummed
from ..common.errors import DamagedError, UserError
from ..common.escaping import file_name
from ..common.files import LOCK, locked, write_whole
from ..config.config import read_run
from ..prepare import Prepared
from .scores import FILE, check_texts, read_scores
from .translate import STAMP, Translator, export

Say = Callable[[str], None]
_AGAIN = "run 'multidds evaluate' again."


def evaluate(
    run: Path, threads: int = 0, say: Say = lambda text: None, notice: Say = lambda text: None
) -> dict[str, Any]:
    """Translate all test sets with the best model, score them, and keep both; what is there already is used.

    What is damaged is made again; `notice` is told.
    """
    config, facts = read_run(run)
    prepared = Prepared(config)
    if facts["data"] != prepared.fingerprint:
        raise UserError(
            f"{run}: was trained on other data than is in {prepared.folder} now, and so were its test sets."
        )
    made_for = {
        "model": read_checksummed(export(run, notice) / STAMP, _AGAIN),
        "settings": json.loads(config.translate.model_dump_json()),
        "data": facts["data"],
    }
    scores = _existing(run, notice)
    if scores is not None and all(scores[key] == value for key, value in made_for.items()):
        return scores
    with locked(run / f"scores{LOCK}", f"{run}: is being evaluated by another process."):
        translator = Translator(run, threads)
        texts: dict[str, dict[str, list[str]]] = {}
        for pair in config.data.pairs:
            say(f"translating {pair.name}")
            sources = prepared.test_lines(pair.name, "source")
            hypotheses = list(translator.translate(sources, pair.source, pair.target, long_lines="split"))
            texts[pair.name] = {"hypotheses": hypotheses, "references": prepared.test_lines(pair.name, "target")}
        files = {}
        for name, of_pair in texts.items():
            for folder, lines in of_pair.items():
                place = f"{folder}/{file_name(name)}.txt"
                write_whole(run / place, "".join(line + "\n" for line in lines))
                files[place] = sha256(run / place)
        scores = {**_scored(texts), **made_for, "seed": config.train.seed, "files": files}
        write_checksummed(run / FILE, scores)
    return scores


def _scored(texts: dict[str, dict[str, list[str]]]) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    signatures: dict[str, str] = {}
    for name, of_pair in texts.items():
        pairs[name] = {"sentences": len(of_pair["references"])}
        for key, metric in (("bleu", BLEU()), ("chrf", CHRF())):
            pairs[name][key] = metric.corpus_score(of_pair["hypotheses"], [of_pair["references"]]).score
            signatures[key] = str(metric.get_signature())
    averages = {key: math.fsum(pair[key] for pair in pairs.values()) / len(pairs) for key in ("bleu", "chrf")}
    return {"pairs": pairs, "average": averages, "signatures": signatures}


def _existing(run: Path, notice: Say) -> dict[str, Any] | None:
    """The scores of an earlier call, if the texts that they score are there and whole too."""
    try:
        scores = read_scores(run)
        if scores is not None:
            check_texts(run, scores)
    except DamagedError as error:
        notice(f"{error} Doing so now.")
        return None
    return scores
