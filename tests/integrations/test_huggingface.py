"""Balancing inside the real Trainer: equal to a plain loop, resumed exactly, whatever reads the data."""

import contextlib
import gc
import json
import os
import shutil
import socket
import weakref
from operator import attrgetter
from types import SimpleNamespace

import huggingface_trainer
import pytest
import torch
from datasets import DatasetDict
from odd_names import NAMES
from ranks import leave
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader
from toy_trainers import (
    SIZES,
    Classifier,
    Rows,
    Watched,
    arguments,
    arrow,
    dev_sets,
    lasting,
    mixtures,
    simulated,
    streams,
    train_sets,
    trainer_of,
)
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
)

from multidds import Balancer, Mixture, MixtureSampler, Scorer, batches_of, plot
from multidds.history import moments_of
from multidds.integrations.huggingface import BalanceCallback, MixedDataset
from multidds.integrations.huggingface.refusals import check_model

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # on machines with few cores
    pytest.mark.filterwarnings(
        "ignore:'pin_memory' argument is set as true but no accelerator"
    ),  # the default, on a CPU
]


@pytest.mark.claim(
    "Hugging Face Trainer",
    "**data-loader workers**, **gradient accumulation**: a fixed delay with 0, 1 or 2 workers, any "
    "prefetch factor, persistent workers",
)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gradient_accumulation_steps": 1},
        {"dataloader_num_workers": 1},
        {"dataloader_num_workers": 2},
        {"dataloader_num_workers": 2, "dataloader_prefetch_factor": 3, "gradient_accumulation_steps": 1},
        {"dataloader_num_workers": 2, "dataloader_prefetch_factor": 1, "dataloader_persistent_workers": True},
    ],
    ids=str,
)
def test_a_new_mixture_rules_after_a_fixed_lag_whoever_reads(settings, tmp_path):
    trainer, _ = trainer_of(tmp_path, every=3, settings=settings)
    trainer.train()
    workers, accumulation = settings.get("dataloader_num_workers", 0), trainer.args.gradient_accumulation_steps
    lag = workers * settings.get("dataloader_prefetch_factor", 2) + 1
    moves = {step * accumulation + lag: mixture for step, mixture in mixtures(trainer).items()}
    assert len(moves) == 4
    assert len({tuple(mixture.values()) for mixture in moves.values()}) == 4
    assert trainer.seen == simulated(14 * accumulation, 4, moves)
    assert trainer.state.epoch == pytest.approx(14 * accumulation / (12 if accumulation == 2 else 11))


