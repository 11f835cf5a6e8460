"""Mixtures: named probabilities of datasets, the rules that make them without learning, and their limits.

`Mixture` is the object that a balancer moves and that samplers draw from. `Replay` moves it without learning;
`Limits` bounds shares and passes. Nothing here needs torch.

>>> from multidds.mixture import Mixture
>>> mixture = Mixture.temperature({"cs-en": 100, "sk-en": 4}, tau=2)
>>> mixture
Mixture(cs-en 83%, sk-en 17%)
>>> mixture.move({"cs-en": 0.75, "sk-en": 0.25})
>>> mixture["sk-en"], mixture.sizes
(0.25, {'cs-en': 100, 'sk-en': 4})
"""

from .limits import Limits
from .mixture import Mixture
from .mixture_table import MixtureTable
from .replay import Replay

__all__ = ["Limits", "Mixture", "MixtureTable", "Replay"]
