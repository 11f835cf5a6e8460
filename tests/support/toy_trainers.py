"""A small Trainer with its data, for the tests of the Hugging Face integration."""

import gc

import pytest
import torch
from datasets import Dataset as ArrowDataset
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from multidds import Mixture, MixtureSampler
from multidds.integrations.huggingface import BalanceCallback, MixedDataset
from multidds.rules import Findings, Rule, Scorer, State

gc.freeze()  # every training collects garbage: not through all that the imports have made

QUIET = [  # warnings about any small training on a CPU
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # on machines with few cores
    pytest.mark.filterwarnings("ignore:`broadcast_buffers` is deprecated:FutureWarning"),  # accelerate 1.15, torch 2.13
]
MOVING = {"rule": Scorer(lr=2.0)}


class Still(Rule):
    """A rule that keeps the prior: updates are made, but the mixture stays."""

    halves = True

    def start(self, training):
        return StillState(training.prior)


class StillState(State):
    def __init__(self, prior):
        self.mixture = dict(prior)

    def update(self, probe, round_):
        return Findings(*probe.table(round_).mean_cosines(round_.weights))


STILL = {"rule": Still()}
SIZES = {"a": 6, "b": 24, "c": 14}  # of 44 examples 6 steps of 8 make an epoch


class Rows(Dataset):
    """Numbered examples of a classification task."""

    def __init__(self, size, seed, offset=0):
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(size, 4, generator=generator)
        self.labels = torch.randint(0, 3, (size,), generator=generator)
        self.offset = offset

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "labels": self.labels[i], "number": torch.tensor(self.offset + i)}


class Classifier(nn.Module):
    def __init__(self, dropout=0.3):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 3))

    def forward(self, x, labels=None, number=None):
        logits = self.net(x)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Watched(Trainer):
    """Remembers which examples training has really seen."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        self.__dict__.setdefault("seen", []).append(inputs["number"].tolist())
        return super().training_step(model, inputs, num_items_in_batch)


def train_sets(kind=Rows):
    offsets = dict(zip(SIZES, [0, 6, 30], strict=True))
    return {name: kind(size, seed, offsets[name]) for seed, (name, size) in enumerate(SIZES.items())}


def dev_sets():
    return {name: Rows(10, seed) for seed, name in enumerate(("x", "y"), start=10)}


def arguments(folder, **settings):
    defaults = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": 14,
        "learning_rate": 0.1,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return TrainingArguments(str(folder), **{**defaults, **settings})


def trainer_of(
    folder, every=2, model=None, dropout=0.3, kind=Watched, data=None, eval_dataset=None, settings=None, **options
):
    """A Trainer and its callback; with every=0 it has none.

    kind: the class of the Trainer
    settings: training arguments
    options: of the callback, and of the Trainer if they are called `compute_loss_func` or `data_collator`
    """
    data = data or train_sets()
    sizes = dict(zip(data, SIZES.values(), strict=False))
    mixture = Mixture.proportional(sizes) if len(sizes) == len(data) else Mixture.uniform(list(data))
    own = {key: options.pop(key) for key in ("compute_loss_func", "data_collator") if key in options}
    trainer = kind(
        model or Classifier(dropout),
        arguments(folder, **(settings or {})),
        train_dataset=MixedDataset(data, mixture, seed=1),
        eval_dataset=eval_dataset or dev_sets(),
        **own,
    )
    if every == 0:
        return trainer, None
    callback = BalanceCallback(trainer, every, **{**MOVING, "seed": 5, **options})
    trainer.add_callback(callback)
    return trainer, callback


def same_parameters(one, other):
    return all(torch.equal(p, q) for p, q in zip(one.model.parameters(), other.model.parameters(), strict=True))


def assert_resumes(make, checkpoint, log=True, states=True):
    """Asserts that a resumed training is the uninterrupted one, bit for bit, and returns that one and its callback.

    make: returns a Trainer and its callback
    checkpoint: the folder to resume from
    log, states: whether logs and states are compared, too; a stream may describe one place in two ways
    """
    whole, callback = make()
    whole.train()
    resumed, again = make()
    torch.manual_seed(99)  # the resumed process has other random numbers
    resumed.train(resume_from_checkpoint=str(checkpoint))
    step = int(checkpoint.name.removeprefix("checkpoint-"))
    if hasattr(whole, "seen"):
        assert resumed.seen == whole.seen[step * whole.args.gradient_accumulation_steps :]
    assert mixtures(resumed) == mixtures(whole)
    assert same_parameters(resumed, whole)
    if states:
        assert again.state() == callback.state()
    if log:
        assert lasting(resumed.state.log_history) == lasting(whole.state.log_history)
    return whole, callback


def mixtures(trainer):
    """{step: mixture after its update}, from the Trainer's own log."""
    return {
        log["step"]: {key.removeprefix("mixture/"): p for key, p in log.items() if key.startswith("mixture/")}
        for log in trainer.state.log_history
        if log["step"] > 0 and any(key.startswith("mixture/") for key in log)
    }


def simulated(rounds, size, moves):
    """The numbers of the examples of each round of `size`; `moves`: {round: mixture from there on}."""
    mixture = Mixture.proportional(SIZES)
    batches = iter(MixtureSampler(SIZES, mixture, batch_size=size, seed=1))
    drawn = []
    for number in range(rounds):
        if number in moves:
            mixture.move(moves[number])
        drawn.append(next(batches))
    return drawn


def lasting(history):
    """The log without what differs between two runs of the same training: times."""
    rows = [{k: v for k, v in row.items() if "runtime" not in k and "per_second" not in k} for row in history]
    return [row for row in rows if "train_loss" not in row]  # the last row is about one call of train()


def arrow(size, seed, offset):
    rows = Rows(size, seed, offset)
    columns = {"x": rows.x.tolist(), "labels": rows.labels.tolist(), "number": list(range(offset, offset + size))}
    return ArrowDataset.from_dict({**columns, "text": ["removed"] * size})


def streams():
    return {name: d.to_iterable_dataset(num_shards=2) for name, d in train_sets(arrow).items()}
