"""Streams in the real Trainer: exact proportions with workers, exact resume if they report their place."""

from functools import partial

import pytest
import torch
from toy_streams import Flow
from toy_trainers import (
    QUIET,
    SIZES,
    Rows,
    arrow,
    assert_resumes,
    mixtures,
    simulated,
    streams,
    train_sets,
    trainer_of,
)

pytestmark = QUIET


class Lines(Flow):
    """A torch stream of the examples of `Rows`."""

    def __init__(self, size, seed, offset):
        super().__init__("", size)
        self.rows = Rows(size, seed, offset)

    def __iter__(self):
        return (self.rows[int(line.split("p")[0])] for line in super().__iter__())


class Forgetful(Lines):
    """A stream that cannot report its place."""

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
def test_streams_are_drawn_from_the_mixture_with_the_same_lag(workers, kind, tmp_path):
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
def test_streams_that_report_their_place_resume_exactly(save_steps, kind, tmp_path):
    def made():
        settings = {"save_strategy": "steps", "save_steps": save_steps}
        dev = {"x": arrow(10, 3, 0).to_iterable_dataset()}
        return trainer_of(tmp_path, data=KINDS[kind](), dev=dev, settings=settings)

    assert_resumes(made, tmp_path / f"checkpoint-{save_steps}")


@pytest.mark.claim("Hugging Face Trainer", "other streams are refused when resumed, or resume inexactly on request")
@pytest.mark.parametrize(
    ("make", "workers", "message"),
    [
        (streams, 2, "dataloader_num_workers=0"),
        (lambda: train_sets(Forgetful), 0, "'a' has no state_dict"),
        (lambda: {name: d.shuffle(seed=1, buffer_size=4) for name, d in streams().items()}, 0, "shuffle buffer of 'a'"),
    ],
    ids=["workers", "no state", "buffer"],
)
def test_streams_that_cannot_resume_exactly_are_refused_or_resume_inexactly(make, workers, message, tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 4, "max_steps": 8, "dataloader_num_workers": workers}
    made = partial(trainer_of, tmp_path, settings=settings)
    whole, _ = made(data=make())
    whole.train()
    checkpoint = str(tmp_path / "checkpoint-4")
    with pytest.raises(ValueError, match=f"exactly: .*{message}.* inexact_resume=True"):
        made(data=make())[0].train(resume_from_checkpoint=checkpoint)
    resumed, _ = made(data=make(), inexact_resume=True)
    resumed.train(resume_from_checkpoint=checkpoint)
    learned = {step: mixture for step, mixture in mixtures(whole).items() if step <= 4}
    assert {step: mixture for step, mixture in mixtures(resumed).items() if step <= 4} == learned
    moves = {2 * step + 2 * workers + 1: mixture for step, mixture in mixtures(resumed).items()}
    assert names(resumed.seen) == names(simulated(16, 4, moves))[8:]  # the draws go on; only the examples differ


@pytest.mark.claim("Hugging Face Trainer", "streams with too few shards are refused")
def test_workers_without_a_shard_of_their_own_are_refused(tmp_path):
    unsharded = train_sets(Lines)
    for stream in unsharded.values():
        del stream.num_shards
    for data, shards in ((streams(), 2), (unsharded, None)):
        with pytest.raises(ValueError, match=f"dataloader_num_workers=3 .*'a', with num_shards={shards}"):
            trainer_of(tmp_path, data=data, settings={"dataloader_num_workers": 3})


def test_finished_training_on_streams_reads_on_after_a_resume(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 4, "max_steps": 6}
    whole, _ = trainer_of(tmp_path / "whole", every=100, data=streams(), settings=settings)
    whole.train()
    short = {**settings, "max_steps": 4}
    trainer_of(tmp_path, every=100, data=streams(), settings=short)[0].train()
    resumed, _ = trainer_of(tmp_path, every=100, data=streams(), settings=short)
    resumed.train(resume_from_checkpoint=True)  # the Trainer takes one step more
    assert resumed.seen == whole.seen[8:10]


@pytest.mark.parametrize("place", [{3: 1}, torch.tensor(3)], ids=["key", "tensor"])
def test_place_that_json_cannot_hold_is_refused_when_it_is_saved(place, tmp_path):
    data = streams()
    for stream in data.values():
        stream.state_dict = lambda: {"place": place}
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    trainer, _ = trainer_of(tmp_path, data=data, settings=settings)
    with pytest.raises(ValueError, match="stream 'a' .* JSON"):
        trainer.train()


def test_streams_need_no_callback(tmp_path):
    settings = {"max_steps": 12, "dataloader_num_workers": 2, "gradient_accumulation_steps": 1}
    trainer, _ = trainer_of(tmp_path, every=0, data=streams(), settings=settings)
    trainer.train()
    found, expected = names(trainer.seen), names(simulated(12, 4, {}))
    for i in range(0, 12, 2):  # a batch of each worker
        assert sorted(found[i] + found[i + 1]) == sorted(expected[i] + expected[i + 1])
