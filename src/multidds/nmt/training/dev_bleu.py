"""BLEU of part of the dev sets, by real translation: for `[train] select = "translation"`.

Works on prepared tokens: references are joined from the pieces of the vocabulary, so that a run needs no text beside
its data folder. They are normalised as sentencepiece does it; final scores are those of `evaluate`.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

import ctranslate2
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor

from ..batches.sentences import Sentences
from ..common.errors import UserError
from ..common.processes import Processes
from ..config.config import Config
from ..evaluation import convert
from ..evaluation.translate import begin, open_model, text_of

_FOLDER = "validation.partial"  # of the converted model, until it is loaded


def dev_bleu(
    config: Config,
    weights: Mapping[str, Tensor],
    vocabulary: Mapping[str, list[str]],
    dev: Mapping[str, Sentences],
    run: Path,
    threads: int,
    processes: Processes | None = None,
) -> tuple[dict[str, float], str]:
    """Returns {language pair: BLEU} of a model with these weights, and sacreBLEU's signature.

    Processes divide the dev sets. A dev set is translated as a whole, so that its batches do not depend on them.
    """
    processes, folder = processes or Processes(), run / _FOLDER
    try:
        if processes.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            convert(config, {name: tensor.cpu().numpy() for name, tensor in weights.items()}, vocabulary, folder)
        processes.meet()  # it is written
        model = open_model(folder, threads)
        processes.meet()  # all have read it
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror or error}") from None
    finally:
        if processes.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
    mine = {name: dev[name] for name in list(dev)[processes.rank :: processes.size]}
    shares = processes.gathered(bleu_of(model, config, vocabulary, mine, config.train.select_sentences))
    scores = {name: score for share, _ in shares for name, score in share.items()}
    return {name: scores[name] for name in dev}, shares[0][1]


def bleu_of(
    model: ctranslate2.Translator,
    config: Config,
    vocabulary: Mapping[str, list[str]],
    dev: Mapping[str, Sentences],
    most: int,
) -> tuple[dict[str, float], str]:
    """Scores a converted model on at most `most` sentences of each dev set."""
    metric, scores = BLEU(), {}
    for name, sentences in dev.items():
        sources, references = [], []
        for i in evenly_spaced(len(sentences), most):
            source, target = sentences.tokens(i)
            sources.append([vocabulary["source"][token] for token in source])
            references.append(text_of([vocabulary["target"][token] for token in target]))
        hypotheses = [text_of(result.result().hypotheses[0]) for result in begin(model, config, sources)]
        scores[name] = float(metric.corpus_score(hypotheses, [references]).score)
    return scores, str(metric.get_signature())


def evenly_spaced(size: int, count: int) -> list[int]:
    """Returns at most `count` of `size` sentences: neighbours in a file are often alike."""
    count = min(size, count)
    return [i * size // count for i in range(count)]
