"""The examples of other tasks in a short form: what each claims of a learned mixture, with a margin."""

import json
from statistics import mean

import dirty_data
import language_model
import multitask
import plain_loop
import pytest
import replay
import text_classifier
import torch
from conftest import ROOT
from snippets import blocks

from multidds import Mixture

pytestmark = [pytest.mark.nightly(part="results")]

STATIC = ("proportional", "temperature 5", "uniform")


def means(found):
    return {method: mean(mean(scores.values()) for scores in runs) for method, runs in found.items()}


@pytest.mark.claim("Other tasks", "causal language model, real text")
def test_the_language_model_leaves_the_tables_and_beats_static_mixtures(capsys):
    losses = means(language_model.main(steps=160, seeds=1))
    assert losses["learned"] < losses["proportional"] - 0.15
    assert losses["learned"] < min(losses[method] for method in STATIC)  # other Pythons have other text
    lines = capsys.readouterr().out.splitlines()
    (learned,) = [line for line in lines if line.startswith("learned ") and "%" in line]
    assert int(learned.split("%")[2]) < 65 / 3  # the share of the tables, of which there are most
    assert "the best static one here, by seed (lower is better): " in lines[-1]


def test_a_run_of_the_language_model_resumes_exactly():
    data = {name: language_model.examples(name) for name in language_model.SIZES}
    whole = language_model.Run(data, "learned", steps=44, seed=1)
    whole.train(44)
    halves = language_model.trained(data, "learned", steps=44, seed=1)
    assert halves.mixture.probabilities == whole.mixture.probabilities
    assert halves.sampler.passes == whole.sampler.passes
    saved = halves.model.state_dict()
    assert all(torch.equal(tensor, saved[name]) for name, tensor in whole.model.state_dict().items())


def test_no_split_of_the_language_model_shares_text_with_another():
    for name in language_model.ASKED_FOR:
        splits = language_model.examples(name)
        rows = {split: {tuple(row.tolist()) for row in d.tensors[0]} for split, d in splits.items()}
        shared = len(rows["test"] & rows["train"]) / len(rows["test"])
        assert shared < 0.05  # rules of dashes and licence lines are in many files


@pytest.mark.claim("Other tasks", "multilingual classifier, made-up languages")
def test_the_classifier_serves_the_small_languages_and_leaves_the_crawl():
    found = text_classifier.main(steps=300, seeds=1)
    accuracies = means(found)
    assert accuracies["learned"] > accuracies["proportional"] + 0.08
    assert accuracies["learned"] > max(accuracies[method] for method in STATIC) - 0.02  # as good as a tuned one
    for language in ("south", "isle"):
        assert found["learned"][0][language] > found["proportional"][0][language] + 0.05


@pytest.mark.claim("Other tasks", "multi-task fine-tuning, heads of their own")
def test_fine_tuning_drops_the_useless_task_and_serves_the_tiny_one(capsys):
    found = multitask.main(steps=200, seeds=1)
    accuracies = means(found)
    assert accuracies["learned"] > accuracies["proportional"] + 0.05
    assert accuracies["learned"] > max(accuracies[method] for method in STATIC) - 0.04  # as good as a tuned one
    (learned,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("learned  ")]
    assert int(learned.split("%")[-2]) < 78 / 3  # the share of parity


@pytest.mark.claim("Mixtures for other trainers", "a replayed history draws what the recorded run drew")
def test_a_replayed_history_draws_what_the_recorded_run_drew(tmp_path):
    _, drawn = replay.learn(tmp_path / "history.json", steps=300)
    _, again = replay.replay(tmp_path / "history.json", steps=300)
    assert again == drawn
    (_, start), *_ = json.loads((tmp_path / "history.json").read_text())
    static = replay.train(replay.perceptron(8), Mixture(start), None, steps=300)
    assert static[:20] == drawn[:20]  # until the first update
    assert static != drawn


def test_the_big_model_gains_from_the_replayed_mixture():
    found = replay.main(steps=500)
    for name in ("web", "rare"):
        assert found["big, replayed"][name] > found["big, proportional"][name] + 0.02


def test_the_splits_of_the_dirty_data_share_no_text_and_a_third_is_wrong():
    texts = {split: {text for _, text in rows} for split, rows in dirty_data.pieces().items()}
    assert not texts["train"] & (texts["dev"] | texts["test"])
    assert not texts["dev"] & texts["test"]
    given = dirty_data.data(0)
    assert 0.28 < given.wrong.double().mean() < 0.32
    assert torch.equal(given.train.tensors[1] != given.clean.tensors[1], given.wrong)


def test_scores_of_dirty_data_find_wrong_labels_and_do_no_harm():
    found = dirty_data.main(steps=400, seeds=1)
    ((scored,), (dirty,)) = found["scorer"], found["dirty"]
    assert scored["score"] > 0.8
    assert scored["accuracy"] > dirty["accuracy"] - 0.03


def test_the_plain_loop_drops_the_noise_and_finds_what_its_page_says(capsys):
    results = plain_loop.main()
    prior, learned = results["proportional"]["mixture"], results["learned"]["mixture"]
    assert learned["junk"] < prior["junk"] / 5
    assert learned["rare"] > 3 * prior["rare"]
    for name in ("web", "rare"):
        assert results["learned"]["accuracy"][name] > results["proportional"]["accuracy"][name] + 0.02
    shown = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(("prop", "learned "))]
    (table,) = blocks(ROOT / "examples" / "README.md", "text")
    claimed = [line.split() for line in table.splitlines() if line.startswith(("prop", "learned "))]
    for real, said in zip(shown, claimed, strict=True):
        for x, y in zip(real[1:], said[1:], strict=True):
            assert float(x.rstrip("%")) == pytest.approx(float(y.rstrip("%")), abs=3)  # other machines, other rounding
