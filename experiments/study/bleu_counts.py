"""BLEU from counts per sentence, and intervals over seeds and sentences. Pure; used by collect.py and results.py."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from sacrebleu.metrics.bleu import BLEU

# {dataset: counts of its sentences}: matching n-grams for n = 1 to 4, tokens of the hypothesis and of the reference.
Run: TypeAlias = Mapping[str, Sequence[Sequence[int]]]


def counts_of(hypotheses: Sequence[str], references: Sequence[str]) -> list[list[int]]:
    """Per sentence, as sacreBLEU counts with its default tokens. How many n-grams there are follows from the length."""
    metric = BLEU()
    found = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        score = metric.corpus_score([hypothesis], [[reference]])
        found.append([*score.counts, score.sys_len, score.ref_len])
    return found


def bleu_of_counts(sentences: Any) -> float:
    """Corpus BLEU with sacreBLEU's exponential smoothing of n-grams that never match. sentences: [sentence, count]"""
    counts = np.asarray(sentences)
    matches, totals = counts[:, :4].sum(0), [int(np.maximum(counts[:, 4] - n, 0).sum()) for n in range(4)]
    length, wanted = int(counts[:, 4].sum()), int(counts[:, 5].sum())
    if not matches[0] or not all(totals):
        return 0.0
    smooth, logs = 1.0, []
    for match, total in zip(matches.tolist(), totals, strict=True):
        if not match:
            smooth *= 2
        logs.append(math.log(match / total if match else 1 / (smooth * total)))
    shortness = 1.0 if length >= wanted else math.exp(1 - wanted / length)
    return 100 * shortness * math.exp(sum(logs) / 4)


def interval(ours: Sequence[Run], theirs: Sequence[Run], draws: int = 1000, seed: int = 1) -> tuple[float, float]:
    """95% of the difference of mean BLEU: runs of both methods and sentences are drawn anew, the sentences alike."""
    rng, found = np.random.default_rng(seed), []
    both = [[{name: np.asarray(one) for name, one in run.items()} for run in runs] for runs in (ours, theirs)]
    for _ in range(draws):
        chosen = {name: rng.integers(len(one), size=len(one)) for name, one in both[0][0].items()}
        means = []
        for runs in both:
            drawn = [runs[i] for i in rng.integers(len(runs), size=len(runs))]
            scores = [bleu_of_counts(run[name][rows]) for run in drawn for name, rows in chosen.items()]
            means.append(math.fsum(scores) / len(scores))
        found.append(means[0] - means[1])
    low, high = np.quantile(found, [0.025, 0.975]).tolist()
    return low, high