@pytest.mark.claim("Hugging Face Trainer", "**same result as a loop by hand**")
def test_the_mixture_is_that_of_a_plain_loop(tmp_path):
    settings = {"optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    trainer, _ = trainer_of(tmp_path, dropout=0.0, settings=settings, batches=2, priority={"x": 0.7, "y": 0.3})
    trainer.train()

    model, data = Classifier(dropout=0.0), train_sets()
    mixture = Mixture.proportional(SIZES)
    stream = iter(DataLoader(ConcatDataset(data.values()), batch_sampler=MixtureSampler(SIZES, mixture, 4, seed=1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(model, batch):
        return nn.functional.cross_entropy(model.net(batch["x"]), batch["labels"])

    balancer = Balancer(
        mixture,
        model,
        loss,
        train={name: batches_of(d, 4) for name, d in data.items()},
        dev={name: batches_of(d, 4) for name, d in dev_sets().items()},
        every=2,
        scorer=Scorer(lr=2.0),
        seed=5,
        batches=2,
        priority={"x": 0.7, "y": 0.3},
    )
    ahead, learned = next(stream), {}  # accelerate's loader reads one batch ahead
    for step in range(1, 15):
        batches = []
        for _ in range(2):
            batches.append(ahead)
            ahead = next(stream)
        for batch in batches:
            (loss(model, batch) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
        if update := balancer.step():
            learned[step] = update.mixture
    found = mixtures(trainer)
    assert found.keys() == learned.keys() == set(range(2, 15, 2))
    for step, expected in learned.items():
        assert found[step] == pytest.approx(expected, abs=1e-6)
    for p, expected in zip(trainer.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p, expected, atol=1e-6, rtol=0)


@pytest.mark.claim(
    "Hugging Face Trainer",
    "**exact resume**: in the middle of an epoch, with accumulation, workers, and a mixture that has not "
    "taken effect yet",
)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("save_steps", [4, 5, 6])
def test_a_resumed_training_is_the_uninterrupted_one_bit_for_bit(save_steps, workers, tmp_path):
    """Step 6 is the end of an epoch; after 4 and 6 an update waits in the lag."""
    settings = {
        "save_strategy": "steps",
        "save_steps": save_steps,
        "eval_strategy": "no" if workers else "steps",  # evaluations with workers take long
        "eval_steps": 3,
        "dataloader_num_workers": workers,
    }
    options = {"settings": settings, "priority": "low", "scorer": Scorer(lr=0.5, optimizer=torch.optim.Adam)}
    whole, callback = trainer_of(tmp_path, **options)
    whole.train()
    checkpoint = tmp_path / f"checkpoint-{save_steps}"
    saved = json.loads((checkpoint / "trainer_state.json").read_text())["stateful_callbacks"]["BalanceCallback"]
    assert len(saved["attributes"]["dataset"]["mixtures"]) > 1 or save_steps == 5

    resumed, again = trainer_of(tmp_path, **options)
    torch.manual_seed(99)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert resumed.seen == whole.seen[2 * save_steps :]
    assert again.state() == callback.state()
    assert lasting(resumed.state.log_history) == lasting(whole.state.log_history)
    for p, expected in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(p, expected)


def test_training_begins_with_the_plan_for_its_length(tmp_path):
    trainer = Watched(
        Classifier(),
        arguments(tmp_path),
        train_dataset=MixedDataset(train_sets(), Mixture.proportional(SIZES), seed=1),
        eval_dataset={name: Rows(10, seed) for seed, name in enumerate(SIZES, start=10)},
    )
    trainer.add_callback(BalanceCallback(trainer, every=1000, seed=5))
    trainer.train()
    steps, batches = trainer.state.max_steps, len(trainer.seen)
    plan = Mixture.planned(SIZES, draws=steps * 8)
    assert plan["a"] > 1.2 * Mixture.proportional(SIZES)["a"]
    assert trainer.seen == simulated(batches, 4, {0: plan.probabilities})


@pytest.mark.claim("Hugging Face Trainer", "`resume_from_checkpoint=True`, and a second training")
def test_a_checkpoint_resumes_by_name_and_a_second_training_begins_anew(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 4, "max_steps": 8}
    trainer, callback = trainer_of(tmp_path, settings=settings)
    trainer.train()
    trained = callback.state()
    trainer, callback = trainer_of(tmp_path, settings={**settings, "max_steps": 12})
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 12
    assert trainer.seen == simulated(24, 4, {2 * step + 1: mixture for step, mixture in mixtures(trainer).items()})[16:]
    assert callback.state() != trained
    trainer.seen = []
    trainer.train()  # from step 0
    first = mixtures(trainer)
    assert trainer.seen == simulated(24, 4, {2 * step + 1: mixture for step, mixture in first.items()})


@pytest.mark.claim(
    "Hugging Face Trainer",
    "resuming with another number of workers is deterministic, but not equal to the uninterrupted run",
)
def test_fewer_workers_after_a_resume_do_not_overtake_what_waits(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 4, "max_steps": 10}
    whole, _ = trainer_of(tmp_path, every=1, settings={**settings, "dataloader_num_workers": 2})
    whole.train()
    resumed, _ = trainer_of(tmp_path, every=1, settings=settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    moves = {}
    for step, mixture in mixtures(resumed).items():
        moves[2 * step + 5 if step <= 4 else max(2 * step + 1, 13)] = mixture  # the one of step 4 waits until batch 13
    assert resumed.seen == simulated(20, 4, moves)[8:]


@pytest.mark.claim("Hugging Face Trainer", "checkpoints that do not fit are refused")
def test_resuming_what_cannot_be_right_is_refused(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    trainer_of(tmp_path, settings=settings)[0].train()
    with pytest.raises(ValueError, match="^BalanceCallback: with ignore_data_skip=True .* Set it to False"):
        trainer_of(tmp_path, settings={**settings, "ignore_data_skip": True})[0].train(resume_from_checkpoint=True)
    other = {**settings, "per_device_train_batch_size": 2}
    with pytest.raises(ValueError, match="after 2 steps the checkpoint is at example 16, but now a step has 4. Resume"):
        trainer_of(tmp_path, settings=other)[0].train(resume_from_checkpoint=True)
    data = train_sets()
    with pytest.raises(ValueError, match="the state is of 6 examples of 'a', not 7 examples of it"):
        trainer_of(tmp_path, data={**data, "a": Rows(7, 0)}, settings=settings)[0].train(resume_from_checkpoint=True)
    data = dict(zip("ade", data.values(), strict=True))
    with pytest.raises(
        ValueError,
        match="^Balancer: state: 'd', 'e' are missing. Where the data were changed",
    ):
        trainer_of(tmp_path, data=data, settings=settings)[0].train(resume_from_checkpoint=True)
    plain = Watched(Classifier(), arguments(tmp_path / "plain", **settings), train_dataset=train_sets()["b"])
    plain.train()
    with pytest.raises(ValueError, match="^BalanceCallback: the checkpoint was written without a BalanceCallback, so"):
        trainer_of(tmp_path / "plain", settings=settings)[0].train(resume_from_checkpoint=True)


@pytest.mark.claim(
    "Hugging Face Trainer",
    "**datasets added or left out on resume**: refused, or gone on with as asked, with and without "
    "workers, and a second resume that needs no option",
)
@pytest.mark.parametrize("workers", [0, 2])
def test_changed_data_is_refused_or_gone_on_with_as_asked(workers, tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 5, "dataloader_num_workers": workers}
    first, callback = trainer_of(tmp_path, every=2, settings={**settings, "max_steps": 5})
    first.train()
    before, counts = callback.balancer.mixture.probabilities, callback.state()["attributes"]["dataset"]["counts"]
    assert before != Mixture.proportional(SIZES).probabilities
    data = {**train_sets(), "d": Rows(22, 9, offset=100)}
    del data["a"]

    def changed(**options):
        mixture = Mixture.proportional({name: len(d) for name, d in data.items()})
        trainer = Watched(
            Classifier(), arguments(tmp_path, **settings), train_dataset=MixedDataset(data, mixture, seed=1),
            eval_dataset={"y": dev_sets()["y"], "z": Rows(10, 30)},
        )  # fmt: skip
        trainer.add_callback(BalanceCallback(trainer, 2, scorer=Scorer(lr=2.0), seed=5, **options))
        return trainer, trainer.callback_handler.callbacks[-1]

    with pytest.raises(ValueError, match="'d' is missing. Where the data were changed on purpose, changed_data=True"):
        changed()[0].train(resume_from_checkpoint=True)
    trainer, again = changed(changed_data=True)
    begun = []
    trainer.add_callback(Beginning(lambda: begun.append(again.balancer.mixture.probabilities)))
    trainer.train(resume_from_checkpoint=True)
    assert begun[0]["d"] == pytest.approx(22 / 60)
    assert begun[0]["b"] / begun[0]["c"] == pytest.approx(before["b"] / before["c"])
    assert trainer.state.global_step == 14
    seen = [number for batch in trainer.seen for number in batch]
    assert len(seen) == 9 * 8  # from step 5 on: nothing is repeated or skipped
    assert {number for number in seen if number < 6} == set()
    assert {number for number in seen if number >= 100}
    consumed = again.state()["attributes"]["dataset"]["counts"]
    assert consumed.keys() == {"b", "c", "d"}
    assert consumed["b"] == counts["b"] + sum(6 <= number < 30 for number in seen)
    written = [(moment.step, "".join(sorted(moment.mixture))) for moment in moments_of(tmp_path / "mixture.jsonl")]
    assert written == [(step, "abc" if step < 5 else "bcd") for step in (0, 2, 4, 5, 6, 8, 10, 12, 14)]
    plot(tmp_path / "mixture.jsonl")

    plain, third = changed()  # what has been changed is what goes on from then on
    plain.train(resume_from_checkpoint=str(tmp_path / "checkpoint-10"))
    assert plain.seen == trainer.seen[10:]
    assert third.state() == again.state()


@pytest.mark.claim("Hugging Face Trainer", "where nothing has changed, `changed_data` changes nothing")
def test_where_nothing_has_changed_changed_data_changes_nothing(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 4}
    whole, callback = trainer_of(tmp_path, settings=settings)
    whole.train()
    resumed, again = trainer_of(tmp_path, settings=settings, changed_data=True)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert resumed.seen == whole.seen[8:]
    assert again.state() == callback.state()


class Beginning(TrainerCallback):
    def __init__(self, told):
        self.told = told

    def on_train_begin(self, *args, **kwargs):
        self.told()


def test_datasets_of_any_names_are_trained_logged_and_resumed(tmp_path):
    names = NAMES[:3]
    settings = {"save_strategy": "steps", "save_steps": 7, "report_to": ["tensorboard"]}
    mixtures = []
    for steps, resume in ((7, None), (14, True)):
        data = dict(zip(names, train_sets().values(), strict=True))
        trainer, callback = trainer_of(tmp_path, every=4, data=data, settings={**settings, "max_steps": steps})
        trainer.train(resume_from_checkpoint=resume)
        mixtures.append(callback.balancer.mixture.probabilities)
    logged = [row for row in trainer.state.log_history if f"mixture/{names[0]}" in row]
    assert [row["step"] for row in logged] == [4, 8, 12]
    assert {name: logged[-1][f"mixture/{name}"] for name in names} == mixtures[-1]
    assert mixtures[0].keys() == set(names)


@pytest.mark.claim(
    "Hugging Face Trainer", "logs, TensorBoard, and dev losses of evaluations as the basis of priorities"
)
def test_what_an_update_found_is_in_the_log_beside_what_the_trainer_logs(tmp_path):
    settings = {"logging_steps": 2, "report_to": ["tensorboard"], "eval_strategy": "steps", "eval_steps": 4}
    trainer, callback = trainer_of(tmp_path, every=4, settings=settings, priority="low")
    trainer.train()
    history = trainer.state.log_history
    updates = [row for row in history if "mixture/a" in row]
    assert [row["step"] for row in updates] == [4, 8, 12]
    assert [row["step"] for row in history if "loss" in row] == [2, 4, 6, 8, 10, 12, 14]
    for row, update in zip(updates, callback.balancer.history, strict=True):
        assert {name: row[f"reward/{name}"] for name in SIZES} == update.rewards
        assert {name: row[f"train_loss/{name}"] for name in SIZES} == update.train_losses
        assert {name: row[f"dev_weight/{name}"] for name in "xy"} == update.weights
        assert row["dev_loss/x" if update.weights["x"] else "dev_loss/y"] in update.dev_losses.values()
    seen = [number for batch in trainer.seen[:24] for number in batch]
    assert updates[2]["examples/a"] == sum(number < 6 for number in seen)
    assert updates[2]["passes/a"] == updates[2]["examples/a"] / 6
    # The priority follows the last full evaluation, not the probe.
    evaluated = {name: [row for row in history if f"eval_{name}_loss" in row][1] for name in "xy"}
    losses = {name: row[f"eval_{name}_loss"] for name, row in evaluated.items()}
    worse = max(losses, key=losses.get)
    assert updates[2][f"dev_weight/{worse}"] == 1.0
    assert callback.balancer.dev_losses.keys() == {"x", "y"}
    assert any("tfevents" in path.name for path in tmp_path.rglob("*"))


def test_an_update_that_is_skipped_is_said_and_logged(tmp_path, caplog):
    data = train_sets()
    data["b"].x.fill_(float("nan"))
    trainer, callback = trainer_of(tmp_path, data=data, settings={"max_steps": 2})
    trainer.train()
    assert callback.balancer.history[0].skipped
    assert "BalanceCallback: step 2: no update, because the gradient" in caplog.text
    assert mixtures(trainer)[2] == Mixture.proportional(SIZES).probabilities


@pytest.mark.claim("Hugging Face Trainer", "`datasets.Dataset`, `DatasetDict`")
def test_arrow_datasets_are_drawn_and_probed_as_torch_datasets_are(tmp_path):
    plain, _ = trainer_of(tmp_path)
    plain.train()
    mixed = MixedDataset(train_sets(arrow), Mixture.proportional(SIZES), seed=1)
    dev = DatasetDict({name: arrow(10, seed, 0) for seed, name in enumerate("xy", start=10)})
    trainer = Watched(Classifier(), arguments(tmp_path), train_dataset=mixed, eval_dataset=dev)
    trainer.add_callback(BalanceCallback(trainer, 2, scorer=Scorer(lr=2.0), seed=5))
    trainer.train()
    assert trainer.seen == plain.seen
    assert mixtures(trainer) == mixtures(plain)


@pytest.mark.claim("Hugging Face Trainer", "some dev sets, or others")
def test_some_dev_sets_or_others_can_be_chosen(tmp_path):
    for dev, names in ((["y"], ["y"]), ("x", ["x"]), ({"z": Rows(5, 3)}, ["z"])):
        trainer, callback = trainer_of(tmp_path, dev=dev, settings={"max_steps": 2, "eval_strategy": "epoch"})
        trainer.train()
        assert list(callback.balancer.history[0].weights) == names


@pytest.mark.claim("Hugging Face Trainer", "columns that the loss needs and the Trainer would remove")
def test_a_loss_of_ones_own_gets_the_columns_that_are_kept(tmp_path):
    def loss(model, batch):
        assert set(batch) == {"x", "labels", "number"}
        return nn.functional.cross_entropy(model.net(batch["x"]), batch["labels"]) * 2

    trainer, callback = trainer_of(tmp_path, loss=loss, settings={"max_steps": 2})
    trainer.train()
    twin, _ = trainer_of(tmp_path, settings={"max_steps": 2})
    twin.train()
    assert mixtures(trainer)[2] == pytest.approx(mixtures(twin)[2])  # cosines know no scale
    losses = {name: row for row in twin.state.log_history for name in row if name.startswith("train_loss/")}
    assert callback.balancer.history[0].train_losses["a"] == pytest.approx(2 * losses["train_loss/a"]["train_loss/a"])

    arrows = train_sets(arrow)
    for data in (arrows, {name: [arrows[name][i] for i in range(size)] for name, size in SIZES.items()}):
        trainer, _ = trainer_of(tmp_path, data=data, loss=loss)
        with pytest.raises(
            ValueError, match="^BalanceCallback: the Trainer would remove 'text' .* remove_unused_columns"
        ):
            trainer.train()


class Looked(Classifier):
    """Says under what circumstances it was called."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def forward(self, x, labels=None, number=None):
        if not torch.compiler.is_compiling():
            self.calls.append((torch.is_autocast_enabled("cpu"), torch.is_grad_enabled()))
        return super().forward(x, labels, number)


@pytest.mark.claim("Hugging Face Trainer", "**bf16 on the CPU**")
@pytest.mark.bfloat16
def test_bf16_probes_run_under_the_autocast_of_training(tmp_path):
    trainer, _ = trainer_of(tmp_path, model=Looked(), settings={"bf16": True, "max_steps": 2})
    trainer.train()
    assert trainer.model.calls == [(True, True)] * (4 + 5)  # two steps of two batches; five probes


@pytest.mark.claim("Hugging Face Trainer", "`torch_compile` (probes run eagerly)")
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # the compiler's own
@pytest.mark.slow
def test_a_compiled_model_is_probed_eagerly(tmp_path):
    settings = {"torch_compile": True, "max_steps": 2, "gradient_accumulation_steps": 1}
    trainer, _ = trainer_of(tmp_path, model=Looked(), settings=settings)
    trainer.train()
    assert hasattr(trainer.model_wrapped, "_orig_mod")
    assert trainer.model.calls == [(False, True)] * 5
    plain, _ = trainer_of(tmp_path, settings={**settings, "torch_compile": False})
    plain.train()
    assert trainer.seen == plain.seen


@pytest.mark.claim("Hugging Face Trainer", "label smoothing, `compute_loss_func`")
def test_the_loss_of_a_probe_is_the_trainers_with_smoothing_or_a_function(tmp_path):
    def function(outputs, labels, num_items_in_batch=None):
        return 2 * nn.functional.cross_entropy(outputs["logits"], labels)

    def by_hand(model, batch):
        return nn.functional.cross_entropy(model.net(batch["x"]), batch["labels"], label_smoothing=0.3)

    losses = []
    for smoothing, in_trainer, in_callback in (
        (0.3, None, None),
        (0.0, None, by_hand),
        (0, function, None),
        (0, None, None),
    ):
        data = MixedDataset(train_sets(), Mixture.proportional(SIZES), seed=1)
        args = arguments(tmp_path, max_steps=1, label_smoothing_factor=smoothing, learning_rate=0.0)
        model = Classifier(dropout=0.0)
        model.config = None  # where the Trainer looks before it smoothes
        trainer = Trainer(model, args, train_dataset=data, eval_dataset=dev_sets(), compute_loss_func=in_trainer)
        # "low" looks at the dev batches twice: a loss that takes the labels out must not take them for good.
        callback = BalanceCallback(trainer, every=1, loss=in_callback, priority="low")
        trainer.add_callback(callback)
        trainer.train()
        losses.append(callback.balancer.history[0].train_losses["b"])
    smoothed, smoothed_by_hand, doubled, plain = losses
    assert smoothed == pytest.approx(smoothed_by_hand)
    assert doubled == pytest.approx(2 * plain)
    assert smoothed != pytest.approx(plain, rel=1e-3)


def tokens(size, seed, offset=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 20, (size, 6), generator=generator).tolist()
    return [{"input_ids": row, "labels": row[::-1], "decoder_input_ids": [0, *row[:0:-1]]} for row in ids]


@pytest.mark.claim("Hugging Face Trainer", "Seq2SeqTrainer, gradient checkpointing")
def test_seq2seq_with_gradient_checkpointing_and_label_smoothing(tmp_path):
    config = T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0)
    torch.manual_seed(0)
    dev = {"x": tokens(6, 9)}
    args = Seq2SeqTrainingArguments(
        str(tmp_path),
        per_device_train_batch_size=4,
        max_steps=4,
        gradient_checkpointing=True,
        label_smoothing_factor=0.1,
        predict_with_generate=True,
        eval_strategy="steps",
        eval_steps=2,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        save_strategy="no",
    )
    data = MixedDataset(train_sets(tokens), Mixture.proportional(SIZES), seed=1)
    trainer = Seq2SeqTrainer(T5ForConditionalGeneration(config), args, train_dataset=data, eval_dataset=dev)
    trainer.add_callback(BalanceCallback(trainer, every=2))
    trainer.train()
    assert list(mixtures(trainer)) == [2, 4]
    assert mixtures(trainer)[4] != Mixture.proportional(SIZES).probabilities


@pytest.mark.claim("Hugging Face Trainer", "`model_init`")
def test_a_model_that_is_made_anew_for_every_training(tmp_path):
    config = LlamaConfig(
        vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, use_cache=False
    )
    data = MixedDataset(train_sets(tokens), Mixture.proportional(SIZES), seed=1)
    trainer = Trainer(
        model_init=lambda: AutoModelForCausalLM.from_config(config),
        args=arguments(tmp_path, max_steps=4, gradient_checkpointing=True),
        train_dataset=data,
        eval_dataset={"x": tokens(6, 9)},
    )
    trainer.add_callback(BalanceCallback(trainer, every=2))
    learned = []
    for _ in range(2):
        trainer.train()
        learned.append(mixtures(trainer))
    assert list(learned[0]) == [2, 4]
    assert learned[0] == learned[1]


def test_a_trainer_that_nobody_uses_is_freed_at_once_with_its_model(tmp_path):
    trainer, callback = trainer_of(tmp_path, settings={"max_steps": 2})
    trainer.train()
    left = [weakref.ref(trainer), weakref.ref(trainer.model)]
    gc.disable()
    try:
        del trainer, callback
        assert [reference() for reference in left] == [None, None]
    finally:
        gc.enable()


@pytest.mark.slow
def test_the_example_ends_with_a_lower_mean_test_loss_than_its_baseline(capsys):
    losses = huggingface_trainer.main(steps=120)
    means = {method: sum(values.values()) / len(values) for method, values in losses.items()}
    assert means["learned"] < means["proportional"] - 0.05
    assert "learned" in capsys.readouterr().out


@pytest.mark.parametrize(("version", "accepted"), [(2, True), (1, False)])
def test_fsdp_of_the_second_version_is_taken_for_shards(tmp_path, monkeypatch, version, accepted):
    """accelerate has no FSDP on a CPU: what is tested is that we do not stand in its way."""
    trainer, _ = trainer_of(tmp_path)
    trainer.is_fsdp_enabled = True
    plugin = SimpleNamespace(fsdp_version=version)
    monkeypatch.setitem(trainer.accelerator.state._shared_state, "fsdp_plugin", plugin)
    with contextlib.nullcontext() if accepted else pytest.raises(ValueError, match=r"\(FSDP1 or XLA's FSDP\)"):
        check_model(trainer)


@pytest.mark.claim("Hugging Face Trainer", "settings that break the method are refused")
def test_what_breaks_the_method_is_refused_with_what_to_change(tmp_path):
    mixed = MixedDataset(train_sets(), Mixture.proportional(SIZES), seed=1)
    for path, value, message in (
        ("train_dataset", Rows(3, 0), "^BalanceCallback: the Trainer's train_dataset must be a MixedDataset, got Rows"),
        ("eval_dataset", Rows(3, 0), r"must be \{name: dev set\}, but it is a Rows. Give it as a dict, or give dev="),
        ("eval_dataset", None, r"eval_dataset must be \{name: dev set\}, but there is none"),
        ("eval_dataset", {}, "^Balancer: there must be at least one dev set.$"),
        ("is_fsdp_enabled", True, r"split over processes \(FSDP1 or XLA's FSDP\) are not supported. Train with whole"),
        ("is_deepspeed_enabled", True, r"split over processes \(DeepSpeed\).* learned before: Replay\.$"),
        ("args.parallelism_config", object(), r"split over processes \(parallelism_config\)"),
        ("model.tp_size", 2, r"split over processes \(tensor parallelism\).* Replay\.$"),
        ("args._n_gpu", 2, "DataParallel is not supported; start one process per GPU"),
        ("args.auto_find_batch_size", True, "auto_find_batch_size would change .* Set it to False"),
        ("args.train_sampling_strategy", "group_by_length", "='group_by_length' would .* Set it to 'sequential'"),
        ("args.accelerator_config.split_batches", True, "split_batches=True .* set it to False"),
        ("args.dataloader_in_order", False, "with dataloader_in_order=False .* set it to True"),
        ("args.restore_callback_states_from_checkpoint", True, "restore_callback_states_from_.* Set it to False"),
    ):
        trainer = Watched(Classifier(), arguments(tmp_path), train_dataset=mixed, eval_dataset=dev_sets())
        *owners, attribute = path.split(".")
        setattr(attrgetter(".".join(owners))(trainer) if owners else trainer, attribute, value)
        with pytest.raises((TypeError, ValueError), match=message):
            BalanceCallback(trainer, every=2)
    with pytest.raises(TypeError, match="^BalanceCallback: the first argument must be the Trainer, got Mixture.$"):
        BalanceCallback(Mixture.uniform("a"), every=2)
    with pytest.raises(
        ValueError, match="^BalanceCallback: the dev sets 'z' are missing from eval_dataset; it has 'x', 'y'"
    ):
        trainer_of(tmp_path, dev=["x", "z"])
    with pytest.raises(ValueError, match="^BalanceCallback: batch_size must be a whole number of at least 1, .* 0"):
        trainer_of(tmp_path, batch_size=0)
    with pytest.raises(ValueError, match="^Balancer: every must be a whole number of at least 1, but it is 0"):
        trainer_of(tmp_path, every=0)
    with pytest.raises(
        ValueError, match="^BalanceCallback: reward 'moving-average' .*another reward, or set save_strat"
    ):
        trainer_of(tmp_path, reward="moving-average", settings={"save_strategy": "steps"})
    trainer, _ = trainer_of(tmp_path, reward="moving-average", settings={"max_steps": 2})
    trainer.train()
    with pytest.raises(ValueError, match="^BalanceCallback: the Trainer has one already; remove it with"):
        BalanceCallback(trainer, every=2)
    trainer.args.gradient_accumulation_steps = 4
    with pytest.raises(ValueError, match="^BalanceCallback: the batch size, gradient_accumulation_steps or .* changed"):
        trainer.train()


def test_mixed_batches_resume_where_that_need_not_be_exact(tmp_path):
    """What the dev sets want on average is as large as the model, and not in the Trainer's JSON."""

    def losses(model, batch):
        return nn.functional.cross_entropy(model(batch["x"])["logits"], batch["labels"], reduction="none")

    def trainer_of_many(**options):
        data = {f"d{i:02}": Rows(10, i) for i in range(40)}
        settings = {"save_strategy": "steps", "save_steps": 8, "max_steps": 14}
        mixed = MixedDataset(data, Mixture.uniform(data), seed=1)
        trainer = Watched(Classifier(), arguments(tmp_path, **settings), train_dataset=mixed, eval_dataset=dev_sets())
        trainer.add_callback(BalanceCallback(trainer, None, budget=1.0, losses=losses, **options))
        return trainer

    whole = trainer_of_many()
    whole.train()
    assert sorted(mixtures(whole)) == [6, 12]
    checkpoint = str(tmp_path / "checkpoint-8")
    with pytest.raises(
        ValueError, match=r"resumed exactly: the average of what the dev sets want, .* Leave out losses"
    ):
        trainer_of_many().train(resume_from_checkpoint=checkpoint)
    resumed = trainer_of_many(inexact_resume=True)
    resumed.train(resume_from_checkpoint=checkpoint)
    assert mixtures(resumed)[6] == mixtures(whole)[6]
    assert sorted(mixtures(resumed)) == [6, 12]


def replica(rank, port, folder):
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in variables.items()}, GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    together = {"ddp_backend": "gloo", "ddp_find_unused_parameters": False}
    for name, data, reading in CASES:
        settings = {**together, **SHARED, **reading, "save_strategy": "steps", "save_steps": 3}
        whole, _ = trainer_of(folder / name, dropout=0.0, data=data, settings=settings, batch_size=4)
        whole.train()
        resumed, _ = trainer_of(folder / name, dropout=0.0, data=data, settings=settings, batch_size=4)
        resumed.train(resume_from_checkpoint=str(folder / name / "checkpoint-3"))
        assert mixtures(resumed) == mixtures(whole)
        assert resumed.seen == whole.seen[3:]
        for p, expected in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
            assert torch.equal(p, expected)
        parameters = [p.tolist() for p in whole.model.parameters()]
        (folder / f"{name}{rank}.json").write_text(json.dumps([mixtures(whole), whole.seen, parameters]))
    leave()


CASES = [
    ("map", train_sets(), {}),
    ("stream", streams(), {}),
    ("stream that every process reads", streams(), {"accelerator_config": {"dispatch_batches": False}}),
]
SHARED = {"gradient_accumulation_steps": 1, "max_steps": 8, "optim": "sgd"}


@pytest.mark.claim("Hugging Face Trainer", "**two processes** equal one with twice the batch, with streams too")
@pytest.mark.slow
def test_two_processes_equal_one_with_twice_the_batch(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(replica, (port, tmp_path), nprocs=2)
    for name, data, _ in CASES:
        (learned, first, parameters), (other, second, _) = (
            json.loads((tmp_path / f"{name}{rank}.json").read_text()) for rank in range(2)
        )
        assert learned == other
        settings = {**SHARED, "per_device_train_batch_size": 8}
        one, _ = trainer_of(tmp_path, dropout=0.0, data=data, settings=settings, batch_size=4, batches=2)
        one.train()
        assert [a + b for a, b in zip(first, second, strict=True)] == one.seen
        for step, mixture in mixtures(one).items():
            assert learned[str(step)] == pytest.approx(mixture, abs=1e-6)
        for p, expected in zip(parameters, one.model.parameters(), strict=True):
            torch.testing.assert_close(torch.tensor(p), expected.data, atol=1e-6, rtol=0)
