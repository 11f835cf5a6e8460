"""Balancing inside Lightning: one loader, one callback; module, datamodule and trainer stay as they are.

`mixed_loader` gives batches drawn from a mixture. `BalanceCallback` learns the mixture while a Trainer fits.

>>> from multidds import Mixture
>>> from multidds.integrations.lightning import BalanceCallback, mixed_loader
>>> mixture = Mixture.uniform(["web", "code"])
>>> loader = mixed_loader({"web": [1, 2, 3], "code": [40]}, mixture, batch_size=4, seed=1)
>>> next(iter(loader)).tolist()
[3, 1, 40, 40]

>>> trainer = Trainer(max_steps=1000, callbacks=[BalanceCallback(mixture, dev_sets)])  # doctest: +SKIP
>>> trainer.fit(module, loader)  # doctest: +SKIP
"""

from ...sampling import MixedLoader, mixed_loader
from .callback import BalanceCallback

__all__ = ["BalanceCallback", "MixedLoader", "mixed_loader"]
