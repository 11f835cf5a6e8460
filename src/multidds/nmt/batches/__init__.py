"""From prepared data to batches for training, probes and validation.

`Sentences` are one split of one language pair; `Stream` draws the steps of a training from them by the mixture; a
`Batch` holds packed tokens, without padding, and `Rows` lead from them to padded places and back.

>>> import numpy as np
>>> batch = packed([np.array([5, 6]), np.array([7])], [np.array([8]), np.array([9, 10])])
>>> batch.source.tolist(), batch.target_in.tolist(), batch.target_out.tolist()  # 1: <s>, 2: </s>
([5, 6, 2, 7, 2], [1, 8, 1, 9, 10], [8, 2, 9, 10, 2])
>>> batch.sentences, batch.tokens, batch.padded
(2, 5, 6)
"""

from .batch import Batch, Rows, assemble, evaluation_batches, packed
from .probe_batches import ProbeSentences, dev_batches, mixed_batch
from .sentences import Sentences
from .stream import Stream

__all__ = [
    "Batch",
    "ProbeSentences",
    "Rows",
    "Sentences",
    "Stream",
    "assemble",
    "dev_batches",
    "evaluation_batches",
    "mixed_batch",
    "packed",
]
