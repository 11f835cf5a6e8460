"""BLEU from counts per sentence, and intervals over seeds and sentences. Pure; used by collect.py and results.py."""

import math
import random
from collections.abc import Mapping, Sequence

from sacrebleu.metrics.bleu import BLEU

# Of a sentence: matching n-grams for n = 1 to 4, tokens of the hypothesis, tokens of the reference.
Counts = Sequence[int]


def counts_of(hypotheses: Sequence[str], references: Sequence[str]) -> list[list[int]]:
    """Per sentence, as sacreBLEU counts with its default tokens. How many n-grams there are follows from the length."""
    metric = BLEU()
    found = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        score = metric.corpus_score([hypothesis], [[reference]])
        found.append([*score.counts, score.sys_len, score.ref_len])
    return found


def bleu_of_counts(sentences: Sequence[Counts]) -> float:
    """Corpus BLEU with sacreBLEU's exponential smoothing of n-grams that never match."""
    matches = [sum(one[n] for one in sentences) for n in range(4)]
    totals = [sum(max(0, one[4] - n) for one in sentences) for n in range(4)]
    length, wanted = sum(one[4] for one in sentences), sum(one[5] for one in sentences)
    if not matches[0]:
        return 0.0
    smooth, logs = 1.0, []
    for match, total in zip(matches, totals, strict=True):
        if not total:
            break
        if not match:
            smooth *= 2
        logs.append(math.log(match / total if match else 1 / (smooth * total)))
    shortness = 1.0 if length >= wanted else math.exp(1 - wanted / length)
    return 100 * shortness * math.exp(sum(logs) / 4)


def mean_bleu(pairs: Mapping[str, Sequence[Counts]]) -> float:
    return math.fsum(map(bleu_of_counts, pairs.values())) / len(pairs)


def interval(
    ours: Sequence[Mapping[str, Sequence[Counts]]],
    theirs: Sequence[Mapping[str, Sequence[Counts]]],
    draws: int = 300,
    seed: int = 1,
) -> tuple[float, float]:
    """95% of the difference of mean BLEU: runs of both methods and sentences are drawn anew, the sentences alike."""
    rng, found = random.Random(seed), []
    for _ in range(draws):
        chosen = {name: rng.choices(range(len(one)), k=len(one)) for name, one in ours[0].items()}

        def score(runs: Sequence[Mapping[str, Sequence[Counts]]], chosen: Mapping[str, list[int]] = chosen) -> float:
            drawn = rng.choices(runs, k=len(runs))
            return sum(mean_bleu({n: [one[n][i] for i in chosen[n]] for n in one}) for one in drawn) / len(drawn)

        found.append(score(ours) - score(theirs))
    found.sort()
    return found[round(0.025 * (draws - 1))], found[round(0.975 * (draws - 1))]
