"""Ordinary settings of the Trainer that the callback has to live with: each one resumes exactly, or "
"is refused."""

from collections import defaultdict, deque

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, RandomSampler
from toy_trainers import (
    SIZES,
    Classifier,
    Rows,
    Watched,
    arguments,
    arrow,
    lasting,
    mixtures,
    streams,
    train_sets,
    trainer_of,
)
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
)

from multidds import Anchored, Mixture
from multidds.integrations.huggingface import BalanceCallback, MixedDataset

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator")  # on a CPU

EVERY_EPOCH = {"save_strategy": "epoch", "eval_strategy": "epoch"}
BEST = {"load_best_model_at_end": True, "metric_for_best_model": "eval_z/1 %_loss", "greater_is_better": False}
IN_BETWEEN = {"save_strategy": "steps", "save_steps": 5, "eval_strategy": "steps", "eval_steps": 3}


def made(folder, settings, frozen=False, every=2, **options):
    """Names that JSON would bring into another order, and dev sets with names of any kind."""
    model = Classifier()
    model.net[0].requires_grad_(not frozen)
    data = dict(zip("qba", train_sets().values(), strict=True))
    dev = {"z/1 %": Rows(10, 10), "a b": Rows(10, 11)}
    trainer = Watched(
        model,
        arguments(folder, **settings),
        train_dataset=MixedDataset(data, Mixture({"q": 0.2, "b": 0.5, "a": 0.3}), seed=1),
        eval_dataset=dev,
    )
    # By a function, every evaluation counts, not only which of the dev sets is worse.
    callback = BalanceCallback(trainer, every, priority=lambda losses: losses, seed=5, **options)
    trainer.add_callback(callback)
    return trainer, callback


@pytest.mark.claim(
    "Hugging Face Trainer",
    "exact resume: saving per epoch, best model, fractions of an epoch, `dataloader_drop_last`, "
    "`eval_on_start`, odd accumulation",
)
@pytest.mark.parametrize(
    ("settings", "checkpoint"),
    [
        (EVERY_EPOCH, 6),
        ({**EVERY_EPOCH, **BEST}, 6),
        ({**EVERY_EPOCH, "max_steps": -1, "num_train_epochs": 2.5}, 12),
        ({**IN_BETWEEN, "dataloader_drop_last": True, "per_device_train_batch_size": 5}, 5),
        ({**IN_BETWEEN, "eval_on_start": True}, 5),
        ({**IN_BETWEEN, "logging_first_step": True, "logging_steps": 4}, 5),
        ({**IN_BETWEEN, "gradient_accumulation_steps": 3}, 5),
    ],
    ids=["epochs", "best", "fraction", "drop_last", "eval_on_start", "first_step", "accumulation"],
)
def test_an_ordinary_setting_resumes_exactly(settings, checkpoint, tmp_path):
    whole, callback = made(tmp_path, settings)
    whole.train()
    resumed, again = made(tmp_path, settings)
    torch.manual_seed(99)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{checkpoint}"))
    assert resumed.seen == whole.seen[checkpoint * whole.args.gradient_accumulation_steps :]
    assert mixtures(resumed) == mixtures(whole)
    assert len(mixtures(whole)) == whole.state.max_steps // 2
    assert again.state() == callback.state()
    for p, expected in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(p, expected)


@pytest.mark.claim("Hugging Face Trainer", "frozen parameters")
def test_a_model_of_which_a_part_is_frozen_resumes_exactly(tmp_path):
    whole, callback = made(tmp_path, IN_BETWEEN, frozen=True)
    whole.train()
    resumed, again = made(tmp_path, IN_BETWEEN, frozen=True)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    assert again.state() == callback.state()
    assert torch.equal(resumed.model.net[3].weight, whole.model.net[3].weight)


class Requested(TrainerCallback):
    """A signal to save arrives while the optimizer steps for the fifth time."""

    def __init__(self, saver):
        self.saver = saver

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.saver.jit_manager.is_checkpoint_requested = state.global_step == 4


@pytest.mark.claim("Hugging Face Trainer", "`enable_jit_checkpoint`")
def test_a_callback_that_saves_at_the_end_of_a_step_finds_the_step_counted(tmp_path):
    whole, callback = made(tmp_path / "whole", {}, every=5)
    whole.train()
    stopped, _ = made(tmp_path, {"enable_jit_checkpoint": True}, every=5)
    (saver,) = [c for c in stopped.callback_handler.callbacks if type(c).__name__ == "JITCheckpointCallback"]
    stopped.add_callback(Requested(saver))
    stopped.train()
    assert stopped.state.global_step == 5
    resumed, again = made(tmp_path, {}, every=5)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.seen == whole.seen[10:]
    assert mixtures(resumed) == mixtures(whole)
    assert again.state() == callback.state()
    for p, expected in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(p, expected)


