"""The cleaning of sentence pairs, and their split into train, dev and test sets.

Pure functions: the same pairs give the same corpus, in any order. An English sentence that is held out for one language
is held out for all.
"""

import hashlib
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

from multidds._base.errors import UserError

SPLITS = ("train", "dev", "test")
SMALLEST, LARGEST = 100, 300  # sentences of a dev or test set
KEPT = 220  # sentences that a test set of more than a tenth leaves to train on
MIN_WORDS, MAX_CHARACTERS, MAX_RATIO = 3, 1000, 3.0

Pair = tuple[str, str]  # English, translation

_TAGS = re.compile(r"</?[A-Za-z][^<>]*>|&#?\w+;")
_PLACEHOLDERS = re.compile(
    r"https?://[^\s<>\"']+|\$?\{\{[^{}]*\}\}|\$?\{[^{}]*\}|%%|%\(\w+\)[#0 +-]*[\d.]*[a-zA-Z]|%[\d.]*[sdifr]\b"
)
_NUMBERS = re.compile(r"\d+")

_RUNS = re.compile(r"[A-Za-z]+|[^\W\d_A-Za-z]+")  # of letters, English ones and others apart


class _Table(dict[int, str | int]):
    """A table for str.translate that is filled when a character is first translated."""

    def __init__(self, space: Callable[[str], bool]) -> None:
        self._space = space

    def __missing__(self, point: int) -> str | int:
        self[point] = " " if self._space(unicodedata.category(chr(point))) else point
        return self[point]


_CONTROLS = _Table(lambda category: category in ("Cc", "Cs", "Zl", "Zp"))  # Cs: half a character, not UTF-8
_WORDS_ONLY = _Table(lambda category: category[0] not in "LMN")


def tidy(text: str) -> str:
    """Returns text as one line: control characters and whitespace of every kind become single spaces."""
    return " ".join(unicodedata.normalize("NFC", text).translate(_CONTROLS).replace("\ufeff", "").split())


def normalised(text: str) -> str:
    """Returns a sentence without case, punctuation, tags, placeholders and numbers: equal sentences are the same."""
    text = _NUMBERS.sub(" ", _without_marks(unicodedata.normalize("NFKC", text).casefold()))
    return " ".join(text.translate(_WORDS_ONLY).split())


def clean(pairs: Iterable[Pair], script: str) -> tuple[list[Pair], dict[str, int]]:
    """Returns the pairs to learn from, sorted, and the number of those dropped, by reason.

    pairs: English sentences and their translations.
    script: of the translations, as Unicode names it.
    """
    dropped: Counter[str] = Counter()
    kept: dict[Pair, Pair] = {}
    for english, other in sorted((tidy(english), tidy(other)) for english, other in pairs):
        if reason := _objection(english, other, script):
            dropped[reason] += 1
            continue
        key = normalised(english), normalised(other)
        if key in kept:
            dropped["duplicate"] += 1
        else:
            kept[key] = (english, other)
    return list(kept.values()), dict(sorted(dropped.items()))


def _objection(english: str, other: str, script: str) -> str:
    words = _words(english)
    same = normalised(english)  # can be empty where there are words: wide braces are braces there
    if not same or sum(any(c.isalpha() for c in word) for word in words.split()) < MIN_WORDS:
        return f"fewer than {MIN_WORDS} English words"
    if max(len(english), len(other)) > MAX_CHARACTERS:
        return f"over {MAX_CHARACTERS:,} characters"
    if same == normalised(other):
        return "same text on both sides"
    # Names of products stay as they are in every language: what the English has too does not count.
    names = set(_RUNS.findall(words))
    letters = [c for run in _RUNS.findall(_words(other)) if run not in names for c in run]
    if not letters:
        return "nothing translated"
    if 2 * sum(_script(c) == script for c in letters) <= len(letters):
        return "wrong script"
    short, long = sorted((_length(english), _length(other)))
    if long > MAX_RATIO * short:
        return "lengths too different"
    return ""


