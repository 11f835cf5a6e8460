"""The scores of an evaluated run: readers of scores.json and of the texts that were scored.

`evaluate` writes them. Needs neither CTranslate2 nor torch.
"""

import os
from pathlib import Path
from typing import Any

from multidds._base.errors import UserError
from multidds._base.escaping import file_name

from ..common.checksummed import check_digest, read_checksummed
from ..runs.identity import check_owner

FILE = "scores.json"
_REMEDY = "run 'multidds evaluate' again."


def read_scores(run: Path) -> dict[str, Any] | None:
    """Returns the scores of a run; None if it was not evaluated."""
    if not os.path.lexists(run / FILE):
        return None
    scores = read_checksummed(run / FILE, _REMEDY)
    check_owner(run / FILE, scores.get("run"), run, _REMEDY)
    return scores


def check_texts(run: Path, scores: dict[str, Any]) -> None:
    """Raises a DamagedError unless the texts that were scored are unchanged."""
    for place, digest in scores["files"].items():
        check_digest(run / place, digest, _REMEDY)


def scored_lines(run: Path, folder: str, pair: str) -> list[str]:
    """Returns the hypotheses or the references of a language pair."""
    scores, place = read_scores(run), f"{folder}/{file_name(pair)}.txt"
    if scores is None or place not in scores["files"]:
        raise UserError(f"{run}: has no {folder} of {pair!r}; run 'multidds evaluate' on it.")
    check_digest(run / place, scores["files"][place], _REMEDY)
    return (run / place).read_text(encoding="utf-8").removesuffix("\n").split("\n")