@pytest.mark.claim("Hugging Face Trainer", "as many steps per epoch as without a mixture")
@pytest.mark.parametrize("drop_last", [False, True])
def test_an_epoch_has_the_steps_of_the_script_without_a_mixture(drop_last, tmp_path):
    for batch in (1, 3, 4, 5, 7, 44) if drop_last else (1, 3, 4, 5, 7, 44, 60):
        for accumulation in (1, 2, 3):
            settings = {
                "dataloader_drop_last": drop_last,
                "per_device_train_batch_size": batch,
                "gradient_accumulation_steps": accumulation,
                "max_steps": -1,
                "num_train_epochs": 1.0,
            }
            plain = Trainer(
                Classifier(), arguments(tmp_path, **settings), train_dataset=ConcatDataset(train_sets().values())
            )
            mixed, _ = trainer_of(tmp_path, settings=settings)
            steps = [t.set_initial_training_values(t.args, t.get_train_dataloader())[-1] for t in (plain, mixed)]
            assert steps[0] == steps[1]


class Summed(Trainer):
    """A loss of one's own, as the Trainer's documentation asks for it: a sum, divided by all labels of "
    "the step."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch
        return (loss, outputs) if return_outputs else loss


class Accepting(Classifier):
    """As the models of transformers."""

    def forward(self, x, labels=None, number=None, num_items_in_batch=None, **kwargs):
        output = super().forward(x, labels)
        if labels is not None and num_items_in_batch is not None:
            output["loss"] = output["loss"] * len(labels) / num_items_in_batch
        return output


@pytest.mark.claim("Hugging Face Trainer", "losses that divide by `num_items_in_batch`, an overridden `compute_loss`")
def test_a_loss_that_divides_by_the_labels_of_the_step_is_probed(tmp_path):
    def function(outputs, labels, num_items_in_batch):
        return nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch

    found = []
    for kind, model, given in (
        (Trainer, Classifier(dropout=0.0), None),
        (Trainer, Classifier(dropout=0.0), function),
        (Summed, Accepting(dropout=0.0), None),
        (Trainer, Accepting(dropout=0.0), None),
    ):
        data = MixedDataset(train_sets(), Mixture.proportional(SIZES), seed=1)
        args = arguments(tmp_path, max_steps=2, gradient_accumulation_steps=1)
        dev = {"x": Rows(10, 10)}
        trainer = kind(model, args, train_dataset=data, eval_dataset=dev, compute_loss_func=given)
        callback = BalanceCallback(trainer, every=1)
        trainer.add_callback(callback)
        trainer.train()
        found.append(callback.balancer.history[-1])
    plain, *others = found
    for other in others:
        assert other.train_losses == pytest.approx(plain.train_losses)
        assert other.dev_losses == pytest.approx(plain.dev_losses)
        assert other.mixture == pytest.approx(plain.mixture)


@pytest.mark.claim("Hugging Face Trainer", "`set_format`, `with_transform`")
def test_columns_that_a_format_hides_do_not_count_as_removed(tmp_path):
    def loss(model, batch):
        return nn.functional.cross_entropy(model.net(batch["x"]), batch["labels"])

    def transform(batch):
        return {"x": torch.tensor(batch["x"]) * 2, "labels": batch["labels"], "number": batch["number"]}

    shown = ["x", "labels", "number"]
    for kept in (lambda d: d.with_format("torch", columns=shown), lambda d: d.with_transform(transform)):
        data = {name: kept(part) for name, part in train_sets(arrow).items()}
        trainer, _ = trainer_of(tmp_path, data=data, loss=loss, settings={"max_steps": 2})
        trainer.train()
        assert mixtures(trainer)[2] != Mixture.proportional(SIZES).probabilities


@pytest.mark.claim("Hugging Face Trainer", "probes do not advance the generator of a seeded collator")
def test_masks_from_a_generator_of_the_collator_are_not_moved_on_by_probes(tmp_path):
    words = {"[PAD]": 0, "[MASK]": 1, "[UNK]": 2, **{f"word{i}": i for i in range(3, 20)}}
    named = {"pad_token": "[PAD]", "mask_token": "[MASK]", "unk_token": "[UNK]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="[UNK]")), **named)
    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)

    class Masked(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            masks.append(inputs["labels"].ne(-100).tolist())
            return super().training_step(model, inputs, num_items_in_batch)

    seen = []
    for every in (1, 100):
        torch.manual_seed(0)
        data = {name: [{"input_ids": [3 + i % 17] * 6} for i in range(size)] for name, size in SIZES.items()}
        # The collator has its numbers from the seed, whatever the mixture becomes.
        trainer = Masked(
            BertForMaskedLM(config),
            arguments(tmp_path, max_steps=4),
            train_dataset=MixedDataset(data, Mixture.proportional(SIZES)),
            eval_dataset={"x": data["a"]},
            data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.5, seed=7),
        )
        trainer.add_callback(BalanceCallback(trainer, every=every))
        masks = []
        trainer.train()
        seen.append(masks)
    assert seen[0] == seen[1]


class OwnLoader(Watched):
    def get_train_dataloader(self):
        return DataLoader(self.train_dataset, 4)


class OwnBatches(Watched):
    def get_train_dataloader(self):
        return self.accelerator.prepare(DataLoader(self.train_dataset, 8))


def test_data_that_is_read_otherwise_than_the_callback_counts_is_refused(tmp_path):
    for kind in (OwnLoader, OwnBatches):
        trainer, _ = trainer_of(tmp_path, kind=kind)
        with pytest.raises(ValueError, match="^BalanceCallback: the loader of get_train_dataloader does not .* overr"):
            trainer.train()
    trainer, _ = trainer_of(tmp_path)
    trainer.train_dataset = MixedDataset(train_sets(), Mixture.proportional(SIZES))
    with pytest.raises(ValueError, match="^BalanceCallback: the Trainer's train_dataset is another one .* new callb"):
        trainer.train()


def test_persistent_workers_never_fall_behind_the_mixtures_that_are_kept(tmp_path):
    """The last worker reads its last batch of an epoch as early as it can, and its next one as late as "
    "it can."""
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
    dataset, mixture = trainer.train_dataset, callback.balancer.mixture

    def steps(count):
        for _ in range(count):
            dataset.consume(1)
            share = 0.2 + dataset.position / 200
            mixture.move({"a": share, "b": 0.5, "c": 0.5 - share})
            dataset.mixture_changed(dataset.position + workers + 1)

    last = epoch - workers
    steps(last - workers - 1)
    dataset[last]  # a copy of the dataset in the worker, but the same shared memory
    steps(epoch + workers - 1 - dataset.position)
    dataset._epoch.fill_(1)
    dataset[workers - 1]


