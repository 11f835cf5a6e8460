"""The task of plain_loop.py with Lightning: one loader and one callback; the module is an ordinary one.

Stops in the middle and resumes from Lightning's own checkpoint, exactly. Needs `pip install 'multidds[lightning]'`.

    python examples/lightning_fit.py
"""

import logging
import tempfile
import warnings
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from plain_loop import SIZES, WIDTH, accuracy, examples
from torch import nn

from multidds import Mixture
from multidds.integrations.lightning import BalanceCallback, mixed_loader


class Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)  # probes call training_step too; what they would log is dropped
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def fit(
    folder: Path, steps: int, balance: bool = True, ckpt_path: Path | None = None
) -> tuple[Classifier, dict[str, float]]:
    seed_everything(0, verbose=False)
    train_sets = {name: examples(name, size, seed=i) for i, (name, size) in enumerate(SIZES.items())}
    dev_sets = {"web": examples("web", 300, seed=10), "rare": examples("rare", 300, seed=11)}
    model = Classifier()

    mixture = Mixture.proportional({name: len(d) for name, d in train_sets.items()})
    callbacks = [ModelCheckpoint(folder, "{step}", every_n_train_steps=100, save_top_k=-1)]
    if balance:
        callbacks.append(BalanceCallback(mixture, dev=dev_sets, every=20, batch_size=128))
    trainer = Trainer(
        max_steps=steps,
        callbacks=callbacks,
        accelerator="cpu",
        logger=False,  # a logger gets mixture/NAME, reward/NAME, train_loss/NAME, dev_loss/NAME, passes/NAME
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, mixed_loader(train_sets, mixture, batch_size=64, seed=1), ckpt_path=ckpt_path)
    return model, mixture.probabilities


def main(steps: int = 1000) -> dict[str, dict[str, dict[str, float]]]:
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", "Checkpoint directory .* exists and is not empty")  # it is resumed from
    test = {name: examples(name, 2000, seed=20 + i) for i, name in enumerate(("web", "rare"))}
    results = {}
    print(f"{'':14}{'final mixture':^33}{'test accuracy':^18}")
    print(f"{'':14}" + "".join(f"{name:>10}" for name in SIZES) + "      web    rare")
    for method in ("proportional", "learned"):
        with tempfile.TemporaryDirectory() as folder:
            fit(Path(folder), steps // 2, method == "learned")  # as if the machine had stopped
            saved = Path(folder, f"step={steps // 2}.ckpt")
            model, mixture = fit(Path(folder), steps, method == "learned", saved)
        scores = {name: accuracy(model.net.eval(), d) for name, d in test.items()}
        shares = "".join(f"{p:10.1%}" for p in mixture.values())
        print(f"{method:14}{shares}  {scores['web']:7.1%} {scores['rare']:7.1%}")
        results[method] = {"mixture": mixture, "accuracy": scores}
    return results


if __name__ == "__main__":
    main()
