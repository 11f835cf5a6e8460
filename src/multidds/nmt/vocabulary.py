"""Tokens: special ones, language tags, and where the sentencepiece models and the vocabularies of a folder are.

Imports neither torch nor numpy, so that translation starts at once.
"""

import json
from pathlib import Path

import sentencepiece

from .config import Config
from .names import file_name

SPECIALS = ("<unk>", "<s>", "</s>")
UNKNOWN, BEGIN, END = range(3)
JOINT = "joint"


def tag_of(language: str) -> str:
    """The token that says, at the head of a source sentence, which language is wanted."""
    return f"<2{language}>"


def models_of(config: Config) -> list[str]:
    """The names of the sentencepiece models: one per language, or one for all."""
    if config.vocabulary.kind == "joint":
        return [JOINT]
    return list(dict.fromkeys([*config.data.sources, *config.data.targets]))


def model_of(config: Config, language: str) -> str:
    return JOINT if config.vocabulary.kind == "joint" else language


def model_file(name: str) -> str:
    """The file of a sentencepiece model, by its name in `models_of`."""
    return f"{file_name(name)}.spm.model"


def load_model(folder: Path, name: str) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / model_file(name)))


def pieces_of(model: sentencepiece.SentencePieceProcessor) -> list[str]:
    """The pieces of a model, by number."""
    result: list[str] = model.id_to_piece(list(range(model.get_piece_size())))
    return result


def load_vocabulary(folder: Path) -> dict[str, list[str]]:
    result: dict[str, list[str]] = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
    return result
