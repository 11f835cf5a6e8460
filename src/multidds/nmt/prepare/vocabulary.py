"""The tokens of both sides in vocabulary.json, and the sentencepiece models beside it, with their digests.

Imports sentencepiece only if a model is read, and no torch.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multidds._base.errors import DamagedError, UserError
from multidds._base.escaping import file_name

from ..common.checksummed import checksummed, read_checksummed, sha256
from ..config.config import VOCABULARY, Config, read_run

if TYPE_CHECKING:
    import sentencepiece

SPECIALS = ("<unk>", "<s>", "</s>")
UNKNOWN, BEGIN, END = range(3)
JOINT = "joint"
FILE = "vocabulary.json"
_REMEDY = "run 'multidds prepare' again where the data is; in a run, copy the file from there."


def tag_of(language: str) -> str:
    """Returns the token at the head of a source sentence that asks for a target language."""
    return f"<2{language}>"


def models_of(config: Config) -> list[str]:
    """Returns the names of the sentencepiece models: one per language, or one for all."""
    if config.vocabulary.kind == "joint":
        return [JOINT]
    return list(dict.fromkeys([*config.data.sources, *config.data.targets]))


def model_of(config: Config, language: str) -> str:
    return JOINT if config.vocabulary.kind == "joint" else language


def model_file(name: str) -> str:
    """Returns the file of a sentencepiece model, by its name in `models_of`."""
    return f"{file_name(name)}.spm.model"


def load_model(
    folder: Path, name: str, digests: Mapping[str, str] | None = None
) -> "sentencepiece.SentencePieceProcessor":
    """Loads a sentencepiece model of a folder.

    folder: with the model.
    name: one of `models_of`.
    digests: of the files in the folder; by default those in its vocabulary.json.
    """
    import sentencepiece

    path = folder / model_file(name)
    digests = model_digests(folder) if digests is None else digests
    content = path.read_bytes() if path.exists() else b""
    if hashlib.sha256(content).hexdigest() != digests.get(path.name):
        raise DamagedError(f"{path}: is damaged or missing (its checksum does not fit); {_REMEDY}")
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=content)
    except RuntimeError:
        raise DamagedError(f"{path}: is no sentencepiece model; {_REMEDY}") from None


def pieces_of(model: "sentencepiece.SentencePieceProcessor") -> list[str]:
    """Returns the pieces of a model, by number."""
    pieces: list[str] = model.id_to_piece(list(range(model.get_piece_size())))
    return pieces


def start_vocabulary(config: Config) -> Path | None:
    """Returns the folder with the vocabulary of the run in `[train] start_from`; None if none is set.

    Raises a UserError if the run is missing, or if its vocabulary is of another kind.
    """
    if not config.train.start_from:
        return None
    run = Path(config.train.start_from)
    where, kind = f"[train] start_from = {config.train.start_from!r}", config.vocabulary.kind
    try:
        start = read_run(run)[0].vocabulary.kind
    except UserError as error:
        raise type(error)(f"{where}: {error}") from None
    if start != kind:
        raise UserError(f"{where}: that run has [vocabulary] kind = {start!r}, but the recipe has {kind!r}.")
    return run / VOCABULARY


def write_vocabulary(folder: Path, tokens: Mapping[str, Sequence[str]], models: Sequence[str]) -> None:
    """Writes vocabulary.json, beside the sentencepiece models in these files."""
    digests = {file: sha256(folder / file) for file in models}
    (folder / FILE).write_bytes(checksummed({"tokens": tokens, "models": digests}))


def load_vocabulary(folder: Path) -> dict[str, list[str]]:
    """Returns {"source" and "target": tokens by number}."""
    tokens: dict[str, list[str]] = _read(folder)["tokens"]
    return tokens


def model_digests(folder: Path) -> dict[str, str]:
    """Returns the digests of the sentencepiece models beside vocabulary.json, by file."""
    digests: dict[str, str] = _read(folder)["models"]
    return digests


def _read(folder: Path) -> dict[str, Any]:
    """Reads vocabulary.json. In a run it must be the one whose digest is in config.json."""
    facts = read_checksummed(folder / FILE, _REMEDY)
    try:
        digest = read_run(folder.parent)[1].get("vocabulary") if folder.name == VOCABULARY else None
    except UserError:
        digest = None  # no run, or its config is damaged, as others report
    if digest is not None and sha256(folder / FILE) != digest:
        raise DamagedError(f"{folder / FILE}: is of another run or other data; {_REMEDY}")
    return facts
