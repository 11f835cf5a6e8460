"""Balancing inside the real Trainer: equal to a plain loop, resumed exactly, whatever the settings."""

import contextlib
import copy
import gc
import json
import shutil
import weakref
from collections import defaultdict, deque
from functools import partial
from operator import attrgetter
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from assertions import assert_equal, assert_ranks_equal_one_process
from datasets import DatasetDict
from odd_names import NAMES
from safetensors.torch import save
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, RandomSampler
from toy_trainers import (
    MOVING,
    QUIET,
    SIZES,
    STILL,
    Classifier,
    Rows,
    Watched,
    arguments,
    arrow,
    assert_resumes,
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
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
)

from multidds import Balancer, Limits, Mixture, MixtureSampler, Probes, batches_of
from multidds.integrations.huggingface import BalanceCallback, MixedDataset
from multidds.rules import MovingAverage, RelevancePlan, Scorer

pytestmark = QUIET


def by_hand(model, batch, **options):
    return nn.functional.cross_entropy(model.net(batch["x"]), batch["labels"], **options)


@pytest.mark.claim(
    "Hugging Face Trainer",
    "**data-loader workers**, **gradient accumulation**: a fixed delay with 0, 1 or 2 workers, any "
    "prefetch factor, persistent workers",
)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gradient_accumulation_steps": 1, "dataloader_num_workers": 1},
        {"dataloader_num_workers": 2, "dataloader_prefetch_factor": 3},
        {"dataloader_num_workers": 2, "dataloader_prefetch_factor": 1, "dataloader_persistent_workers": True},
    ],
    ids=str,
)
def test_new_mixture_takes_effect_after_a_fixed_lag(settings, tmp_path):
    trainer, _ = trainer_of(tmp_path, every=3, settings=settings)
    trainer.train()
    workers, accumulation = settings.get("dataloader_num_workers", 0), trainer.args.gradient_accumulation_steps
    lag = workers * settings.get("dataloader_prefetch_factor", 2) + 1
    moves = {step * accumulation + lag: mixture for step, mixture in mixtures(trainer).items()}
    assert len({tuple(mixture.values()) for mixture in moves.values()}) == 4
    assert trainer.seen == simulated(14 * accumulation, 4, moves)
    assert trainer.state.epoch == pytest.approx(14 * accumulation / (12 if accumulation == 2 else 11))


