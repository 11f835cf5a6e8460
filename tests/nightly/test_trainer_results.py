"""The examples for trainers in a short form: what each claims of a learned mixture, with a margin."""

from statistics import mean

import accelerate_loop
import huggingface_trainer
import lightning_fit
import pytest
import sentence_transformers_fit
import stateful_loader
import torch
import trl_sft
from plain_loop import SIZES
from toy_lightning import QUIET

from multidds import Mixture

pytestmark = [pytest.mark.nightly(part="results"), *QUIET]


def test_hugging_face_trainer_ends_with_a_lower_test_loss_than_its_baseline():
    losses = {method: mean(values.values()) for method, values in huggingface_trainer.main(steps=120).items()}
    assert losses["learned"] < losses["proportional"] - 0.05


def test_trl_leaves_the_largest_domain_which_no_dev_set_contains(capsys):
    losses = trl_sft.main(steps=40)
    assert losses["learned"]["manual"] < losses["proportional"]["manual"] - 0.1
    assert float(capsys.readouterr().out.split()[-1].rstrip("%")) < 64.5 / 3


def test_sentence_transformers_draw_what_helps_more_often(capsys):
    accuracies = sentence_transformers_fit.main(steps=100)
    assert accuracies["learned"]["rare"] > accuracies["proportional"]["rare"] + 0.1
    assert float(capsys.readouterr().out.split()[-1].rstrip("%")) < 69 / 3  # the share of the junk


def test_lightning_drops_the_noise_and_resumes_exactly(tmp_path):
    results = lightning_fit.main(400)
    assert results["learned"]["mixture"]["junk"] < results["proportional"]["mixture"]["junk"] / 2
    for name, score in results["learned"]["accuracy"].items():
        assert score > results["proportional"]["accuracy"][name]
    model, mixture = lightning_fit.fit(tmp_path, 200)
    resumed, its_mixture = lightning_fit.fit(tmp_path, 200, ckpt_path=tmp_path / "step=100.ckpt")
    assert its_mixture == mixture
    assert all(torch.equal(p, q) for p, q in zip(resumed.parameters(), model.parameters(), strict=True))


def test_loops_of_other_libraries_drop_the_noise(tmp_path):
    for mixture in (accelerate_loop.main(400, str(tmp_path)), stateful_loader.main(400).mixture.probabilities):
        assert mixture["junk"] < Mixture.proportional(SIZES)["junk"] / 2
