"""The preview of a training: what it shows and refuses, and that it changes nothing."""

import pytest
import torch
import toy_st
import toy_trainers
from toy_trainers import QUIET, mixtures, same_parameters
from toy_trl import dev_sets, sft, train_sets

from multidds.integrations.huggingface import BalanceCallback
from multidds.integrations.sentence_transformers import BalanceCallback as OfSentenceTransformers
from multidds.integrations.trl import balance
from multidds.rules import RelevancePlan

pytestmark = QUIET
PLAN = {"every": 2, "rule": RelevancePlan()}


def with_trl(folder, settings=None):
    trainer = sft(folder, train_sets("text")["b"], dev_sets("text"), **(settings or {}))
    return trainer, balance(trainer, train_sets("text"), **PLAN)


def with_trainer(folder, settings=None):
    return toy_trainers.trainer_of(folder, settings=settings, **PLAN)


def with_sentence_transformers(folder, settings=None):
    return toy_st.trainer_of(folder, settings=settings, **PLAN)


MAKERS = [with_trainer, with_trl, with_sentence_transformers]


@pytest.mark.parametrize("make", MAKERS)
def test_a_preview_shows_the_plan_and_leaves_no_trace(make, tmp_path, capsys):
    trainer, callback = make(tmp_path / "a")
    trained = make(tmp_path / "b")[0]
    capsys.readouterr()
    torch.manual_seed(3)
    before = dict(vars(trainer)), callback.mixture.probabilities, callback.mixture.version, torch.get_rng_state()
    text = callback.preview()
    line = capsys.readouterr().out
    now = dict(vars(trainer)), callback.mixture.probabilities, callback.mixture.version, torch.get_rng_state()
    assert [name for name in now[0] if now[0][name] is not before[0].get(name)] == []
    assert now[1:3] == before[1:3]
    assert torch.equal(now[3], before[3])
    assert callback.balancer is None
    assert trainer.state.log_history == []
    assert line.startswith("plan: ")
    assert "updates, about" in line
    torch.manual_seed(7)
    trained.train()
    torch.manual_seed(7)
    trainer.train()
    assert line.partition(" · updates are")[0] == capsys.readouterr().out.split("\n")[0].partition(" · updates are")[0]
    for name, share in callback.balancer.start.items():
        assert f"  {name} {share:.0%}" in text
    assert mixtures(trainer) == mixtures(trained)
    assert same_parameters(trainer, trained)


def test_a_preview_raises_what_the_training_would_refuse(tmp_path):
    trainer, callback = with_trainer(tmp_path)
    trainer.args.dataloader_drop_last = not trainer.args.dataloader_drop_last
    trainer.args.train_sampling_strategy = "group_by_length"
    messages = []
    for begin in (callback.preview, trainer.train):
        with pytest.raises(ValueError, match="BalanceCallback") as caught:
            begin()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("kind", [BalanceCallback, OfSentenceTransformers])
def test_the_class_itself_is_refused_by_name(kind, tmp_path):
    trainer, _ = with_trainer(tmp_path)
    with pytest.raises(TypeError, match=r"BalanceCallback: .* trainer.add_callback\(BalanceCallback\(trainer\)\)"):
        type(trainer)(trainer.model, trainer.args, train_dataset=trainer.train_dataset, callbacks=[kind])
