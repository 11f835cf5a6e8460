"""Balancing inside the trainers of sentence-transformers: one argument, one callback.

`mixed_batches(mixture)` is the `multi_dataset_batch_sampler`: the dataset of each batch is drawn from the mixture.
`BalanceCallback` learns the mixture.

>>> from multidds import Mixture
>>> from multidds.integrations.sentence_transformers import BalanceCallback, mixed_batches
>>> batches = mixed_batches(Mixture.uniform(["web", "code"]))

>>> args = SentenceTransformerTrainingArguments(folder, multi_dataset_batch_sampler=batches)  # doctest: +SKIP
>>> trainer = SentenceTransformerTrainer(model, args, train_dataset=train_sets, loss=loss)  # doctest: +SKIP
>>> trainer.add_callback(BalanceCallback(trainer, dev=dev_sets))  # doctest: +SKIP
"""

from .batches import mixed_batches
from .callback import BalanceCallback

__all__ = ["BalanceCallback", "mixed_batches"]