@pytest.mark.claim("Hugging Face Trainer", "**same result as a loop by hand**")
def test_mixture_is_that_of_a_plain_loop(tmp_path):
    settings = {"optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    options = {"probes": Probes(batches=2), "priority": {"x": 0.7, "y": 0.3}}
    trainer, _ = trainer_of(tmp_path, dropout=0.0, settings=settings, **options)
    trainer.train()

    model, data = Classifier(dropout=0.0), train_sets()
    mixture = Mixture.proportional(SIZES)
    stream = iter(DataLoader(ConcatDataset(data.values()), batch_sampler=MixtureSampler(SIZES, mixture, 4, seed=1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    balancer = Balancer(
        mixture,
        model,
        by_hand,
        train={name: batches_of(d, 4) for name, d in data.items()},
        dev={name: batches_of(d, 4) for name, d in dev_sets().items()},
        every=2,
        seed=5,
        **MOVING,
        **options,
    )
    ahead, learned = next(stream), {}  # accelerate's loader reads one batch ahead
    for step in range(1, 15):
        batches = []
        for _ in range(2):
            batches.append(ahead)
            ahead = next(stream)
        for batch in batches:
            (by_hand(model, batch) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
        if update := balancer.step():
            learned[step] = update.mixture
    assert learned.keys() == set(range(2, 15, 2))
    assert_equal(mixtures(trainer), learned, tolerance=1e-6)
    assert_equal(list(trainer.model.parameters()), list(model.parameters()), tolerance=1e-6)


@pytest.mark.claim(
    "Hugging Face Trainer",
    "**exact resume**: in the middle of an epoch, with accumulation, workers, and a mixture that has not "
    "taken effect yet",
)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("save_steps", [4, 5, 6])
def test_resume_is_exact(save_steps, workers, tmp_path):
    """Step 6 is the end of an epoch; after 4 and 6 an update waits in the lag."""
    settings = {
        "save_strategy": "steps",
        "save_steps": save_steps,
        "eval_strategy": "no" if workers else "steps",  # evaluations with workers take long
        "eval_steps": 3,
        "dataloader_num_workers": workers,
    }
    options = {"settings": settings, "priority": "low", "rule": Scorer(lr=0.5, optimizer=torch.optim.Adam)}
    checkpoint = tmp_path / f"checkpoint-{save_steps}"
    assert_resumes(partial(trainer_of, tmp_path, **options), checkpoint)
    saved = json.loads((checkpoint / "trainer_state.json").read_text())["stateful_callbacks"]["BalanceCallback"]
    assert len(saved["attributes"]["dataset"]["mixtures"]) > 1 or save_steps == 5


EVERY_EPOCH = {"save_strategy": "epoch", "eval_strategy": "epoch"}
BEST = {"load_best_model_at_end": True, "metric_for_best_model": "eval_z/1 %_loss", "greater_is_better": False}
IN_BETWEEN = {"save_strategy": "steps", "save_steps": 5, "eval_strategy": "steps", "eval_steps": 3}


def unordered(folder, settings, every=2, **options):
    """Names that JSON would bring into another order, and a priority by which every evaluation counts."""
    data = dict(zip("qba", train_sets().values(), strict=True))
    dev = {"z/1 %": Rows(10, 10), "a b": Rows(10, 11)}
    options = {"priority": lambda losses: losses, **options}
    return trainer_of(folder, every, data=data, eval_dataset=dev, settings=settings, **options)


@pytest.mark.claim(
    "Hugging Face Trainer",
    "exact resume: saving per epoch, best model, fractions of an epoch, `dataloader_drop_last`, "
    "`eval_on_start`, odd accumulation",
)
@pytest.mark.parametrize(
    ("settings", "checkpoint"),
    [
        ({**EVERY_EPOCH, **BEST}, 6),
        ({**EVERY_EPOCH, "max_steps": -1, "num_train_epochs": 2.5}, 12),
        ({**IN_BETWEEN, "dataloader_drop_last": True, "per_device_train_batch_size": 5}, 5),
        ({**IN_BETWEEN, "eval_on_start": True, "gradient_accumulation_steps": 3}, 5),
    ],
    ids=["best", "fraction", "drop_last", "eval_on_start"],
)
def test_ordinary_settings_resume_exactly(settings, checkpoint, tmp_path):
    whole, _ = assert_resumes(partial(unordered, tmp_path, settings), tmp_path / f"checkpoint-{checkpoint}", log=False)
    assert len(mixtures(whole)) == whole.state.max_steps // 2


@pytest.mark.claim("Hugging Face Trainer", "frozen parameters")
def test_model_with_frozen_parameters_resumes_exactly(tmp_path):
    def made():
        model = Classifier()
        model.net[0].requires_grad_(False)
        return trainer_of(tmp_path, model=model, settings=IN_BETWEEN)

    assert_resumes(made, tmp_path / "checkpoint-5")


class Requested(TrainerCallback):
    """A signal to save arrives while the optimizer steps for the fifth time."""

    def __init__(self, saver):
        self.saver = saver

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.saver.jit_manager.is_checkpoint_requested = state.global_step == 4


@pytest.mark.claim("Hugging Face Trainer", "`enable_jit_checkpoint`")
@pytest.mark.parametrize("options", [{}, {"rule": RelevancePlan()}])
def test_callback_that_saves_at_the_end_of_a_step_finds_it_counted(options, tmp_path, caplog):
    whole, callback = unordered(tmp_path, {}, every=5, **options)
    whole.train()
    stopped, _ = unordered(tmp_path, {"enable_jit_checkpoint": True}, every=5, **options)
    (saver,) = [c for c in stopped.callback_handler.callbacks if type(c).__name__ == "JITCheckpointCallback"]
    stopped.add_callback(Requested(saver))
    stopped.train()
    assert stopped.state.global_step == 5
    resumed, again = unordered(tmp_path, {}, every=5, **options)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.seen == whole.seen[10:]
    assert again.state() == callback.state()
    assert_equal(again.balancer.state_dict()["tensors"], callback.balancer.state_dict()["tensors"])
    assert "anew" not in caplog.text


def test_training_begins_with_the_plan_for_its_length(tmp_path):
    dev = {name: Rows(10, seed) for seed, name in enumerate(SIZES, start=10)}
    trainer, _ = trainer_of(tmp_path, every=1000, eval_dataset=dev, rule=RelevancePlan())
    trainer.train()
    plan = Mixture.planned(SIZES, draws=trainer.state.max_steps * 8)
    assert plan["a"] > 1.2 * Mixture.proportional(SIZES)["a"]
    assert trainer.seen == simulated(len(trainer.seen), 4, {0: plan.probabilities})


def test_passes_are_limited_by_the_length_of_training(tmp_path):
    """The length is known when training begins, not when the callback is constructed."""
    limited = {}
    for limits in (Limits(), Limits(max_passes={"b": 0.5})):
        settings = {"max_steps": -1, "num_train_epochs": 2}
        trainer, _ = trainer_of(tmp_path, every=3, settings=settings, limits=limits)
        trainer.train()
        limited[limits.max_passes is None] = trainer.train_dataset.passes["b"]
    assert limited[False] < 0.8 < limited[True]


def test_a_dataset_of_an_earlier_trainer_is_noticed_but_not_a_second_training(tmp_path, caplog):
    first, _ = trainer_of(tmp_path, settings={"max_steps": 4})
    first.train()
    first.train()
    assert "another balancer" not in caplog.text
    second = Watched(Classifier(), first.args, train_dataset=first.train_dataset, eval_dataset=first.eval_dataset)
    second.add_callback(BalanceCallback(second, 2, rule=Scorer(lr=2.0)))
    second.train()
    assert "another balancer" in caplog.text


@pytest.mark.claim("Hugging Face Trainer", "`resume_from_checkpoint=True`, and a second training")
def test_checkpoint_resumes_by_name_and_a_second_training_begins_anew(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 4, "max_steps": 8}
    trainer_of(tmp_path, settings=settings)[0].train()
    trainer, _ = trainer_of(tmp_path, settings={**settings, "max_steps": 12})
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 12
    assert trainer.seen == simulated(24, 4, {2 * step + 1: mixture for step, mixture in mixtures(trainer).items()})[16:]
    trainer.seen = []
    trainer.train()  # from step 0
    assert trainer.seen == simulated(24, 4, {2 * step + 1: mixture for step, mixture in mixtures(trainer).items()})


def test_a_step_too_many_of_a_finished_training_is_said(tmp_path, caplog):
    settings = {"save_strategy": "steps", "save_steps": 14}
    trainer_of(tmp_path, settings=settings)[0].train()
    assert "step 15 of 14" not in caplog.text
    resumed, _ = trainer_of(tmp_path, settings=settings)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 15
    assert "step 15 of 14" in caplog.text


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
def test_checkpoint_that_does_not_fit_is_refused(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    trainer_of(tmp_path, settings=settings)[0].train()
    plain = Watched(Classifier(), arguments(tmp_path / "plain", **settings), train_dataset=train_sets()["b"])
    plain.train()

    def refused(message, folder=tmp_path, data=None, **other):
        trainer, _ = trainer_of(folder, data=data, settings={**settings, **other})
        with pytest.raises(ValueError, match=message):
            trainer.train(resume_from_checkpoint=True)

    refused("ignore_data_skip=True", ignore_data_skip=True)
    refused("2 steps .* draw 16, .* 4 draws", per_device_train_batch_size=2)
    refused("6 examples of 'a', not 7", data={**train_sets(), "a": Rows(7, 0)})
    refused("'d', 'e'", data=dict(zip("ade", train_sets().values(), strict=True)))
    refused("without a BalanceCallback", folder=tmp_path / "plain")


def test_datasets_of_any_names_are_trained_logged_and_resumed(tmp_path):
    names = NAMES[:3]
    settings = {"save_strategy": "steps", "save_steps": 7, "report_to": ["tensorboard"]}
    for steps, resume in ((7, None), (14, True)):
        data = dict(zip(names, train_sets().values(), strict=True))
        trainer, callback = trainer_of(tmp_path, every=4, data=data, settings={**settings, "max_steps": steps})
        trainer.train(resume_from_checkpoint=resume)
    logged = [row for row in trainer.state.log_history if f"mixture/{names[0]}" in row]
    assert [row["step"] for row in logged] == [0, 4, 8, 12]
    assert {name: logged[-1][f"mixture/{name}"] for name in names} == callback.mixture.probabilities


@pytest.mark.claim(
    "Hugging Face Trainer", "logs, TensorBoard, and dev losses of evaluations as the basis of priorities"
)
def test_updates_are_logged_and_evaluations_rank_the_dev_sets(tmp_path):
    settings = {"logging_steps": 2, "report_to": ["tensorboard"], "eval_strategy": "steps", "eval_steps": 4}
    trainer, callback = trainer_of(tmp_path, every=4, settings=settings, priority="low")
    trainer.train()
    history = trainer.state.log_history
    start, *updates = [row for row in history if "mixture/a" in row]
    assert (start["step"], start["mixture/a"], start["prior/a"]) == (
        0,
        callback.balancer.start["a"],
        pytest.approx(6 / 44),
    )
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
    assert updates[2][f"dev_weight/{max(losses, key=losses.get)}"] == 1.0
    assert any("tfevents" in path.name for path in tmp_path.rglob("*"))


@pytest.mark.claim("Hugging Face Trainer", "one dev set that is no dict, and its evaluations")
def test_one_dev_set_needs_no_name(tmp_path):
    settings = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 5}
    options = {"rule": RelevancePlan(), "priority": "low", "settings": settings}
    alone, callback = assert_resumes(
        lambda: trainer_of(tmp_path, every=4, eval_dataset=Rows(10, 10), **options), tmp_path / "checkpoint-5"
    )
    assert [row["step"] for row in alone.state.log_history if "dev_loss/dev" in row] == [4, 8, 12]
    evaluated = [row["eval_loss"] for row in alone.state.log_history if "eval_loss" in row]
    assert callback.balancer.dev_losses == {"dev": evaluated[-1]}
    named, _ = trainer_of(tmp_path, every=4, eval_dataset={"dev": Rows(10, 10)}, **options)
    named.train()
    assert mixtures(named) == mixtures(alone)


def test_skipped_update_is_a_warning_and_is_logged(tmp_path, caplog):
    data = train_sets()
    data["b"].x.fill_(float("nan"))
    trainer, callback = trainer_of(tmp_path, data=data, settings={"max_steps": 2})
    trainer.train()
    assert callback.balancer.history[0].skipped
    assert "BalanceCallback: step 2  no update: the gradient" in caplog.text
    assert mixtures(trainer)[2] == callback.balancer.start


@pytest.mark.claim("Hugging Face Trainer", "`datasets.Dataset`, `DatasetDict`")
def test_arrow_datasets_are_drawn_and_probed_as_torch_datasets(tmp_path):
    dev = DatasetDict({name: arrow(10, seed, 0) for seed, name in enumerate("xy", start=10)})
    plain, _ = trainer_of(tmp_path)
    plain.train()
    trainer, _ = trainer_of(tmp_path, data=train_sets(arrow), eval_dataset=dev)
    trainer.train()
    assert trainer.seen == plain.seen
    assert mixtures(trainer) == mixtures(plain)


@pytest.mark.claim("Hugging Face Trainer", "some dev sets, or others")
@pytest.mark.parametrize(
    ("dev", "names"), [(["y"], ["y"]), ("x", ["x"]), ({"z": Rows(5, 3)}, ["z"])], ids=["list", "name", "dict"]
)
def test_some_dev_sets_or_others_can_be_chosen(dev, names, tmp_path):
    trainer, callback = trainer_of(tmp_path, dev=dev, settings={"max_steps": 2, "eval_strategy": "epoch"})
    trainer.train()
    assert list(callback.balancer.history[0].weights) == names


@pytest.mark.claim("Hugging Face Trainer", "`set_format`, `with_transform`")
def test_formats_and_transforms_of_datasets(tmp_path):
    def transform(batch):
        return {"x": torch.tensor(batch["x"]) * 2, "labels": batch["labels"], "number": batch["number"]}

    shown = ["x", "labels", "number"]
    for kept in (lambda d: d.with_format("torch", columns=shown), lambda d: d.with_transform(transform)):
        data = {name: kept(part) for name, part in train_sets(arrow).items()}
        trainer, _ = trainer_of(tmp_path, data=data, loss=by_hand, settings={"max_steps": 2})
        trainer.train()
        assert mixtures(trainer)[2] != Mixture.proportional(SIZES).probabilities


class Circumstances(Classifier):
    """Records under what circumstances it was called."""

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
    trainer, _ = trainer_of(tmp_path, model=Circumstances(), settings={"bf16": True, "max_steps": 2})
    trainer.train()
    assert trainer.model.calls == [(True, True)] * (4 + 5)  # two steps of two batches; five probes


@pytest.mark.claim("Hugging Face Trainer", "`torch_compile` (probes run eagerly)")
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # the compiler's own
@pytest.mark.slow
def test_compiled_model_is_probed_eagerly(tmp_path):
    settings = {"torch_compile": True, "max_steps": 2, "gradient_accumulation_steps": 1}
    trainer, _ = trainer_of(tmp_path, model=Circumstances(), settings=settings)
    trainer.train()
    assert hasattr(trainer.model_wrapped, "_orig_mod")
    assert trainer.model.calls == [(False, True)] * 5
    plain, _ = trainer_of(tmp_path, settings={**settings, "torch_compile": False})
    plain.train()
    assert trainer.seen == plain.seen


class Summed(Watched):
    """A loss of one's own, as the Trainer's documentation has it: a sum, divided by all labels of the step."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch
        return (loss, outputs) if return_outputs else loss


class Accepting(Classifier):
    """A model that divides by the labels of the step, as those of transformers do."""

    def forward(self, x, labels=None, number=None, num_items_in_batch=None, **kwargs):
        output = super().forward(x, labels)
        if labels is not None and num_items_in_batch is not None:
            output["loss"] = output["loss"] * len(labels) / num_items_in_batch
        return output


def divided(outputs, labels, num_items_in_batch):
    return nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch


@pytest.mark.claim("Hugging Face Trainer", "losses that divide by `num_items_in_batch`, an overridden `compute_loss`")
@pytest.mark.claim("Hugging Face Trainer", "label smoothing, `compute_loss_func`")
@pytest.mark.parametrize(
    ("model", "options", "settings", "expected"),
    [
        (Classifier, {"compute_loss_func": divided}, {}, {}),
        (Accepting, {"kind": Summed}, {}, {}),
        (Accepting, {}, {}, {}),
        (Classifier, {}, {"label_smoothing_factor": 0.3}, {"label_smoothing": 0.3}),
    ],
    ids=["function", "compute_loss", "model", "smoothing"],
)
def test_loss_of_a_probe_is_that_of_training(model, options, settings, expected, tmp_path):
    """The priority low probes the dev batches twice: a loss that pops the labels must not remove them for good."""
    settings = {"max_steps": 1, "learning_rate": 0.0, **settings}
    made = model(dropout=0.0)
    made.config = None  # where the Trainer looks before it smoothes
    trainer, callback = trainer_of(tmp_path, 1, model=made, settings=settings, priority="low", **options)
    trainer.train()
    plain = {**settings, "label_smoothing_factor": 0}
    loss = partial(by_hand, **expected)
    twin, its_callback = trainer_of(
        tmp_path, 1, model=Classifier(dropout=0.0), settings=plain, priority="low", loss=loss
    )
    twin.train()
    (probed,), (expected_update,) = callback.balancer.history, its_callback.balancer.history
    assert probed.train_losses == pytest.approx(expected_update.train_losses)
    assert probed.mixture == pytest.approx(expected_update.mixture)


def tokens(size, seed, offset=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 20, (size, 6), generator=generator).tolist()
    return [{"input_ids": row, "labels": row[::-1], "decoder_input_ids": [0, *row[:0:-1]]} for row in ids]


@pytest.mark.claim("Hugging Face Trainer", "Seq2SeqTrainer, gradient checkpointing")
def test_seq2seq_with_gradient_checkpointing_and_label_smoothing(tmp_path):
    config = T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0)
    torch.manual_seed(0)
    settings = {"max_steps": 4, "gradient_checkpointing": True, "label_smoothing_factor": 0.1}
    settings |= {"predict_with_generate": True, "eval_strategy": "steps", "eval_steps": 2}
    args = Seq2SeqTrainingArguments(
        str(tmp_path), save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, **settings
    )
    data = MixedDataset(train_sets(tokens), Mixture.proportional(SIZES), seed=1)
    trainer = Seq2SeqTrainer(
        T5ForConditionalGeneration(config), args, train_dataset=data, eval_dataset={"x": tokens(6, 9)}
    )
    trainer.add_callback(BalanceCallback(trainer, every=2))
    trainer.train()
    assert list(mixtures(trainer)) == [2, 4]
    assert mixtures(trainer)[4] != Mixture.proportional(SIZES).probabilities


@pytest.mark.claim("Hugging Face Trainer", "`model_init`")
def test_model_that_is_constructed_anew_for_every_training(tmp_path):
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=20, use_cache=False, **shape)
    trainer = Trainer(
        model_init=lambda: AutoModelForCausalLM.from_config(config),
        args=arguments(tmp_path, max_steps=4, gradient_checkpointing=True),
        train_dataset=MixedDataset(train_sets(tokens), Mixture.proportional(SIZES), seed=1),
        eval_dataset={"x": tokens(6, 9)},
    )
    trainer.add_callback(BalanceCallback(trainer, every=2))
    learned = []
    for _ in range(2):
        trainer.train()
        learned.append(mixtures(trainer))
    assert list(learned[0]) == [2, 4]
    assert learned[0] == learned[1]


def test_unused_trainer_is_freed_at_once_with_its_model(tmp_path):
    trainer, callback = trainer_of(tmp_path, settings={"max_steps": 2})
    trainer.train()
    left = [weakref.ref(trainer), weakref.ref(trainer.model)]
    gc.disable()
    try:
        del trainer, callback
        assert [reference() for reference in left] == [None, None]
    finally:
        gc.enable()


@pytest.mark.claim("Hugging Face Trainer", "as many steps per epoch as without a mixture")
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_epoch_has_the_steps_of_a_training_without_a_mixture(accumulation, drop_last, tmp_path):
    for batch in (1, 4, 5, 44) if drop_last else (1, 4, 5, 44, 60):
        settings = {
            "dataloader_drop_last": drop_last,
            "per_device_train_batch_size": batch,
            "gradient_accumulation_steps": accumulation,
            "max_steps": -1,
            "num_train_epochs": 1.0,
        }
        data = ConcatDataset(train_sets().values())
        plain = Trainer(Classifier(), arguments(tmp_path, **settings), train_dataset=data)
        mixed, _ = trainer_of(tmp_path, settings=settings)
        steps = [t.set_initial_training_values(t.args, t.get_train_dataloader())[-1] for t in (plain, mixed)]
        assert steps[0] == steps[1]


@pytest.mark.claim("Hugging Face Trainer", "probes do not advance the generator of a seeded collator")
def test_probes_do_not_advance_the_generator_of_a_collator(tmp_path):
    words = {"[PAD]": 0, "[MASK]": 1, "[UNK]": 2, **{f"word{i}": i for i in range(3, 20)}}
    named = {"pad_token": "[PAD]", "mask_token": "[MASK]", "unk_token": "[UNK]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="[UNK]")), **named)
    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    masks = []

    class Masked(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            masks[-1].append(inputs["labels"].ne(-100).tolist())
            return super().training_step(model, inputs, num_items_in_batch)

    for every in (1, 100):
        masks.append([])
        # The masks are those of the seed, whatever the mixture becomes.
        data = {name: [{"input_ids": [3 + i % 17] * 6} for i in range(size)] for name, size in SIZES.items()}
        collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.5, seed=7)
        model = {"kind": Masked, "model": BertForMaskedLM(config), "data_collator": collator}
        trainer, _ = trainer_of(
            tmp_path, every, data=data, eval_dataset={"x": data["a"]}, settings={"max_steps": 4}, **model
        )
        trainer.train()
    assert masks[0] == masks[1]


def test_other_trainers_with_the_same_arguments_still_shuffle(tmp_path):
    args = arguments(tmp_path, max_steps=2)
    data = MixedDataset(train_sets(), Mixture.proportional(SIZES))
    trainer = Trainer(Classifier(), args, train_dataset=data, eval_dataset={"x": Rows(10, 10)})
    trainer.add_callback(BalanceCallback(trainer, every=1))
    plain = Trainer(Classifier(), args, train_dataset=train_sets()["b"])
    trainer.train()
    assert isinstance(plain.get_train_dataloader().batch_sampler.sampler, RandomSampler)


class Counting(Watched):
    """Keeps counts in numbers, tensors, containers and modules, as subclasses of Trainer do, and logs in its loss."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.figures = {"train": defaultdict(list), "eval": defaultdict(list)}
        self.recent, self.total = deque(maxlen=3), torch.zeros(())
        self.metric = nn.Module()
        self.metric.count = torch.zeros(())

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        self.figures["train"]["double"].append(2 * loss.item())
        self.recent.append(loss.item())
        self.total += loss.detach()
        self.metric.count += len(inputs["x"])
        self.calls = getattr(self, "calls", 0) + 1
        self.log({"inner": loss.item()})
        return (loss, outputs) if return_outputs else loss

    def log(self, logs, start_time=None):
        if "loss" in logs:
            means = {key: sum(values) / len(values) for key, values in self.figures["train"].items()}
            logs |= {**means, "recent": sum(self.recent), "total": self.total.item(), "calls": self.calls}
            logs["count"] = self.metric.count.item()
        self.figures["train"].clear()  # at every call, as in TRL
        super().log(logs, start_time)


@pytest.mark.claim("Hugging Face Trainer", "**metrics and logs untouched by probes**, in subclasses of Trainer")
def test_probes_change_nothing_that_a_subclass_counts_and_logs(tmp_path):
    found = []
    for every in (3, 1000):
        settings = {"max_steps": 6, "logging_steps": 3}
        trainer, callback = trainer_of(tmp_path, every, kind=Counting, settings=settings, **STILL)
        trainer.train()
        assert len(callback.balancer.history) == (2 if every == 3 else 0)
        rows = [row for row in lasting(trainer.state.log_history) if "mixture/a" not in row]
        found.append((rows, trainer.seen))
    assert found[0] == found[1]
    assert len([row for row in found[0][0] if "inner" in row]) == 12  # one per batch of training
    assert [row["calls"] for row in found[0][0] if "loss" in row] == [6, 12]
    assert "log" not in vars(trainer)


class OwnLoader(Watched):
    def get_train_dataloader(self):
        return DataLoader(self.train_dataset, 4)


class OwnBatches(Watched):
    def get_train_dataloader(self):
        return self.accelerator.prepare(DataLoader(self.train_dataset, 8))


def test_data_that_is_read_otherwise_than_counted_is_refused(tmp_path):
    def refused(trainer):
        with pytest.raises(ValueError, match="train_dataset .* arguments .* get_train_dataloader"):
            trainer.train()

    refused(trainer_of(tmp_path, kind=OwnLoader)[0])
    refused(trainer_of(tmp_path, kind=OwnBatches)[0])
    trainer, _ = trainer_of(tmp_path)
    trainer.train_dataset = MixedDataset(train_sets(), Mixture.proportional(SIZES))
    refused(trainer)
    trainer, _ = trainer_of(tmp_path)
    trainer.args.per_device_train_batch_size = 5
    refused(trainer)


def test_persistent_workers_do_not_fall_behind_the_mixtures_that_are_kept(tmp_path):
    """The last worker reads its last batch of an epoch as early as it can, and its next one as late as it can."""
    workers, epoch = 12, 47  # batches
    settings = {
        "dataloader_num_workers": workers,
        "dataloader_prefetch_factor": 1,
        "dataloader_persistent_workers": True,
        "gradient_accumulation_steps": 1,
        "per_device_train_batch_size": 1,
    }
    data = dict(zip("abc", (Rows(size, 0) for size in (20, 20, 7)), strict=True))
    trainer, callback = trainer_of(tmp_path, data=data, settings=settings)
    dataset, mixture = trainer.train_dataset, callback.mixture
    in_worker = copy.copy(dataset)  # with the same shared memory
    in_worker[workers - 1]

    def steps(count):
        for _ in range(count):
            dataset.consume(1)
            share = 0.2 + dataset.position / 200
            mixture.move({"a": share, "b": 0.5, "c": 0.5 - share})
            dataset.mixture_changed(dataset.position + workers + 1)

    last = epoch - workers
    steps(last - workers - 1)
    in_worker[last]
    steps(epoch + workers - 1 - dataset.position)
    dataset.set_epoch(1)
    in_worker[workers - 1]


@pytest.mark.parametrize(("version", "accepted"), [(2, True), (1, False)])
def test_fsdp2_is_accepted_and_fsdp1_refused(version, accepted, tmp_path, monkeypatch):
    """accelerate has no FSDP on a CPU: what is tested is that the callback does not refuse it."""
    trainer, _ = trainer_of(tmp_path, every=0)
    trainer.is_fsdp_enabled = True
    plugin = SimpleNamespace(fsdp_version=version)
    monkeypatch.setitem(trainer.accelerator.state._shared_state, "fsdp_plugin", plugin)
    with contextlib.nullcontext() if accepted else pytest.raises(ValueError, match="FSDP1"):
        BalanceCallback(trainer)


@pytest.mark.claim("Hugging Face Trainer", "settings that break the method are refused")
@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("train_dataset", Rows(3, 0), "train_dataset .* MixedDataset, got Rows"),
        ("eval_dataset", None, "eval_dataset is None.* dev="),
        ("eval_dataset", {}, "dev is empty"),
        ("eval_dataset", {"x": Rows(3, 0), "y": []}, "dev: .*'y'"),
        ("is_fsdp_enabled", True, "FSDP1"),
        ("is_deepspeed_enabled", True, "DeepSpeed .*Replay"),
        ("args.parallelism_config", object(), "parallelism_config"),
        ("model.tp_size", 2, "tensor parallelism"),
        ("args._n_gpu", 2, "DataParallel .*torchrun"),
        ("args.auto_find_batch_size", True, "auto_find_batch_size=True .* False"),
        ("args.train_sampling_strategy", "group_by_length", "='group_by_length' .* 'sequential'"),
        ("args.accelerator_config.split_batches", True, "split_batches=True"),
        ("args.dataloader_in_order", False, "dataloader_in_order=False .* True"),
        ("args.restore_callback_states_from_checkpoint", True, "restore_callback_states_from_checkpoint=True .* False"),
    ],
)
def test_settings_that_break_the_method_are_refused(path, value, message, tmp_path):
    trainer, _ = trainer_of(tmp_path, every=0)
    *owners, attribute = path.split(".")
    setattr(attrgetter(".".join(owners))(trainer) if owners else trainer, attribute, value)
    with pytest.raises((TypeError, ValueError), match=message):
        BalanceCallback(trainer, every=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dev": ["x", "z"]}, "dev 'z' .* 'x', 'y'"),
        ({"dev": ["x"], "eval_dataset": Rows(3, 0)}, "dev 'x' .* 'dev'"),
        ({"dev": Rows(3, 0)}, "dev must be .* Rows; give dev={'dev'"),
        ({"batch_size": 0}, "batch_size .* 0"),
        ({"every": 0.5}, "every .* 0.5"),
        ({"priority": "lowest"}, "priority.* 'lowest'"),
        ({"limits": Limits(max_passes={"z": 2})}, "max_passes.*'z'"),
        ({"limits": Limits(groups={"z": "web"})}, "groups.*'z'"),
        ({"reward": "multidds-s"}, r"^BalanceCallback: reward= .*rule=Scorer\(reward="),
        ({"groups": {"a": "web"}}, r"^BalanceCallback: groups= .*limits=Limits\(groups="),
        ({"prioriti": "low"}, "'prioriti'.*'priority'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_wrong_arguments_are_refused_at_construction(options, message, tmp_path):
    with pytest.raises((ValueError, TypeError), match=message):
        trainer_of(tmp_path, **options)


def test_one_callback_for_one_trainer(tmp_path):
    with pytest.raises(TypeError, match="trainer .* Mixture"):
        BalanceCallback(Mixture.uniform("a"), every=2)
    trainer, callback = trainer_of(tmp_path, settings={"max_steps": 2})
    with pytest.raises(ValueError, match="remove_callback"):
        BalanceCallback(trainer, every=2)
    trainer.add_callback(callback)
    with pytest.raises(ValueError, match="remove_callback"):
        trainer.train()


AVERAGES = {  # which are as large as the model, and in a file of their own beside the Trainer's JSON
    "parameters": {"rule": RelevancePlan()},
    "gradients of datasets": {"rule": Scorer(MovingAverage())},
    "both": {"rule": Scorer(MovingAverage()), "probes": Probes(average=3)},
}


@pytest.mark.claim("Hugging Face Trainer", "exact resume with averages of parameters and gradients, or a warning")
@pytest.mark.parametrize("what", AVERAGES)
def test_averages_resume_exactly_and_begin_anew_if_their_file_is_gone(what, tmp_path, caplog):
    settings = {"save_strategy": "steps", "save_steps": 8, "max_steps": 14}
    made = partial(trainer_of, tmp_path, 6, settings=settings, **AVERAGES[what])
    checkpoint = tmp_path / "checkpoint-8"
    whole, callback = assert_resumes(made, checkpoint)
    states = [callback.balancer.state_dict()["tensors"]]
    elsewhere, again = trainer_of(tmp_path / "elsewhere", 6, settings=settings, **AVERAGES[what])
    elsewhere.train(resume_from_checkpoint=str(checkpoint))
    states.append(again.balancer.state_dict()["tensors"])
    assert mixtures(elsewhere) == mixtures(whole)
    assert states[0]
    assert_equal(states[1], states[0])
    assert "anew" not in caplog.text
    (checkpoint / "multidds.safetensors").rename(tmp_path / "kept")
    for other in (None, tmp_path / "checkpoint-14" / "multidds.safetensors"):  # none, and one of another state
        if other is not None:
            shutil.copy(other, checkpoint)
        caplog.clear()
        resumed, again = made()
        resumed.train(resume_from_checkpoint=str(checkpoint))
        assert "multidds.safetensors" in caplog.text
        assert "anew" in caplog.text
        assert mixtures(resumed)[6] == mixtures(whole)[6]
        assert again.balancer.history[-1].rewards != callback.balancer.history[-1].rewards


@pytest.mark.claim(
    "Hugging Face Trainer", "averages are read from the folder that is resumed, whatever its name or place"
)
@pytest.mark.parametrize("how", ["moved", "elsewhere", "linked", "relative"])
def test_averages_are_read_from_the_folder_that_is_resumed(how, tmp_path, monkeypatch, caplog):
    settings = {"save_strategy": "steps", "save_steps": 8, "max_steps": 14}
    made = partial(trainer_of, every=6, settings=settings, **AVERAGES["parameters"])
    whole, callback = made(tmp_path / "first")
    whole.train()
    checkpoint, folder, output = tmp_path / "first" / "checkpoint-8", tmp_path / "best", tmp_path / "first"
    if how == "linked":
        folder.symlink_to(checkpoint, target_is_directory=True)
    else:
        checkpoint.rename(folder)
    if how == "elsewhere":
        output = tmp_path / "second"
        (tmp_path / "first").rename(tmp_path / "gone")
    monkeypatch.chdir(tmp_path)
    resumed, again = made(output)
    resumed.train(resume_from_checkpoint="best" if how == "relative" else str(folder))
    assert mixtures(resumed) == mixtures(whole)
    assert_equal(again.balancer.state_dict(), callback.balancer.state_dict())
    assert "anew" not in caplog.text
    (folder / "multidds.safetensors").unlink()
    made(output)[0].train(resume_from_checkpoint=str(folder))
    assert str(folder / "multidds.safetensors") in caplog.text


def flipped(content, at):
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


DAMAGE = {
    "empty": lambda content: b"",
    "garbage": lambda content: b"garbage" * 99,
    "cut in the header": lambda content: content[:20],
    "cut in the data": lambda content: content[:-20],
    "flipped in the header": lambda content: flipped(content, 30),
    "flipped in the data": lambda content: flipped(content, -1),
    "foreign": lambda content: save({"weight": torch.ones(3)}),
}


@pytest.mark.claim(
    "Hugging Face Trainer", "damaged averages, and those of another checkpoint, are named and begin anew"
)
def test_damaged_averages_are_one_line_with_their_path(tmp_path, caplog):
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    made = partial(trainer_of, every=6, **AVERAGES["both"])
    made(tmp_path, settings=settings)[0].train()
    made(tmp_path / "other", settings={**settings, "learning_rate": 0.05})[0].train()  # no update, so the same state
    file = tmp_path / "checkpoint-2" / "multidds.safetensors"
    content = file.read_bytes()
    others = {name: damage(content) for name, damage in DAMAGE.items()}
    others["of another training"] = (tmp_path / "other" / "checkpoint-2" / file.name).read_bytes()
    for name, other in {"whole": content, **others}.items():
        assert (other == content) == (name == "whole"), name
        file.write_bytes(other)
        caplog.clear()
        resumed, _ = made(tmp_path / "again", settings={"max_steps": 3})
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        lines = [line for line in caplog.messages if "anew" in line]
        assert len(lines) == (name != "whole"), name
        assert all(str(file) in line and "damaged" in line for line in lines), name


@pytest.mark.claim(
    "Hugging Face Trainer", "another priority counts at a resume, and a line says so; another seed does not"
)
def test_another_priority_and_seed_at_a_resume(tmp_path, caplog):
    settings = {"save_strategy": "steps", "save_steps": 8, "max_steps": 14}
    made = partial(trainer_of, tmp_path, 6, settings=settings)
    whole, first = made(rule=RelevancePlan())
    whole.train()
    for changed in ({"priority": {"x": 1.0}}, {"priority": "low"}, {"seed": 9}):
        caplog.clear()
        resumed, again = made(rule=RelevancePlan(), **changed)
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
        lines = [line for line in caplog.messages if "state" in line]
        assert len(lines) == 1
        if "seed" in changed:
            assert "9" in lines[0]
            assert mixtures(resumed) == mixtures(whole)
        else:
            assert "regular" in lines[0]
            assert again.balancer.priority == changed["priority"]
            assert again.balancer.history[-1].weights != first.balancer.history[-1].weights


def test_without_averages_no_file_is_written(tmp_path, caplog):
    settings = {"save_strategy": "steps", "save_steps": 8, "max_steps": 14}
    for average, is_there in ((0, False), (3, True)):
        rule = {"rule": RelevancePlan(), "probes": Probes(average=average)}
        assert_resumes(
            partial(trainer_of, tmp_path / str(average), 6, settings=settings, **rule),
            tmp_path / str(average) / "checkpoint-8",
        )
        assert (tmp_path / str(average) / "checkpoint-8" / "multidds.safetensors").exists() == is_there
    assert "anew" not in caplog.text


def static(folder, data=None, **settings):
    settings = {"gradient_accumulation_steps": 1, **settings}
    return trainer_of(folder, every=0, data=data, settings=settings)[0]


def flat(batches):
    return [number for batch in batches for number in batch]


@pytest.mark.claim("Hugging Face Trainer", "**static mixture without the callback**: shuffled, with workers")
@pytest.mark.parametrize("workers", [0, 2])
def test_without_a_callback_the_trainer_shuffles_what_the_mixture_draws(workers, tmp_path):
    settings = {"max_steps": 33, "save_strategy": "steps", "save_steps": 15, "dataloader_num_workers": workers}
    whole = static(tmp_path, **settings)
    whole.train()
    expected, seen = flat(simulated(33, 4, {})), flat(whole.seen)
    for start in range(0, 3 * 44, 44):  # an epoch has 44 examples
        assert sorted(seen[start : start + 44]) == sorted(expected[start : start + 44])
        assert seen[start : start + 44] != expected[start : start + 44]
    resumed = static(tmp_path, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-15"))
    assert resumed.seen[7:] == whole.seen[22:]
    assert set(flat(resumed.seen[:7])) <= set(expected[:44])  # accelerate did not say which epoch it was


@pytest.mark.claim("Hugging Face Trainer", "a static mixture without callback: exact resume")
def test_sequential_reading_without_a_callback_resumes_exactly(tmp_path):
    settings = {"max_steps": 33, "save_strategy": "steps", "save_steps": 15, "train_sampling_strategy": "sequential"}
    whole, resumed = static(tmp_path, **settings), static(tmp_path, **settings)
    whole.train()
    assert whole.seen == simulated(33, 4, {})
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-15"))
    assert resumed.seen == whole.seen[15:]


def on_ranks():
    """The number of processes, and settings that let a Trainer join their group."""
    if not dist.is_initialized():
        return 1, {}
    return dist.get_world_size(), {"ddp_backend": "gloo", "ddp_find_unused_parameters": False}


def trained(folder):
    """Map-style data, streams that one process reads for all, and streams that every process reads."""
    processes, settings = on_ranks()
    settings |= {"gradient_accumulation_steps": 1, "max_steps": 8, "optim": "sgd"}
    settings |= {"save_strategy": "steps", "save_steps": 3, "per_device_train_batch_size": 8 // processes}
    found = []
    for name, data, config in (
        ("map", train_sets(), {}),
        ("streams", streams(), {}),
        ("streams that each reads", streams(), {"accelerator_config": {"dispatch_batches": False}}),
    ):
        options = {"batch_size": 4, "probes": Probes(batches=2, count="in all"), "settings": settings | config}
        make = partial(trainer_of, folder / name, dropout=0.0, data=data, **options)
        trainer, _ = assert_resumes(make, folder / name / "checkpoint-3", states=name == "map")
        found.append([mixtures(trainer), gathered(trainer.seen), [p.tolist() for p in trainer.model.parameters()]])
    return found


def gathered(seen):
    """The batches of all processes, as those of one process with a larger batch."""
    if not dist.is_initialized():
        return seen
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, seen)
    return [flat(batches) for batches in zip(*every, strict=True)]


def static_on_ranks(folder, expected):
    """Without a callback, accelerate does not tell the dataset of the second epoch."""
    _, settings = on_ranks()
    seen = {}
    for strategy in ("random", "sequential"):
        trainer = static(folder, max_steps=12, train_sampling_strategy=strategy, **settings)
        trainer.train()
        seen[strategy] = flat(gathered(trainer.seen))
    # An epoch has 6 steps of 2 processes; its last batch is filled up from the first examples of the epoch.
    for epoch in (seen["random"][:48], seen["random"][48:]):
        assert set(epoch) == set(expected[:44])
    assert seen["random"][:48] != seen["random"][48:]
    assert seen["sequential"][:44] == expected[:44]
    assert seen["sequential"][48:92] == expected[44:]


@pytest.mark.claim("Hugging Face Trainer", "**two processes** equal one with twice the batch, with streams too")
@pytest.mark.claim("Hugging Face Trainer", "a static mixture without callback in two processes")
@pytest.mark.slow
def test_two_processes_equal_one_with_twice_the_batch(tmp_path):
    checks = [partial(static_on_ranks, tmp_path / "static", flat(simulated(22, 4, {})))]
    assert_ranks_equal_one_process(trained, tmp_path, arguments=[tmp_path], tolerance=1e-6, checks=checks, fork=True)