def _words(text: str) -> str:
    """Removes tags, placeholders and numbers, which are the same in every language."""
    return _NUMBERS.sub(" ", _without_marks(text))


def _without_marks(text: str) -> str:
    return _PLACEHOLDERS.sub(" ", _TAGS.sub(" ", text))


@cache
def _script(character: str) -> str:
    return unicodedata.name(character, "").partition(" ")[0]


def _length(text: str) -> int:
    """Returns the number of characters; one of Chinese, Japanese or Korean counts as three."""
    return len(text) if text.isascii() else sum(3 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


# --------------------------------------------------------------------------------------------------- split


def split(
    cleaned: Mapping[str, Sequence[Pair]], smallest: int = SMALLEST, largest: int = LARGEST, kept: int = KEPT
) -> dict[str, dict[str, list[Pair]]]:
    """Splits the pairs of each language into train, dev and test. The set of an English sentence is one for all.

    All languages take English sentences in one random order, so that they mostly hold out the same ones: that costs the
    least training text, and each set is still a random sample of its language.

    cleaned: pairs by language.
    smallest, largest: sentences of a dev or test set.
    kept: sentences that a test set of more than a tenth leaves to train on.
    """
    by_english: dict[str, dict[str, list[Pair]]] = {}
    for language, pairs in cleaned.items():
        by_english[language] = defaultdict(list)
        for pair in pairs:
            by_english[language][normalised(pair[0])].append(pair)
    owner: dict[str, str] = {}
    held: dict[str, dict[str, list[str]]] = {}
    for language in sorted(by_english, key=lambda name: (len(by_english[name]), name)):  # smallest first
        sentences = by_english[language]
        held[language] = _held_out(sentences, _held_out_sizes(len(sentences), smallest, largest, kept), owner)
    corpus, needed, small = {}, 3 * smallest // 2, []
    for language, sentences in by_english.items():
        train = [pair for sentence, pairs in sentences.items() if sentence not in owner for pair in pairs]
        if min(map(len, held[language].values())) < smallest or len(train) < needed:
            small.append(
                f"{language} has {len(cleaned[language]):,} usable pairs ({len(sentences):,} English sentences)"
            )
        corpus[language] = {"train": sorted(train, key=lambda pair: _order("\n".join(pair)))} | {
            # One translation of a sentence is enough to be judged by.
            side: [min(sentences[key], key=lambda pair: _order("\n".join(pair))) for key in chosen]
            for side, chosen in held[language].items()
        }
    if small:
        raise UserError(
            f"--languages: {', '.join(sorted(small))}: too few for dev and test sets of {smallest} and {needed} pairs "
            "to train on; leave out what is too small."
        )
    return corpus


def _held_out_sizes(sentences: int, smallest: int, largest: int, kept: int) -> dict[str, int]:
    """Returns a tenth each for dev and test; of a small language more for test, since 100 sentences decide nothing."""
    tenth = min(largest, max(smallest, sentences // 10))
    return {"dev": tenth, "test": min(largest, max(tenth, sentences - tenth - kept))}


def _held_out(sentences: Iterable[str], sizes: Mapping[str, int], owner: dict[str, str]) -> dict[str, list[str]]:
    """Returns the dev and test sentences of a language. owner: {held-out sentence: its set}, which is extended."""
    sets: dict[str, list[str]] = {side: [] for side in sizes}
    for sentence in sorted(sentences, key=_order):
        wanting = [side for side in sizes if len(sets[side]) < sizes[side]]
        if not wanting:
            break
        side = owner.get(sentence) or min(wanting, key=lambda name: len(sets[name]))
        if side in wanting:
            owner[sentence] = side
            sets[side].append(sentence)
    return sets


def _order(text: str) -> bytes:
    """Returns a key for a random order that is the same everywhere."""
    return hashlib.blake2b(text.encode(), digest_size=16, key=b"multidds catalogues").digest()
