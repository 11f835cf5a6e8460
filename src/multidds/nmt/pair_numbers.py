"""Numbers that describe sentence pairs, for the scorer of examples: what may show that a target is not its source's.

Lengths, their ratio beside that of the dataset, words that both sides share, and what the model usually loses on such
tokens. The loss of a sentence pair is taken relative to the last: a rare word is no mistake. Nothing here is told which
pairs are wrong.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from .batches import Batch
from .sentences import Sentences
from .vocabulary import END

NUMBERS = (
    "target length", "source length", "ratio", "distance from the usual ratio", "target words in the source",
    "source words in the target", "same text", "usual loss",
)  # fmt: skip
_WORDS = re.compile(r"\w+|[^\w\s]")
_KEEP = 0.99  # of what is known of the losses of tokens, per step
_SAMPLE = 10_000
_PRIOR = 5.0  # tokens: a token that was hardly seen is taken for an average one


class PairNumbers:
    """What a training knows of its sentence pairs. The same on every process: `see` is told of all their tokens."""

    def __init__(self, data: Mapping[str, Sentences], vocabulary: Mapping[str, Sequence[str]]) -> None:
        self._data, self._pieces = data, (vocabulary["source"], vocabulary["target"])
        self._usual_ratio = {name: _usual_ratio(sentences) for name, sentences in data.items()}
        self._shared: dict[tuple[str, int], tuple[float, float]] = {}  # shares of words on both sides, once computed
        count = len(vocabulary["target"])
        self._token_losses = torch.zeros(2, count, dtype=torch.float64)  # sums of losses, and how many, discounted

    @property
    def sizes(self) -> dict[str, int]:
        return {name: len(sentences) for name, sentences in self._data.items()}

    def rows(self, batch: Batch) -> Tensor:
        """The numbers of NUMBERS for each sentence pair of a batch. # [B, F]"""
        rows = np.empty((batch.sentences, len(NUMBERS)))
        usual = self.usual_losses(batch).tolist()
        for row, (name, i), expected in zip(rows, batch.origins, usual, strict=True):
            source, target = self._data[name].sizes(i)
            ratio = np.log(target / source) - self._usual_ratio[name]
            there, back = self._shares(name, i)
            row[:] = np.log(target), np.log(source), ratio, abs(ratio), there, back, there == back == 1, expected
        return torch.from_numpy(rows)

    def usual_losses(self, batch: Batch) -> Tensor:
        """What the model loses on average on the tokens of each target, wherever they stand. # [B]"""
        sums, counts = self._token_losses
        mean = sums.sum() / counts.sum().clamp_min(1)
        table = (sums + _PRIOR * mean) / (counts + _PRIOR)
        return per_sentence(batch, table[batch.target_out.cpu()])

    def see(self, token_losses: Tensor) -> None:
        """After a step: sums of the losses of its target tokens, and how many there were, by token. # [2, V]"""
        self._token_losses.mul_(_KEEP).add_(token_losses)

    def by_token(self, batch: Batch, losses: Tensor) -> Tensor:
        """Sums of the losses of target tokens [R], and how many there were, by token. # [2, V]"""
        tokens = batch.target_out.cpu()
        both = torch.stack([losses.detach().double().cpu(), torch.ones(len(tokens), dtype=torch.float64)])
        return torch.zeros_like(self._token_losses).index_add_(1, tokens, both)

    def text(self, name: str, i: int) -> tuple[str, str]:
        """Both sides of a sentence pair, as far as their tokens tell."""
        source, target = self._data[name].tokens(i)
        tagged = self._data[name].tag is not None
        return _text(source[1:] if tagged else source, self._pieces[0]), _text(target, self._pieces[1])

    def _shares(self, name: str, i: int) -> tuple[float, float]:
        """The share of target words and marks that stand in the source too, and the other way round."""
        if (name, i) not in self._shared:
            source, target = (_WORDS.findall(side.lower()) for side in self.text(name, i))
            self._shared[name, i] = _share(target, set(source)), _share(source, set(target))
        return self._shared[name, i]

    def state_dict(self) -> dict[str, Tensor]:
        return {"token_losses": self._token_losses.clone()}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        self._token_losses = tensors["token_losses"].clone()


def sentence_of(batch: Batch) -> Tensor:
    """Which sentence each target token belongs to. # [R]"""
    return batch.target_rows.places // batch.target_rows.longest


def per_sentence(batch: Batch, values: Tensor) -> Tensor:
    """The mean over the target tokens [R] of each sentence. # [B]"""
    sentences = sentence_of(batch).to(values.device)
    sums = values.new_zeros(batch.sentences, dtype=torch.float64).index_add_(0, sentences, values.double())
    return sums / torch.bincount(sentences, minlength=batch.sentences)


def _usual_ratio(sentences: Sentences) -> float:
    """The mean logarithm of target by source length, over at most so many sentence pairs of all parts of a dataset."""
    places = np.linspace(0, len(sentences) - 1, min(len(sentences), _SAMPLE)).astype(int).tolist()
    sizes = np.array([sentences.sizes(i) for i in places], np.float64)
    return float(np.log(sizes[:, 1] / sizes[:, 0]).mean())


def _share(words: list[str], others: set[str]) -> float:
    return sum(word in others for word in words) / len(words) if words else 0.0


def _text(tokens: "np.ndarray[tuple[int], np.dtype[np.int64]]", pieces: Sequence[str]) -> str:
    return "".join(pieces[token] for token in tokens.tolist() if token != END).replace("▁", " ").strip()
