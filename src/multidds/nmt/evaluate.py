"""Test-set scores with sacreBLEU against the raw references, and significance by its paired bootstrap.

Writes scores.json, hypotheses/ and references/ into the run, so that runs can be compared without the data they were
trained on. Does not import torch.
"""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest, Result

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
    if scores is not None and [scores[key] for key in ("model", "settings", "data")] == [
        stamp,
        settings,
        facts["data"],
    ]:
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


def compare(run: Path, other: Path, samples: int = 1000) -> dict[str, dict[str, Any]]:
    """For every pair both runs have: scores of the two, and the p-value of their difference (paired bootstrap)."""
    configs = [read_run(folder)[0] for folder in (run, other)]
    shared = [name for name in configs[0].data.names if name in configs[1].data.names]
    if not shared:
        raise UserError(f"{run} and {other} have no language pair in common.")
    result = {}
    for name in shared:
        references = _lines(run, "references", name)
        if references != _lines(other, "references", name):
            raise UserError(f"{name!r}: {run} and {other} have different test sets.")
        systems: list[tuple[str, Sequence[str]]] = [
            (str(i), _lines(folder, "hypotheses", name)) for i, folder in enumerate((other, run))
        ]
        test = PairedTest(systems, {"BLEU": BLEU()}, [references], test_type="bs", n_samples=samples)
        _, results = test()
        theirs, ours = (result for result in results["BLEU"] if isinstance(result, Result))
        result[name] = {"bleu": ours.score, "against": theirs.score, "p": ours.p_value}
    return result


def _lines(run: Path, folder: str, pair: str) -> list[str]:
    try:
        return (run / folder / f"{file_name(pair)}.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except FileNotFoundError:
        raise UserError(f"{run}: has no {folder} of {pair!r}; run 'multidds evaluate' on it.") from None


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
