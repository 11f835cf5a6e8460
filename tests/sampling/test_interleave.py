"""Streams of batches, and the sources that they and probes draw from."""

import re

import pytest
import torch
from assertions import assert_resumes_exactly
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler, TensorDataset
from toys import dataset

from multidds import Mixture, batches_of, interleave


def take(iterator, count):
    return [next(iterator) for _ in range(count)]


class Augmented(Dataset):
    """Every example is drawn with the global generators: only seeds per batch can make it repeatable."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.rand(2) + index


class Streaming(IterableDataset):
    def __iter__(self):
        return iter([torch.tensor([float(i)]) for i in range(5)])


class Stateful:
    """Keeps its own place."""

    def __init__(self, data):
        self.batches, self.place = list(DataLoader(data, batch_size=4)), 0

    def __iter__(self):
        while self.place < len(self.batches):
            self.place += 1
            yield self.batches[self.place - 1]
        self.place = 0

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


GENERATOR = torch.Generator()
KINDS = {
    "shuffled": lambda d: DataLoader(d, batch_size=4, shuffle=True),
    "own generator": lambda d: DataLoader(d, batch_size=4, shuffle=True, generator=GENERATOR),
    "workers": lambda d: DataLoader(d, batch_size=4, shuffle=True, num_workers=2),
    "list": lambda d: list(DataLoader(d, batch_size=4)),
    "function": lambda d: lambda g: d[int(torch.randint(len(d), (), generator=g))],
    "batches_of": lambda d: batches_of(d, 4),
    "augmented": lambda d: DataLoader(Augmented(), batch_size=5, shuffle=True),
    "replacement": lambda d: DataLoader(d, batch_size=4, sampler=RandomSampler(d, replacement=True, num_samples=50)),
    "stateful": Stateful,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_resumes_exactly_and_leaves_random_states_alone(kind):
    def make(seed=1):
        loaders = {name: KINDS[kind](dataset(11 + i, seed=i)) for i, name in enumerate("ab")}
        stream = interleave(loaders, Mixture({"a": 0.1, "b": 0.9}), seed)
        return {"stream": stream}, lambda _: (next(stream), stream.examples, stream.passes)

    stream = make()[0]["stream"]
    before = torch.get_rng_state(), GENERATOR.get_state()
    take(stream, 9)
    assert all(map(torch.equal, before, (torch.get_rng_state(), GENERATOR.get_state())))
    assert_resumes_exactly(make, 18, stops=(0, 9), again=lambda: make(seed=77), as_json=True)


def test_a_stream_goes_through_a_shuffled_loader_pass_by_pass():
    data = TensorDataset(torch.arange(10))
    stream = interleave({"a": DataLoader(data, batch_size=5, shuffle=True)}, Mixture.uniform("a"), seed=1)
    passes = [[i for _, (batch,) in take(stream, 2) for i in batch.tolist()] for _ in range(3)]
    assert all(sorted(order) == list(range(10)) for order in passes)
    assert passes[0] != passes[1] != passes[2]
    assert stream.passes == {"a": 3.0}
    assert stream.examples == {"a": 30}


def test_a_stream_uses_the_mixture_of_this_moment():
    mixture = Mixture({"a": 1.0, "b": 0.0})
    stream = interleave({"a": [torch.zeros(1)], "b": [torch.ones(1)]}, mixture)
    assert next(stream)[0] == "a"
    mixture.move({"a": 0.0, "b": 1.0})
    assert next(stream)[0] == "b"


def test_ranks_of_a_stream_share_one_sequence_of_draws():
    sources = {name: (lambda g, name=name: (name, torch.rand(1, generator=g))) for name in "abc"}
    mixture = Mixture({"a": 0.2, "b": 0.3, "c": 0.5})
    one = take(interleave(sources, mixture, 5, rank=0, world_size=1), 30)
    for rank in range(3):
        assert take(interleave(sources, mixture, 5, rank=rank, world_size=3), 10) == one[rank::3]


def test_examples_are_counted_by_the_first_tensor_or_by_a_function():
    batch = {"ids": ["x", torch.zeros(3, 5)], "labels": torch.zeros(7)}
    for count, expected in ((None, 3), (lambda batch: len(batch["labels"]), 7)):
        stream = interleave({"a": [batch]}, Mixture.uniform("a"), count=count)
        next(stream)
        assert stream.examples == {"a": expected}
    with pytest.raises(TypeError, match="type str.*count="):
        next(interleave({"a": ["text"]}, Mixture.uniform("a")))


def test_a_streaming_loader_works_but_cannot_be_resumed_which_is_said_at_once(caplog):
    stream = interleave({"s": DataLoader(Streaming(), batch_size=2)}, Mixture.uniform(["s"]))
    said = "interleave: loader 's': a DataLoader over an IterableDataset .*StatefulDataLoader"
    assert re.search(said, caplog.text)
    assert [len(batch) for _, batch in take(stream, 4)] == [2, 2, 1, 2]
    assert stream.passes == {"s": 1.0}
    with pytest.raises(ValueError, match=said):
        stream.state_dict()


def test_loaders_sharded_by_a_distributed_sampler_work():
    data = TensorDataset(torch.arange(8))
    shards = [
        DataLoader(data, batch_size=2, sampler=DistributedSampler(data, num_replicas=2, rank=rank)) for rank in (0, 1)
    ]
    passes = [[], [], []]
    for rank, shard in enumerate(shards):
        stream = interleave({"a": shard}, Mixture.uniform("a"), rank=rank, world_size=2)
        for order in passes:
            order += [i for _, (batch,) in take(stream, 2) for i in batch.tolist()]
        assert shard.sampler.epoch == 0
    assert all(sorted(order) == list(range(8)) for order in passes)
    assert passes[0] != passes[1] != passes[2]  # the epoch is set for every pass


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        ([], "no batches"),
        (iter([1]), "only once"),
        (3, "expected a DataLoader.* int"),
        (DataLoader(Augmented(), num_workers=1, persistent_workers=True), "persistent_workers"),
    ],
)
def test_other_loaders_are_refused_by_name(loader, message):
    with pytest.raises((ValueError, TypeError), match=f"interleave: loader 'a': .*{message}"):
        interleave({"a": loader}, Mixture.uniform("a"))


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="interleave: 'b' is missing; there are 'a'"):
        interleave({"a": [1]}, Mixture.uniform("ab"))
    with pytest.raises(TypeError, match="mixture.* dict"):
        interleave({"a": [1]}, {"a": 1.0})
    shared = Stateful(dataset(4))
    with pytest.raises(ValueError, match="'?Stateful'? was given twice"):
        interleave({"a": shared, "b": shared}, Mixture.uniform("ab"))
    with pytest.raises(ValueError, match="'a' is missing; there are none"):
        interleave({}, Mixture.uniform("a"))
    for bad, message in (((Streaming(), 2), "map-style.* Streaming"), (([1], 0), "batch_size.* 0")):
        with pytest.raises((ValueError, TypeError), match=f"batches_of: .*{message}"):
            batches_of(*bad)


def test_an_endless_stream_over_nothing_is_an_error_not_a_loop():
    class Empty:
        def __iter__(self):
            return iter(())

    with pytest.raises(ValueError, match="loader 'e': .*no batches"):
        next(interleave({"e": Empty()}, Mixture.uniform("e")))


def test_a_state_of_other_data_is_refused():
    stream = interleave({"a": [torch.zeros(1)] * 5}, Mixture.uniform("a"))
    take(stream, 4)
    with pytest.raises(ValueError, match="interleave: state: 'b' is missing"):
        interleave({"b": [torch.zeros(1)]}, Mixture.uniform("b")).load_state_dict(stream.state_dict())
    with pytest.raises(ValueError, match="'place' 4.* 2"):
        interleave({"a": [torch.zeros(1)] * 2}, Mixture.uniform("a")).load_state_dict(stream.state_dict())
