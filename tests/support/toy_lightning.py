"""A small LightningModule with its data, loader and trainer."""

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torchmetrics import MeanMetric, MetricCollection, SumMetric
from toys import dataset

from multidds import Mixture
from multidds.integrations.lightning import BalanceCallback, mixed_loader
from multidds.rules import Scorer

QUIET = [
    # Warnings about any small run, whatever the loader and the callbacks are.
    pytest.mark.filterwarnings("ignore:The 'val_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:GPU available but not used"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed from"),
    pytest.mark.filterwarnings("ignore:You are using the `dataloader_iter` step flavor"),
    pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated"),  # with torch 2.13
    pytest.mark.filterwarnings("ignore:.*You defined a `validation_step` but have no `val_dataloader`"),
]

SIZES = {"a": 40, "b": 13, "c": 7}
TRAIN = {name: dataset(size, seed=size) for name, size in SIZES.items()}
DEV = {"x": dataset(9, seed=1), "y": dataset(9, seed=2)}


class Net(LightningModule):
    """A module as users write them: logs, metrics, and outputs collected over an epoch."""

    def __init__(self, dropout=0.0, width=8):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Dropout(dropout), nn.Linear(width, 3)).double()
        self.seen = SumMetric()
        self.losses = MetricCollection([MeanMetric(), SumMetric()])
        self.outputs = []
        self.batches = []  # what training saw, by its first numbers

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True, sync_dist=True)
        self.losses(loss)
        self.log_dict({"twice": 2 * loss}, on_step=True)
        self.seen(len(y))
        self.log("seen", self.seen, on_step=False, on_epoch=True)
        self.outputs.append(loss.detach())
        if self.logger is not None:
            self.logger.log_metrics({"direct": loss.item()}, step=self.global_step)
        return {"loss": loss}

    def on_train_batch_start(self, batch, batch_idx):
        self.batches.append(batch[0][:, 0].tolist())

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self.net(x), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


def trainer(folder, *callbacks, **options):
    defaults = {"logger": False, "enable_checkpointing": any(isinstance(c, ModelCheckpoint) for c in callbacks)}
    defaults |= {"log_every_n_steps": 1}
    fixed = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(default_root_dir=folder, callbacks=list(callbacks), **fixed, **(defaults | options))


def loader_and_callback(batch_size=4, every=3, workers=0, callback=None, **options):
    """callback: arguments of the callback. options: of the DataLoader."""
    mixture = Mixture.proportional(SIZES)
    loader = mixed_loader(TRAIN, mixture, batch_size, seed=5, num_workers=workers, **options)
    settings = {"rule": Scorer(lr=1.0), "batch_size": 4} | (callback or {})
    return loader, BalanceCallback(mixture, DEV, every, **settings)


def net(dropout=0.0, kind=Net):
    torch.manual_seed(0)
    return kind(dropout)


class Stateless(Net):
    """Lightning makes a new optimizer for every fit; this one has nothing to forget."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def result(module, callback, loader):
    parameters = [p.tolist() for p in module.parameters()]
    return parameters, callback.mixture.probabilities, loader.state_dict(), module.batches
