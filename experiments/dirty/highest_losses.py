"""Training that leaves out the highest losses of every batch: the usual remedy for wrong pairs, to compare with.

    python experiments/dirty/highest_losses.py experiments/dirty/dirty.toml --drop 0.33

Repeats each run of the method `alike` on damaged data as a run of a method `highest-losses`, and scores it. Existing
runs are resumed or kept.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from multidds.nmt.batches.batch import Batch
from multidds.nmt.common.displays import Plain
from multidds.nmt.config.config import Config
from multidds.nmt.evaluation.evaluate import evaluate
from multidds.nmt.experiment.experiment_file import load_experiment
from multidds.nmt.experiment.run_list import Planned, plan
from multidds.nmt.noisy_pairs.pair_features import per_sentence
from multidds.nmt.training.train import Training, train


class HighestLosses(Training):
    """A training in one process whose steps leave out a share of the sentences of every batch."""

    drop = 0.33

    def backward(self, batches: list[Batch], tokens: int) -> Tensor:
        """Computes the gradients of the mean loss per token of the sentences that are kept."""
        total, kept_tokens = torch.zeros(()), 0
        for batch in batches:
            losses = self.token_losses(self.model, batch)
            means = per_sentence(batch, losses.detach())
            kept = means <= means.quantile(1 - self.drop)
            kept = kept[batch.target_rows.places // batch.target_rows.longest]  # [R]
            (losses * kept).sum().backward()
            total += losses.detach().sum()
            kept_tokens += int(kept.sum())
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= max(kept_tokens, 1)
        return total


def trained(config: Config, folder: Path, drop: float) -> None:
    """Trains and scores one run."""
    kind = type("HighestLosses", (HighestLosses,), {"drop": drop})
    if train(config, folder, Plain(), kind).finished and config.data.test is not None:
        evaluate(folder, config.train.threads)


def runs_of(path: Path, setting: str) -> list[Planned]:
    """The runs of the method `alike` in a setting, under the name of this method."""
    runs = [run for run in plan(path, load_experiment(path)) if (run.setting, run.method) == (setting, "alike")]
    folders = [run.folder.parents[1] / "highest-losses" / run.folder.name for run in runs]
    return [replace(run, method="highest-losses", folder=folder) for run, folder in zip(runs, folders, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--setting", default="catalogues-damaged")
    parser.add_argument("--drop", type=float, default=HighestLosses.drop, help="the share of sentences to leave out")
    given = parser.parse_args()
    for run in runs_of(given.experiment, given.setting):
        print(run.name, flush=True)
        trained(run.config, run.folder, given.drop)


if __name__ == "__main__":
    main()
