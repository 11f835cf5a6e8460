"""The scores of an evaluated run as others read them: scores.json, and the texts that were scored.

evaluate.py writes them. Needs neither CTranslate2 nor torch.
"""

import math
from pathlib import Path
from typing import Any

from ..common.checksummed import check_digest, read_checksummed
from ..common.errors import UserError
from ..common.escaping import file_name

FILE = "scores.json"
_AGAIN = "run 'multidds evaluate' again."


def read_scores(run: Path) -> dict[str, Any] | None:
    """Those of a run; None where it was not evaluated."""
    try:
        return read_checksummed(run / FILE, _AGAIN)
    except FileNotFoundError:
        return None


def check_texts(run: Path, scores: dict[str, Any]) -> int:
    """A DamagedError unless the texts that were scored are there as they were. Returns how many there are."""
    for place, digest in scores["files"].items():
        check_digest(run / place, digest, _AGAIN)
    return len(scores["files"])


def scored_lines(run: Path, folder: str, pair: str) -> list[str]:
    """The hypotheses or the references of a language pair."""
    scores, place = read_scores(run), f"{folder}/{file_name(pair)}.txt"
    if scores is None or place not in scores["files"]:
        raise UserError(f"{run}: has no {folder} of {pair!r}; run 'multidds evaluate' on it.")
    check_digest(run / place, scores["files"][place], _AGAIN)
    return (run / place).read_text(encoding="utf-8").removesuffix("\n").split("\n")


def scores_of_both(run: Path, other: Path) -> dict[str, dict[str, Any]]:
    """What `significance.compare` says, without the test: that takes sacreBLEU."""
    ours, theirs = (read_scores(folder) or {"pairs": {}} for folder in (run, other))
    return {
        name: {"bleu": facts["bleu"], "against": theirs["pairs"][name]["bleu"], "p": math.nan}
        for name, facts in ours["pairs"].items()
        if name in theirs["pairs"]
    }
