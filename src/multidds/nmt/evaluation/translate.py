"""Translation of lines by an exported run, through CTranslate2. Imports neither torch nor numpy."""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multidds._base.errors import UserError

from ..common.checksummed import read_checksummed
from ..config.config import Config, read_run
from ..prepare.vocabulary import SPECIALS, load_model, model_of, pieces_of, tag_of
from .export import STAMP, Notice, export, longest_translation

if TYPE_CHECKING:
    import ctranslate2

BATCH_TOKENS = 1024  # small enough that every core gets some
_CHUNK_LINES = 2000  # read, sorted by length and translated together
_SENTENCE_ENDS = (".", "!", "?", ";", "。", "।", "…")


def open_model(folder: Path, threads: int = 0, int8: bool = False) -> "ctranslate2.Translator":
    import ctranslate2

    # A batch per thread, not threads per batch: those wait for each other by spinning, and on a machine with
    # other work that takes many times longer than the translation.
    return ctranslate2.Translator(
        str(folder),
        device="cpu",
        compute_type="int8" if int8 else "float32",
        inter_threads=threads or _cores(),
        intra_threads=1,
        max_queued_batches=-1,
    )


def _cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def begin(
    model: "ctranslate2.Translator",
    config: Config,
    sources: list[list[str]],
    beam: int | None = None,
    length_penalty: float | None = None,
) -> list[Any]:
    """Gives tokens to the threads of a model. The `.result()` of each result waits for it."""
    settings = config.translate
    if not sources:
        return []
    results: list[Any] = model.translate_batch(
        sources,
        beam_size=beam or settings.beam,
        length_penalty=settings.length_penalty if length_penalty is None else length_penalty,
        max_batch_size=BATCH_TOKENS,
        batch_type="tokens",
        max_input_length=0,
        max_decoding_length=longest_translation(config),
        disable_unk=True,
        asynchronous=True,
    )
    return results


def text_of(pieces: list[str]) -> str:
    """Returns the text of pieces, which may be those of several languages' models."""
    return "".join(piece for piece in pieces if piece not in SPECIALS).replace("▁", " ").strip()


class Translator:
    """An exported run with its sentencepiece models."""

    def __init__(self, run: Path, threads: int = 0, int8: bool = False, notice: Notice = lambda text: None) -> None:
        """
        threads: the number of threads; 0: one per core.
        int8: whether to use eight-bit weights: faster, with slightly different results.
        notice: called with a line if the export is damaged and made again.
        """
        self.config, _ = read_run(run)
        self._folder = export(run, notice)
        self._digests = read_checksummed(self._folder / STAMP, "")["files"]
        self.model = open_model(self._folder, threads, int8)
        self._pieces = cache(self._load_pieces)
        self._tags = {tag_of(language) for language in self.config.data.targets}

    def direction(self, source: str | None, target: str | None) -> tuple[str, str]:
        """Returns (source, target) language of a trained pair; either may be left out if only one is possible."""
        pairs = [(pair.source, pair.target) for pair in self.config.data.pairs]
        source = _chosen("--from", source, [s for s, t in pairs if target in (None, t)] or [s for s, _ in pairs])
        return source, _chosen("--to", target, [t for s, t in pairs if s == source])

    def tokens(self, lines: list[str], source: str, target: str) -> list[list[str]]:
        """Returns the input of the model: a tag if there are several target languages, and the pieces."""
        model, pieces = self._pieces(model_of(self.config, source))
        # By number: what is unknown to one language's model must not become a piece of another's by its letters.
        numbers = model.encode([line.strip() for line in lines], out_type=int, num_threads=1)
        tag = [tag_of(target)] if len(self.config.data.targets) > 1 else []
        return [[*tag, *[pieces[i] for i in line]] for line in numbers]

    def _load_pieces(self, name: str) -> tuple[Any, list[str]]:
        """Loads a sentencepiece model and its pieces, when a language is first needed. No piece is a tag."""
        model = load_model(self._folder, name, self._digests)
        return model, [SPECIALS[0] if piece in self._tags else piece for piece in pieces_of(model)]

    def translate(
        self,
        lines: Iterable[str],
        source: str,
        target: str,
        beam: int | None = None,
        length_penalty: float | None = None,
        long_lines: str | None = None,
        where: str = "input",
        first: int = 1,
    ) -> Iterator[str]:
        """Yields one line for every line. Lines longer than any in training are split or refused, never cut.

        beam: the beam size; None: the recipe's.
        length_penalty: None: the recipe's.
        long_lines: "split" or "refuse"; None: the recipe's.
        where: the name of the input, for messages.
        first: the number of the first line, for messages.

        For any number of lines: the next ones are read and begun while the threads are still busy.
        """
        refuse = (long_lines or self.config.translate.long_lines) == "refuse"

        def begun(chunk: list[str], number: int) -> Iterator[str]:
            lines_in_parts = [list(self.parts(tokens)) for tokens in self.tokens(chunk, source, target)]
            for line, parts in enumerate(lines_in_parts, start=number):
                if refuse and len(parts) > 1:
                    raise UserError(
                        f"{where}:{line}: has more than {self.config.data.max_length} tokens; "
                        "--long-lines split translates it in parts."
                    )
            all_parts = [part for parts in lines_in_parts for part in parts]
            results = iter(begin(self.model, self.config, all_parts, beam, length_penalty))
            return (
                " ".join(text_of(next(results).result().hypotheses[0]) for _ in parts).strip()
                for parts in lines_in_parts
            )

        remaining, number = iter(lines), first
        chunks: deque[Iterator[str]] = deque()
        try:
            while chunk := list(islice(remaining, _CHUNK_LINES)):
                chunks.append(begun(chunk, number))
                number += len(chunk)
                if len(chunks) > 1:
                    yield from chunks.popleft()
        except UserError:  # in the lines that follow: these are good
            yield from (text for chunk in chunks for text in chunk)
            raise
        yield from (text for chunk in chunks for text in chunk)

    def parts(self, tokens: list[str]) -> Iterator[list[str]]:
        """Yields the tokens of a line, in several parts if it is too long: cut behind punctuation, or between words."""
        start = 1 if len(self.config.data.targets) > 1 else 0
        tag, pieces = tokens[:start], tokens[start:]
        limit = self.config.data.max_length
        while len(pieces) > limit:
            ends = [i for i in range(1, limit + 1) if pieces[i - 1].endswith(_SENTENCE_ENDS)]
            words = [i for i in range(1, limit + 1) if pieces[i].startswith("▁")]
            cut = next((places[-1] for places in (ends, words) if places and places[-1] > limit // 4), limit)
            yield [*tag, *pieces[:cut]]
            pieces = pieces[cut:]
        if pieces:
            yield [*tag, *pieces]


def _chosen(option: str, wanted: str | None, possible: list[str]) -> str:
    languages = list(dict.fromkeys(possible))
    if wanted is None:
        if len(languages) > 1:
            raise UserError(f"{option} is needed: one of {', '.join(languages)}.")
        return languages[0]
    if wanted not in languages:
        raise UserError(f"{option} {wanted}: the model was not trained for that; there are {', '.join(languages)}.")
    return wanted
