"""The balancer of a training, by several processes."""

import os

import pytest
from ranks import run_on_ranks
from toy_runs import small_config

from multidds import Mixture
from multidds.nmt.batches import Sentences
from multidds.nmt.model.transformer import make_model
from multidds.nmt.prepare import Prepared
from multidds.nmt.training.balancing import make_balancer
from multidds.nmt.training.length import planned_sentences
from multidds.nmt.training.train import Training


def probed_sets(config, folder):
    """Updates once; returns the (split, pair) whose sentences this process has read."""
    os.chdir(folder)
    prepared = Prepared(config)
    read = set()

    class Spied(Sentences):
        def __init__(self, pair, split):
            super().__init__(prepared, pair, split)
            self.split = split

        def tokens(self, i):
            read.add((self.split, self.name))
            return super().tokens(i)

    def loss(model, parts):
        return sum(model(part, 0.1) for part in parts) / sum(part.tokens for part in parts)

    names = config.data.names
    train, dev = ({name: Spied(name, split) for name in names} for split in ("train", "dev"))
    model = make_model(config, prepared.vocabulary)
    balancer = make_balancer(config, Mixture.uniform(names), model, loss, train, dev, "regular")
    balancer.update()
    return read


def test_no_pair_is_planned_for_more_passes_than_its_repetition_says(corpus, monkeypatch, tmp_path):
    """Few sentences in a long training: the plan goes up to 1 + repetition passes over what counts most."""
    passes = []
    for repetition in (15, 40):
        overrides = (f"mixture.repetition={repetition}", "train.max_steps=2000", "mixture.priority={mirror-base=1}")
        run = Training(small_config(corpus, monkeypatch, *overrides), tmp_path / str(repetition))
        sentences = planned_sentences(run.config, run.data)
        proportional = sentences / run.total
        planned = run.mixture["mirror-base"] * sentences / len(run.data["mirror-base"])
        passes.append((planned, max(1 + repetition, proportional)))
        run.close()
    assert all(planned <= most * (1 + 1e-6) for planned, most in passes)
    assert passes[0] != passes[1]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["learned", "multidds-s"])
def test_processes_divide_the_datasets_and_dev_sets_of_an_update(corpus, monkeypatch, tmp_path, method):
    config = small_config(corpus, monkeypatch, f"mixture.method={method}")
    first, second = run_on_ranks(probed_sets, tmp_path, 2, config, corpus)
    everything = {(split, pair) for split in ("train", "dev") for pair in config.data.names}
    assert first.isdisjoint(second)
    assert first | second == everything
