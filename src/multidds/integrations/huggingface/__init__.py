"""Balancing inside the Hugging Face Trainer: one dataset, one callback.

`MixedDataset` is the `train_dataset`: its examples are drawn from a mixture. `BalanceCallback` learns the mixture.

>>> from multidds import Mixture
>>> from multidds.integrations.huggingface import BalanceCallback, MixedDataset
>>> train_sets = {"web": ["web 0", "web 1", "web 2"], "code": ["code 0"]}
>>> train_dataset = MixedDataset(train_sets, Mixture.uniform(["web", "code"]), seed=1)
>>> [train_dataset[i] for i in range(4)]
['web 2', 'web 0', 'code 0', 'code 0']

>>> trainer = Trainer(model, args, train_dataset=train_dataset, eval_dataset=dev_sets)  # doctest: +SKIP
>>> trainer.add_callback(BalanceCallback(trainer))  # doctest: +SKIP
"""

from ...sampling import MixedDataset
from .callback import BalanceCallback

__all__ = ["BalanceCallback", "MixedDataset"]
