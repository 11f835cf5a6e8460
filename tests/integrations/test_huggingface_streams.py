"""Streams in the real Trainer: exact proportions with workers, exact resume where they know their place."""

import pytest
import torch
from toy_streams import Flow
from toy_trainers import SIZES, Rows, arrow, lasting, mixtures, simulated, streams, train_sets, trainer_of

from multidds import Mixture
from multidds.integrations.huggingface import MixedDataset

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # on machines with few cores
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator"),  # on a CPU
]


class Lines(Flow):
    """A torch stream of the examples of `Rows`."""

    def __init__(self, size, seed, offset):
        super().__init__("", size)
        self.rows = Rows(size, seed, offset)

    def __iter__(self):
        return (self.rows[int(line.split("p")[0])] for line in super().__iter__())


class Forgetful(Lines):
    """One that cannot tell its place."""

    def __getattribute__(self, name):
        if name in ("state_dict", "load_state_dict"):
            raise AttributeError(name)
        return super().__getattribute__(name)


KINDS = {
    "datasets": streams,
    "torch": lambda: train_sets(Lines),
    "mixed": lambda: {**train_sets(arrow), "b": streams()["b"]},  # with map-style ones
}


def names(batches):
    """The dataset of each example, by its number."""
    return [["a" if n < 6 else "b" if n < 30 else "c" for n in batch] for batch in batches]


@pytest.mark.claim("Hugging Face Trainer", "**streams**: exact proportions with workers")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_streams_are_drawn_as_the_mixture_says_with_the_same_lag(workers, kind, tmp_path):
    settings = {"dataloader_num_workers": workers}
    trainer, callback = trainer_of(tmp_path, every=3, data=KINDS[kind](), settings=settings)
    trainer.train()
    moves = {2 * step + 2 * workers + 1: mixture for step, mixture in mixtures(trainer).items()}
    expected = simulated(28, 4, moves)
    assert names(trainer.seen) == names(expected)
    assert callback.state()["attributes"]["dataset"]["counts"] == {
        name: sum(row.count(name) for row in names(expected)) for name in SIZES
    }
    numbers = [number for batch in trainer.seen for number in batch]
    for low, high in ((0, 6), (6, 30), (30, 44)):  # pass after pass; a worker goes through its half
        drawn = [number for number in numbers if low <= number < high]
        times = [drawn.count(number) for number in range(low, high)]
        assert max(times) - min(times) <= 1 + (workers > 0) * 3
    if kind == "mixed":
        sized = [[n for n in batch if not 6 <= n < 30] for batch in trainer.seen]
        assert sized == [[n for n in batch if not 6 <= n < 30] for batch in expected]


@pytest.mark.claim("Hugging Face Trainer", "streams that can report their position resume exactly")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("save_steps", [4, 5])
def test_streams_that_know_their_place_resume_exactly(save_steps, kind, tmp_path):
    def made():
        settings = {"save_strategy": "steps", "save_steps": save_steps}
        dev = {"x": arrow(10, 3, 0).to_iterable_dataset()}
        return trainer_of(tmp_path, data=KINDS[kind](), dev=dev, settings=settings)

    whole, callback = made()
    whole.train()
    resumed, again = made()
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{save_steps}"))
    assert resumed.seen == whole.seen[2 * save_steps :]
    assert again.state() == callback.state()
    assert lasting(resumed.state.log_history) == lasting(whole.state.log_history)
    for p, expected in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(p, expected)


@pytest.mark.claim("Hugging Face Trainer", "other streams are refused when resumed, or resume inexactly on request")
@pytest.mark.parametrize(
    ("make", "workers", "message"),
    [
        (streams, 2, "the workers' places in the streams are not saved. Set dataloader_num_workers=0."),
        (lambda: train_sets(Forgetful), 0, "the stream 'a' has no state_dict and load_state_dict. Give it both"),
        (
            lambda: {name: d.shuffle(seed=1, buffer_size=4) for name, d in streams().items()},
            0,
            "the shuffle buffer of 'a' is not in its state. Shuffle before streaming",
        ),
    ],
    ids=["workers", "no state", "buffer"],
)
def test_streams_that_cannot_resume_exactly_say_so_and_can_go_on_inexactly(make, workers, message, tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 4, "max_steps": 8, "dataloader_num_workers": workers}
    whole, _ = trainer_of(tmp_path, data=make(), settings=settings)
    whole.train()
    checkpoint = str(tmp_path / "checkpoint-4")
    refused, _ = trainer_of(tmp_path, data=make(), settings=settings)
    with pytest.raises(ValueError, match=f"^BalanceCallback: this training cannot be resumed exactly: {message}"):
        refused.train(resume_from_checkpoint=checkpoint)
    resumed, callback = trainer_of(tmp_path, data=make(), settings=settings, inexact_resume=True)
    resumed.train(resume_from_checkpoint=checkpoint)
    learned = {step: mixture for step, mixture in mixtures(whole).items() if step <= 4}
    assert {step: mixture for step, mixture in mixtures(resumed).items() if step <= 4} == learned
    moves = {2 * step + 2 * workers + 1: mixture for step, mixture in mixtures(resumed).items()}
    assert names(resumed.seen) == names(simulated(16, 4, moves))[8:]  # the draws go on; only the examples differ
    assert sum(callback.balancer.mixture.probabilities.values()) == pytest.approx(1)


@pytest.mark.claim("Hugging Face Trainer", "streams with too few shards are refused")
def test_workers_that_would_read_the_same_are_refused(tmp_path):
    settings = {"dataloader_num_workers": 3}
    with pytest.raises(ValueError, match="3 workers cannot share the stream 'a', which has num_shards=2: .* at most 2"):
        trainer_of(tmp_path, data=streams(), settings=settings)
    data = train_sets(Lines)
    for stream in data.values():
        del stream.num_shards
    with pytest.raises(ValueError, match="the stream 'a', which does not say how many shards .* at most 1, or split"):
        trainer_of(tmp_path, data=data, settings=settings)
    with pytest.raises(ValueError, match="max_steps"):  # the Trainer's own words
        trainer_of(tmp_path, data=streams(), settings={"max_steps": -1})


def test_one_dataset_that_streams_makes_the_whole_a_stream():
    mixture = Mixture.proportional(SIZES)
    assert isinstance(MixedDataset({**train_sets(), "b": streams()["b"]}, mixture), torch.utils.data.IterableDataset)
    assert not isinstance(MixedDataset(train_sets(), mixture), torch.utils.data.IterableDataset)
