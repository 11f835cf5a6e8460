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

from .config import read_run
from .errors import UserError
from .files import write_whole
from .names import file_name
from .prepare import Prepared
from .translate import Translator, export


def evaluate(run: Path, threads: int = 0, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Translate all test sets with the best model, score them, and keep both; what is there already is used."""
    config, facts = read_run(run)
    prepared = Prepared(config)
    if facts["data"] != prepared.fingerprint:
        raise UserError(
            f"{run}: was trained on other data than is in {prepared.folder} now, and so were its test sets."
        )
    stamp = json.loads((export(run) / "multidds.json").read_text(encoding="utf-8"))
    settings = json.loads(config.translate.model_dump_json())
    scores = _existing(run)
    made_for = {"model": stamp, "settings": settings, "data": facts["data"]}
    if scores is not None and all(scores[key] == value for key, value in made_for.items()):
        return scores
    translator = Translator(run, threads)
    pairs: dict[str, Any] = {}
    signatures: dict[str, str] = {}
    for pair in config.data.pairs:
        say(f"translating {pair.name}")
        sources = prepared.test_lines(pair.name, "source")
        references = prepared.test_lines(pair.name, "target")
        hypotheses = list(translator.translate(sources, pair.source, pair.target, long_lines="split"))
        for folder, lines in (("hypotheses", hypotheses), ("references", references)):
            text = "".join(line + "\n" for line in lines)
            write_whole(run / folder / f"{file_name(pair.name)}.txt", text)
        pairs[pair.name] = {"sentences": len(references)}
        for key, metric in (("bleu", BLEU()), ("chrf", CHRF())):
            pairs[pair.name][key] = metric.corpus_score(hypotheses, [references]).score
            signatures[key] = str(metric.get_signature())
    averages = {key: math.fsum(pair[key] for pair in pairs.values()) / len(pairs) for key in ("bleu", "chrf")}
    scores = {"pairs": pairs, "average": averages, "signatures": signatures, "model": stamp, "settings": settings}
    scores |= {"data": facts["data"], "seed": config.train.seed}
    write_whole(run / "scores.json", json.dumps(scores, indent=1) + "\n")
    return scores


def _existing(run: Path) -> dict[str, Any] | None:
    """scores.json of an earlier call, if the texts that it scores are there too."""
    try:
        scores = json.loads((run / "scores.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(scores, dict) or not {"model", "settings", "data", "pairs"} <= scores.keys():
        return None
    texts = [
        run / folder / f"{file_name(name)}.txt" for name in scores["pairs"] for folder in ("hypotheses", "references")
    ]
    return scores if all(path.exists() for path in texts) else None
