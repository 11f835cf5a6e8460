"""Translation through CTranslate2: an exact conversion of the best checkpoint, and lines in, lines out.

The exported folder is a plain CTranslate2 model with its sentencepiece files, which anyone can serve without this
package. Imports neither torch nor numpy until a checkpoint has to be converted.
"""

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.checksummed import check_digest, checksummed, read_checksummed, sha256
from ..common.errors import DamagedError, UserError
from ..common.escaping import printable
from ..common.files import LOCK, locked, whole_folder
from ..config.config import VOCABULARY, Config, read_run
from ..prepare.vocabulary import (
    SPECIALS,
    load_model,
    load_vocabulary,
    model_file,
    model_of,
    models_of,
    pieces_of,
    tag_of,
)
from ..runs import checkpoints

if TYPE_CHECKING:
    import ctranslate2

STAMP = "multidds.json"
_REMEDY = "'multidds evaluate' and 'translate' make it again."
EPSILON = 1e-6  # of the norms, as in model.py
_BATCH_TOKENS = 1024  # small enough that every core gets some
_CHUNK = 2000  # lines sorted by length and translated together


Notice = Callable[[str], None]


def export(run: Path, notice: Notice = lambda text: None) -> Path:
    """Convert the best checkpoint of a run, if that has not been done yet. Returns the folder.

    What is damaged is made again; `notice` is told.
    """
    config, _ = read_run(run)
    best = run / checkpoints.BEST
    if not best.exists():
        raise UserError(f"{run}: has no trained model yet; the first is written after the first epoch.")
    folder = run / "export"
    checksum = checkpoints.noted_checksum(best)
    if checksum is not None and _exported(folder, notice) == checksum:
        return folder
    with locked(run / f"export{LOCK}", f"{run}: is being exported by another process; try again when it is done."):
        tensors, state = checkpoints.read(best, framework="numpy")
        weights = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
        vocabulary = load_vocabulary(run / VOCABULARY)
        with whole_folder(folder) as partial:
            convert(config, weights, vocabulary, partial)
            for name in models_of(config):
                load_model(run / VOCABULARY, name)  # is it whole?
                shutil.copy(run / VOCABULARY / model_file(name), partial)
            (partial / "README.md").write_text(_readme(config, run.name, state), encoding="utf-8")
            files = {path.name: sha256(path) for path in sorted(partial.iterdir())}
            stamp = {"checkpoint": state, "checksum of the checkpoint": checkpoints.noted_checksum(best)}
            (partial / STAMP).write_bytes(checksummed({**stamp, "files": files}))
    return folder


def read_export(folder: Path) -> dict[str, Any]:
    """What an exported folder was made from, with the digests of its files; or a DamagedError: all are checked."""
    try:
        stamp = read_checksummed(folder / STAMP, _REMEDY)
    except FileNotFoundError:
        raise DamagedError(f"{folder / STAMP}: is missing; {_REMEDY}") from None
    for name, digest in stamp["files"].items():
        check_digest(folder / name, digest, _REMEDY)
    return stamp


def _exported(folder: Path, notice: Notice) -> str | None:
    """The checksum of the checkpoint that a whole folder was made from; None where it is to be made."""
    if not folder.exists():
        return None
    try:
        return str(read_export(folder)["checksum of the checkpoint"])
    except DamagedError as error:
        notice(f"{error} Making it again.")
        return None


def convert(config: Config, weights: Mapping[str, Any], vocabulary: Mapping[str, list[str]], folder: Path) -> None:
    """Write the parameters of a model, numpy arrays by name, as a CTranslate2 model into an empty folder."""
    spec = _spec(config, weights)
    spec.register_source_vocabulary(vocabulary["source"])
    spec.register_target_vocabulary(vocabulary["target"])
    spec.validate()
    spec.optimize(quantization=None)
    spec.save(str(folder))


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


def begin(
    model: "ctranslate2.Translator",
    config: Config,
    sources: list[list[str]],
    beam: int | None = None,
    length_penalty: float | None = None,
) -> list[Any]:
    """Hand tokens to the threads of a model. Each result waits for its `.result()`."""
    settings = config.translate
    if not sources:
        return []
    results: list[Any] = model.translate_batch(
        sources,
        beam_size=beam or settings.beam,
        length_penalty=settings.length_penalty if length_penalty is None else length_penalty,
        max_batch_size=_BATCH_TOKENS,
        batch_type="tokens",
        max_input_length=0,
        max_decoding_length=_longest(config),
        disable_unk=True,
        asynchronous=True,
    )
    return results


