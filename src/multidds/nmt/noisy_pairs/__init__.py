"""Learned chances of sentence pairs to be trained on (`[examples] method = "dds"`).

`NoisyPairs` owns the scorers of a training, `PairFeatures` describes pairs to them, `Lexicon` measures how well the
tokens of both sides fit, and `PairWeights` keeps the last weight of every pair for records.

>>> from multidds.nmt.noisy_pairs import FEATURES
>>> FEATURES[:2]
('target fits source', 'source fits target')
"""

from .lexicon import Lexicon
from .noisy_pairs import NoisyPairs
from .pair_features import FEATURES, PairFeatures, per_sentence
from .pair_weights import PairWeights

__all__ = ["FEATURES", "Lexicon", "NoisyPairs", "PairFeatures", "PairWeights", "per_sentence"]
