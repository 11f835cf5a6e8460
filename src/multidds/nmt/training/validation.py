"""Validation: the measures of one pass over the dev sets under teacher forcing, and the comparison of models by them.

Dev loss, token accuracy, expected accuracy and soft BLEU come from the probabilities of the correct tokens.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from ..batches.batch import Batch, assemble, evaluation_items
from ..batches.sentences import Sentences
from ..common.processes import Processes
from ..config.config import mean_of
from ..model.transformer import Transformer

ORDERS = (1, 2, 3, 4)  # the lengths of the n-grams, as in BLEU
KINDS = {"accuracy": "expected_accuracy", "soft-bleu": "soft_bleu"}  # {[train] select: measure}; others: dev_loss
MEASURES = {  # {[train] select: name of its value}
    "loss": "dev loss",
    "accuracy": "expected accuracy",
    "soft-bleu": "soft BLEU",
    "last": "dev loss",
}


@dataclass(frozen=True)
class Measured:
    """Measures of one model, as {language pair: value} over all target tokens of its dev set, </s> included."""

    dev_loss: dict[str, float]  # natural logarithm, without label smoothing
    accuracy: dict[str, float]  # share of the tokens that are the model's first choice
    expected_accuracy: dict[str, float]  # mean probability of the correct token
    soft_bleu: dict[str, float]

    def means(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Returns {measure: mean}. weights: of the dev sets."""
        return {kind: mean_of(values, weights) for kind, values in asdict(self).items()}


def is_better(select: str, value: float, best: float | None) -> bool:
    """Returns whether a model replaces the best one so far (None: there is none)."""
    if select == "last":
        return True
    if not math.isfinite(value) or best is None:
        return math.isfinite(value)
    return value < best if select == "loss" else value > best


@torch.no_grad()
def measure(
    model: Transformer,
    dev: Mapping[str, Sentences],
    batch_tokens: int,
    device: torch.device,
    processes: Processes | None = None,
) -> Measured:
    """Measures a model on all dev sets; the caller has set it to eval, and autocast if wanted.

    Processes divide the batches and add up all sums in the same order, so that the result does not depend on them.
    """
    processes = processes or Processes()
    names: list[str] = []  # of the batches of all processes
    rows = []
    for name, sentences in dev.items():
        for items in evaluation_items(sentences, batch_tokens):
            if len(names) % processes.size == processes.rank:
                rows.append(_sums(model, assemble(items).to(device)))
            names.append(name)
    shares = processes.gathered(torch.stack(rows).tolist() if rows else [])
    measured = Measured({}, {}, {}, {})
    for name, sentences in dev.items():
        places = [divmod(i, processes.size) for i, of in enumerate(names) if of == name]
        values = np.array([shares[rank][i] for i, rank in places], np.float32)
        loss, correct, *products = np.cumsum(values, axis=0, dtype=np.float32)[-1].tolist()  # one after another
        counts = ngram_counts(sentences.target_lengths)
        measured.dev_loss[name] = loss / counts[0]
        measured.accuracy[name] = correct / counts[0]
        measured.expected_accuracy[name] = products[0] / counts[0]
        measured.soft_bleu[name] = soft_bleu(products, counts)
    return measured


def _sums(model: Transformer, batch: Batch) -> Tensor:
    """Returns the sums of one batch: the loss, the right first choices, the n-grams. # [2 + 4]"""
    loss, log_p, hits = model.token_scores(batch)
    return torch.stack([loss, hits.sum(), *ngram_sums(log_p, batch.target_rows.positions)]).float()


def ngram_sums(log_p: Tensor, positions: Tensor) -> list[Tensor]:
    """Returns, for n = 1 to 4, the sum over all n-grams within sentences of the product of their probabilities.

    log_p: log-probabilities of packed sentences, one after another. [R]
    positions: the position of each token in its sentence. [R]
    """
    p = log_p.exp()
    product, sums = p, [p.sum()]
    for n in ORDERS[1:]:
        product = product[:-1] * p[n - 1 :]  # of the n tokens that end here
        within = positions[n - 1 :] >= n - 1  # else they begin in the sentence before
        sums.append((product * within).sum())
    return sums


def ngram_counts(lengths: "np.ndarray[tuple[int], np.dtype[np.int32]]") -> list[int]:
    """Returns the number of n-grams in sentences of these lengths, for n = 1 to 4."""
    return [int(np.maximum(lengths.astype(np.int64) - n + 1, 0).sum()) for n in ORDERS]


def soft_bleu(sums: Sequence[float], counts: Sequence[int]) -> float:
    """Returns the geometric mean over n of the mean probability that n tokens in a row are right.

    These are the precisions of BLEU after a correct beginning. Lengths that no sentence has are left out.
    """
    means = [total / count for total, count in zip(sums, counts, strict=True) if count]
    if any(mean == 0 for mean in means):  # all products of that length have underflowed
        return 0.0
    return math.exp(math.fsum(map(math.log, means)) / len(means)) if not math.isnan(sum(means)) else math.nan