class Translator:
    """A converted run, ready to translate."""

    def __init__(self, run: Path, threads: int = 0, int8: bool = False, notice: Notice = lambda text: None) -> None:
        self.config, _ = read_run(run)
        self._folder = export(run, notice)
        self._digests = read_checksummed(self._folder / STAMP, _REMEDY)["files"]
        self.model = open_model(self._folder, threads, int8)
        self._pieces = cache(self._load_pieces)
        self._tags = {tag_of(language) for language in self.config.data.targets}

    def direction(self, source: str | None, target: str | None) -> tuple[str, str]:
        """(source, target) language of a trained pair; either may be left out where only one is possible."""
        pairs = [(pair.source, pair.target) for pair in self.config.data.pairs]
        source = _chosen("--from", source, [s for s, t in pairs if target in (None, t)] or [s for s, _ in pairs])
        return source, _chosen("--to", target, [t for s, t in pairs if s == source])

    def tokens(self, line: str, source: str, target: str) -> list[str]:
        """What the model reads: the tag where there are several target languages, and the pieces."""
        return self._tokens([line], source, target)[0]

    def _tokens(self, lines: list[str], source: str, target: str) -> list[list[str]]:
        model, pieces = self._pieces(model_of(self.config, source))
        # By number: what one language's model does not know must not find a piece of another's by its letters.
        numbers = model.encode([line.strip() for line in lines], out_type=int, num_threads=1)
        head = [tag_of(target)] if len(self.config.data.targets) > 1 else []
        return [[*head, *[pieces[i] for i in line]] for line in numbers]

    def _load_pieces(self, name: str) -> tuple[Any, list[str]]:
        """A sentencepiece model and its pieces, when a language is first wanted. What looks like a tag is not one."""
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
        """One line out for every line in. Lines longer than the model has seen are split or refused, never cut.

        For any number of lines: the next ones are read and begun while the threads are still busy.
        """
        left, number = iter(lines), first
        begun: deque[Iterator[str]] = deque()
        try:
            while chunk := list(islice(left, _CHUNK)):
                begun.append(self._begin(chunk, source, target, beam, length_penalty, long_lines, where, number))
                number += len(chunk)
                if len(begun) > 1:
                    yield from begun.popleft()
        except UserError:  # in the lines that follow: these are good
            yield from (text for chunk in begun for text in chunk)
            raise
        yield from (text for chunk in begun for text in chunk)

    def _begin(
        self,
        lines: list[str],
        source: str,
        target: str,
        beam: int | None,
        length_penalty: float | None,
        long_lines: str | None,
        where: str,
        first: int,
    ) -> Iterator[str]:
        """Hand lines to the threads. The iterator waits for what they make of them."""
        refuse = (long_lines or self.config.translate.long_lines) == "refuse"
        parts: list[list[str]] = []
        counts: list[int] = []
        for number, tokens in enumerate(self._tokens(lines, source, target), start=first):
            split = list(self._parts(tokens))
            if refuse and len(split) > 1:
                raise UserError(
                    f"{where}:{number}: has more than {self.config.data.max_length} tokens; "
                    "--long-lines split translates it in parts."
                )
            counts.append(len(split))
            parts += split
        results = iter(begin(self.model, self.config, parts, beam, length_penalty))
        return (" ".join(text_of(next(results).result().hypotheses[0]) for _ in range(n)).strip() for n in counts)

    def _parts(self, tokens: list[str]) -> Iterator[list[str]]:
        """A line as one token list, or as several where it is too long: cut behind punctuation, or between words."""
        head = 1 if len(self.config.data.targets) > 1 else 0
        tag, pieces = tokens[:head], tokens[head:]
        limit = self.config.data.max_length
        while len(pieces) > limit:
            ends = [i for i in range(1, limit + 1) if pieces[i - 1].endswith((".", "!", "?", ";", "。", "।", "…"))]
            words = [i for i in range(1, limit + 1) if pieces[i].startswith("▁")]
            at = next((places[-1] for places in (ends, words) if places and places[-1] > limit // 4), limit)
            yield [*tag, *pieces[:at]]
            pieces = pieces[at:]
        if pieces:
            yield [*tag, *pieces]


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def text_of(pieces: list[str]) -> str:
    """Pieces to text. Not by one language's model: a many-sided vocabulary may mix pieces of several."""
    return "".join(piece for piece in pieces if piece not in SPECIALS).replace("▁", " ").strip()


def _chosen(option: str, wanted: str | None, possible: list[str]) -> str:
    known = list(dict.fromkeys(possible))
    if wanted is None:
        if len(known) > 1:
            raise UserError(f"{option} is needed: one of {', '.join(known)}.")
        return known[0]
    if wanted not in known:
        raise UserError(f"{option} {wanted}: the model was not trained for that; there are {', '.join(known)}.")
    return wanted


# ---------------------------------------------------------------------------------------------- conversion


def _spec(config: Config, weights: Mapping[str, Any]) -> Any:
    """The checkpoint as CTranslate2 describes it. ScaleNorm is RMSNorm with the constant weight g / sqrt(D)."""
    import numpy as np
    from ctranslate2.specs import TransformerSpec  # it imports torch where there is one

    settings = config.model
    scale = settings.norm == "scale"
    spec = TransformerSpec.from_config(
        (settings.encoder_layers, settings.decoder_layers), settings.heads, pre_norm=True, rms_norm=scale
    )
    spec.config.layer_norm_epsilon = EPSILON
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = SPECIALS
    spec.config.decoder_start_token = SPECIALS[1]
    spec.config.add_source_eos = True
    positions = _sinusoids(_longest(config) + 2, settings.width)

    def linear(into: Any, name: str) -> None:
        into.weight, into.bias = weights[f"{name}.weight"], weights[f"{name}.bias"]

    def norm(into: Any, name: str) -> None:
        if scale:
            into.gamma = np.full(settings.width, weights[f"{name}.g"] / np.sqrt(settings.width), dtype=np.float32)
        else:
            into.gamma, into.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]

    for side, layers in ((spec.encoder, "encoder"), (spec.decoder, "decoder")):
        norm(side.layer_norm, f"{layers}_norm")
        side.position_encodings.encodings = positions
        for i, layer in enumerate(side.layer):
            name = f"{layers}.{i}"
            norm(layer.self_attention.layer_norm, f"{name}.self_norm")
            linear(layer.self_attention.linear[0], f"{name}.self_attention.query_key_value")
            linear(layer.self_attention.linear[1], f"{name}.self_attention.out")
            if layers == "decoder":
                norm(layer.attention.layer_norm, f"{name}.cross_norm")
                linear(layer.attention.linear[0], f"{name}.cross_attention.query")
                linear(layer.attention.linear[1], f"{name}.cross_attention.key_value")
                linear(layer.attention.linear[2], f"{name}.cross_attention.out")
            norm(layer.ffn.layer_norm, f"{name}.feed_norm")
            linear(layer.ffn.linear_0, f"{name}.inner")
            linear(layer.ffn.linear_1, f"{name}.outer")
    spec.encoder.embeddings[0].weight = weights["source_embedding.weight"]
    spec.decoder.embeddings.weight = weights["target_embedding.weight"]
    spec.decoder.projection.weight = weights["target_embedding.weight"]
    return spec


def _sinusoids(count: int, width: int) -> Any:
    """The positions of model.py, without torch; the tests hold the two together."""
    import numpy as np

    half = width // 2
    rates = np.exp(np.arange(half) * (-np.log(10000.0) / max(half - 1, 1)))
    angles = np.arange(count)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def _longest(config: Config) -> int:
    """Tokens that a translation may have: far more than any sentence of training."""
    return max(512, 3 * config.data.max_length)


def _readme(config: Config, name: str, state: dict[str, Any]) -> str:
    source, target = config.data.pairs[0].source, config.data.pairs[0].target
    several = len(config.data.targets) > 1
    tag = f"[{tag_of(target)!r}] + " if several else ""
    known = printable(", ".join(map(tag_of, config.data.targets)))
    pairs = printable(", ".join(config.data.names))
    return f"""# {name}

A [CTranslate2](https://opennmt.net/CTranslate2/) model for {pairs}, from step {state["step"]} of
its training. `pip install ctranslate2 sentencepiece` is all that is needed:

```python
import ctranslate2
import sentencepiece

translator = ctranslate2.Translator(".")
pieces = sentencepiece.SentencePieceProcessor(model_file="{model_file(model_of(config, source))}")
tokens = {tag}[pieces.id_to_piece(i) for i in pieces.encode("...")]
result = translator.translate_batch([tokens], beam_size={config.translate.beam})[0].hypotheses[0]
print("".join(result).replace("\u2581", " ").strip())
```

{f"The first token says which language is wanted: {known}." if several else ""}
The sentencepiece models are in this folder. Sentences of up to {config.data.max_length} tokens were trained on.
"""
