"""Translations of a trained run, their scores, and the comparison of two runs.

`export` converts the best model of a run, `Translator` translates with it, `evaluate` scores the test sets, and
`compare` in `significance.py` tests the difference between two runs. Scores stay in the run's folder:

>>> from pathlib import Path
>>> from multidds.nmt.evaluation import read_scores
>>> read_scores(Path("runs/not-evaluated-yet")) is None
True

Only what needs neither sacreBLEU nor torch is imported here.
"""

from .export import convert, export, read_export
from .scores import read_scores
from .translate import Translator

__all__ = ["Translator", "convert", "export", "read_export", "read_scores"]
