"""BLEU on part of the dev sets, by real translation: for `[train] select = "translation"`.

Works on prepared tokens: references are put together from the pieces of the vocabulary, so that a run needs no text
beside its data folder. They are normalised as sentencepiece does it; final scores are `evaluate`'s.
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
from ..evaluation.translate import begin, convert, open_model, text_of

_FOLDER = "validation.partial"  # of the converted model, while it is being loaded


def dev_bleu(
    config: Config,
    weights: Mapping[str, Tensor],
    vocabulary: Mapping[str, list[str]],
    dev: Mapping[str, Sentences],
    run: Path,
    threads: int,
    processes: Processes | None = None,
) -> tuple[dict[str, float], str]:
    """({language pair: BLEU}, sacreBLEU's signature) of a model with these weights, translating as [translate] says.

    Processes share the dev sets. A dev set is translated as a whole, so that its batches do not depend on them.
    """
    processes = processes or Processes()
    model = _converted(config, weights, vocabulary, run / _FOLDER, threads, processes)
    mine = {name: dev[name] for name in list(dev)[processes.rank :: processes.size]}
    shares = processes.gathered(bleu_of(model, config, vocabulary, mine, config.train.select_sentences))
    scores = {name: score for share, _ in shares for name, score in share.items()}
    return {name: scores[name] for name in dev}, shares[0][1]


def _converted(
    config: Config,
    weights: Mapping[str, Tensor],
    vocabulary: Mapping[str, list[str]],
    folder: Path,
    threads: int,
    processes: Processes,
) -> ctranslate2.Translator:
    """Written by the first process, read by all."""
    try:
        if processes.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            convert(config, {name: tensor.cpu().numpy() for name, tensor in weights.items()}, vocabulary, folder)
        processes.meet()  # it is written
        model = open_model(folder, threads)
        processes.meet()  # it is read
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror or error}") from None
    finally:
        if processes.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
    return model


def bleu_of(
    model: ctranslate2.Translator,
    config: Config,
    vocabulary: Mapping[str, list[str]],
    dev: Mapping[str, Sentences],
    most: int,
) -> tuple[dict[str, float], str]:
    """The same of a model that is converted already, with at most so many sentences of each dev set."""
    metric = BLEU()
    scores = {name: _score(model, config, vocabulary, sentences, metric, most) for name, sentences in dev.items()}
    return scores, str(metric.get_signature())


def _score(
    model: ctranslate2.Translator,
    config: Config,
    vocabulary: Mapping[str, list[str]],
    sentences: Sentences,
    metric: BLEU,
    most: int,
) -> float:
    sources, references = [], []
    for i in spread(len(sentences), most):
        source, target = sentences.tokens(i)
        sources.append([vocabulary["source"][token] for token in source])
        references.append(text_of([vocabulary["target"][token] for token in target]))
    hypotheses = [text_of(found.result().hypotheses[0]) for found in begin(model, config, sources)]
    return float(metric.corpus_score(hypotheses, [references]).score)


def spread(size: int, count: int) -> list[int]:
    """At most `count` of `size` sentences, evenly spaced: neighbours in a file are often alike."""
    count = min(size, count)
    return [i * size // count for i in range(count)]