def test_a_finished_training_on_streams_that_is_resumed_reads_on(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 4, "max_steps": 6}
    whole, _ = trainer_of(tmp_path / "whole", every=100, data=streams(), settings=settings)
    whole.train()
    short = {**settings, "max_steps": 4}
    trainer_of(tmp_path, every=100, data=streams(), settings=short)[0].train()
    resumed, _ = trainer_of(tmp_path, every=100, data=streams(), settings=short)
    resumed.train(resume_from_checkpoint=True)  # the Trainer takes one step more
    assert resumed.seen == whole.seen[8:10]


@pytest.mark.parametrize("place", [{3: 1}, torch.tensor(3)], ids=["key", "tensor"])
def test_a_place_that_json_cannot_hold_is_refused_when_it_is_saved(place, tmp_path):
    data = streams()
    for stream in data.values():
        stream.state_dict = lambda: {"place": place}
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    trainer, _ = trainer_of(tmp_path, data=data, settings=settings)
    with pytest.raises(
        ValueError, match="^BalanceCallback: the state_dict of the stream 'a' does not .* string keys.$"
    ):
        trainer.train()


def test_other_trainers_with_the_same_arguments_still_shuffle(tmp_path):
    args = arguments(tmp_path, max_steps=2)
    data = MixedDataset(train_sets(), Mixture.proportional(SIZES))
    trainer = Trainer(Classifier(), args, train_dataset=data, eval_dataset={"x": Rows(10, 10)})
    trainer.add_callback(BalanceCallback(trainer, every=1))
    plain = Trainer(Classifier(), args, train_dataset=train_sets()["b"])
    trainer.train()
    assert isinstance(plain.get_train_dataloader().batch_sampler.sampler, RandomSampler)


def test_a_callback_that_was_added_twice_is_refused(tmp_path):
    trainer, callback = trainer_of(tmp_path)
    trainer.add_callback(callback)
    with pytest.raises(ValueError, match="^BalanceCallback: the Trainer has one already; remove it with"):
        trainer.train()


class Counting(Watched):
    """Keeps figures as subclasses of Trainer do: in numbers, tensors, containers and modules; and logs "
    "in its loss."""

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
        self.figures["train"].clear()  # whoever logs, as in TRL
        super().log(logs, start_time)


@pytest.mark.claim("Hugging Face Trainer", "**metrics and logs untouched by probes**, in subclasses of Trainer")
def test_what_a_subclass_counts_and_logs_is_what_it_would_without_probes(tmp_path):
    found = []
    for every in (3, 1000):
        scorer = Anchored(strength=0.0, plan=False)  # the mixture stays, but updates are made
        settings = {"max_steps": 6, "logging_steps": 3}
        trainer, callback = trainer_of(tmp_path, every, kind=Counting, scorer=scorer, settings=settings)
        trainer.train()
        assert len(callback.balancer.history) == (2 if every == 3 else 0)
        rows = [row for row in lasting(trainer.state.log_history) if "mixture/a" not in row]
        found.append((rows, trainer.seen))
    assert found[0] == found[1]
    assert len([row for row in found[0][0] if "inner" in row]) == 12  # one per batch of training
    assert [row["calls"] for row in found[0][0] if "loss" in row] == [6, 12]
    assert "log" not in vars(trainer)
