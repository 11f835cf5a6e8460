"""Sampling: from a mixture to draws, batches and examples, with exact resume.

`Draws` is the one sequence of draws under everything else: a function of seed, position and mixtures. `interleave`
streams batches of one dataset each, `MixtureSampler` gives indices to a DataLoader, `mixed_loader` is such a loader cut
into epochs, and `MixedDataset` is a dataset whose indices are positions in the draws. `batches_of` makes probe batches.

>>> from multidds.mixture import Mixture
>>> from multidds.sampling import MixtureSampler
>>> sampler = MixtureSampler({"a": 3, "b": 100}, Mixture.uniform(["a", "b"]), batch_size=5, seed=1)
>>> next(iter(sampler))
[24, 62, 2, 0, 1]
>>> sampler.passes
{'a': 1.0, 'b': 0.02}
"""

from .draws import Draws, Order
from .interleave import interleave
from .loader import MixedLoader, mixed_loader
from .mixed_dataset import MixedDataset, is_stream
from .mixed_streams import StreamReader, is_stateful
from .sampler import MixtureSampler
from .sources import Part, batches_of, part_indices

__all__ = [
    "Draws",
    "MixedDataset",
    "MixedLoader",
    "MixtureSampler",
    "Order",
    "Part",
    "StreamReader",
    "batches_of",
    "interleave",
    "is_stateful",
    "is_stream",
    "mixed_loader",
    "part_indices",
]
