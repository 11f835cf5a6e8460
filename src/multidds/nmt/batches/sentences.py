"""The sentence pairs of one split of one language pair, with language tags and ends of sentences counted."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ..prepare import Prepared
from ..prepare.vocabulary import END


class Sentences:
    """One split of one language pair. Lengths and tokens are read when they are asked for; none are kept in memory.

    prepared: the data.
    pair: the name of the language pair.
    split: "train" or "dev".
    """

    def __init__(self, prepared: Prepared, pair: str, split: str) -> None:
        self.name = pair
        self._stored = prepared.stored(pair, split)
        self.tag = prepared.tags[pair]
        self._extra = 1 + (self.tag is not None)
        # Tokens of the longer sides, each with tag and </s>: the sum of `lengths`, without reading them.
        self.all_tokens = prepared.longer_tokens(pair, split) + len(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def sizes(self, i: int) -> tuple[int, int]:
        """Returns the tokens of source, with tag and </s>, and target, with </s>, of sentence pair i."""
        source, target = self._stored.sizes(i)
        return source + self._extra, target + 1

    @cached_property
    def source_lengths(self) -> np.ndarray:
        """The source tokens of every sentence pair, in memory: for dev sets."""
        return self._all_sizes[:, 0] + np.int32(self._extra)

    @cached_property
    def target_lengths(self) -> np.ndarray:
        """The target tokens of every sentence pair, in memory: for dev sets."""
        return self._all_sizes[:, 1] + np.int32(1)

    @cached_property
    def lengths(self) -> np.ndarray:
        """The tokens of the longer side of every sentence pair."""
        longer: np.ndarray = np.maximum(self.source_lengths, self.target_lengths)
        return longer

    @cached_property
    def _all_sizes(self) -> "np.ndarray[Any, np.dtype[np.int32]]":  # [pairs, 2]
        return self._stored.all_sizes().astype(np.int32)

    def tokens(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns source, behind its tag if it has one, and target of sentence pair i, without <s> and </s>."""
        source, target = self._stored.tokens(i)
        return source if self.tag is None else np.concatenate([[self.tag], source]), target

    def text(self, i: int, vocabulary: Mapping[str, Sequence[str]]) -> tuple[str, str]:
        """Returns the text of source and target of sentence pair i, without the tag, with <unk> for unknown pieces."""
        source, target = self._stored.tokens(i)
        return _text(source, vocabulary["source"]), _text(target, vocabulary["target"])


def _text(tokens: np.ndarray, pieces: Sequence[str]) -> str:
    return "".join(pieces[token] for token in tokens.tolist() if token != END).replace("▁", " ").strip()


Item = tuple[Sentences, int]  # a sentence pair by its number
