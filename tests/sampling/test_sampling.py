import itertools
import json
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset
from toys import dataset

from multidds import Mixture, MixtureSampler, interleave

SIZES = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=4), st.integers(1, 40), min_size=1, max_size=6)


def take(iterator, count):
    return [next(iterator) for _ in range(count)]


def numbered(sizes):
    """A ConcatDataset whose example i is the number i."""
    parts, start = [], 0
    for size in sizes.values():
        parts.append(TensorDataset(torch.arange(start, start + size)))
        start += size
    return ConcatDataset(parts)


def home(index, sizes):
    for name, size in sizes.items():
        if index < size:
            return name
        index -= size
    raise AssertionError


@given(SIZES, st.integers(0, 1000))
def test_every_pass_goes_through_a_dataset_without_repetition(sizes, seed):
    sampler = MixtureSampler(sizes, Mixture.uniform(sizes), seed=seed)
    seen = {name: [] for name in sizes}
    for index in take(iter(sampler), 300):
        seen[home(index, sizes)].append(index)
    for name, indices in seen.items():
        size = sizes[name]
        for start in range(0, len(indices), size):
            whole = indices[start : start + size]
            assert len(set(whole)) == len(whole)
        assert sampler.examples[name] == len(indices)
        assert sampler.passes[name] == len(indices) / size


def test_every_pass_has_an_order_of_its_own():
    sampler = MixtureSampler({"a": 50}, Mixture.uniform(["a"]), batch_size=50)
    passes = take(iter(sampler), 3)
    assert passes[0] != passes[1] != passes[2] != list(range(50))
    assert all(sorted(indices) == list(range(50)) for indices in passes)


def test_the_orders_of_many_passes_are_even():
    # Every element comes first, and every ordered pair of neighbours occurs, about equally often.
    for size in (2, 3, 4, 5, 10):
        sampler = MixtureSampler({"a": size}, Mixture.uniform(["a"]), batch_size=size)
        orders = take(iter(sampler), 4000)
        firsts = Counter(order[0] for order in orders)
        assert all(abs(firsts[i] - 4000 / size) < 5 * (4000 / size) ** 0.5 for i in range(size))
        pairs = Counter(pair for order in orders for pair in itertools.pairwise(order))
        expected = 4000 / size
        assert all(abs(pairs[i, j] - expected) < 5 * expected**0.5 for i in range(size) for j in range(size) if i != j)


def test_draws_follow_the_mixture():
    sizes = {"a": 1000, "b": 10, "c": 300}
    sampler = MixtureSampler(sizes, Mixture({"a": 0.2, "b": 0.5, "c": 0.3}), seed=4)
    counts = Counter(home(index, sizes) for index in take(iter(sampler), 20000))
    for name, p in {"a": 0.2, "b": 0.5, "c": 0.3}.items():
        assert abs(counts[name] - 20000 * p) < 5 * (20000 * p * (1 - p)) ** 0.5


def test_a_new_mixture_decides_the_very_next_draw():
    sizes = {"a": 10, "b": 10}
    mixture = Mixture({"a": 1.0, "b": 0.0})
    indices = iter(MixtureSampler(sizes, mixture, batch_size=5))
    assert {home(i, sizes) for i in next(indices)} == {"a"}
    mixture.move({"a": 0.0, "b": 1.0})
    assert {home(i, sizes) for i in next(indices)} == {"b"}


@given(SIZES, st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))
def test_many_ranks_see_what_one_process_with_the_whole_batch_sees(sizes, world_size, batch_size, seed):
    mixture = Mixture.temperature(sizes, 2)
    one = MixtureSampler(sizes, mixture, batch_size * world_size, seed)
    ranks = [MixtureSampler(sizes, mixture, batch_size, seed, rank, world_size) for rank in range(world_size)]
    whole, parts = iter(one), [iter(rank) for rank in ranks]
    for step in range(6):
        if step == 3:
            mixture.move(Mixture.uniform(sizes).probabilities)
        together, shares = next(whole), [next(part) for part in parts]
        assert all(shares[rank] == together[rank::world_size] for rank in range(world_size))
    assert all(rank.examples == one.examples for rank in ranks)


@given(SIZES, st.sampled_from([None, 1, 3]), st.integers(0, 30), st.integers(0, 99))
def test_a_loaded_sampler_goes_on_where_the_other_was(sizes, batch_size, steps, seed):
    mixture = Mixture.proportional(sizes)
    sampler = MixtureSampler(sizes, mixture, batch_size, seed)
    indices = iter(sampler)
    take(indices, steps)
    state = json.loads(json.dumps(sampler.state_dict()))
    resumed = MixtureSampler(sizes, mixture, batch_size, seed=seed + 1)  # the state brings its own seed
    resumed.load_state_dict(state)
    assert take(iter(resumed), 40) == take(indices, 40)
    assert resumed.passes == sampler.passes


@given(st.integers(1, 6), st.lists(st.integers(0, 12), max_size=5), st.integers(0, 20), st.integers(0, 20))
def test_draws_ahead_are_taken_back_with_their_own_mixtures(ahead, moves, stop, stop_again):
    """A loader that always has `ahead` more batches drawn than consumed; updates come at arbitrary steps."""
    sizes = {"a": 7, "b": 30, "c": 4}

    def run(sampler, mixture, first, last):
        indices, queue, consumed = iter(sampler), [], []
        for step in range(first, last):
            while len(queue) < ahead + 1:
                queue.append(next(indices))
            consumed.append(queue.pop(0))
            if step in moves:
                mixture.move({"a": (step + 1) / 20, "b": 0.2, "c": 0.8 - (step + 1) / 20})
        while len(queue) < ahead:  # what a loader has drawn when its user looks
            queue.append(next(indices))
        return consumed

    mixture = Mixture.uniform(sizes)
    expected = run(MixtureSampler(sizes, mixture, 3, seed=5), mixture, 0, 60)
    mixture, got, done = Mixture.uniform(sizes), [], 0
    sampler = MixtureSampler(sizes, mixture, 3, seed=5)
    for until in (stop, stop + stop_again, 60):
        got += run(sampler, mixture, done, until)
        done = until
        state, probabilities = json.loads(json.dumps(sampler.state_dict(consumed=done))), mixture.probabilities
        mixture = Mixture.uniform(sizes)
        sampler = MixtureSampler(sizes, mixture, 3)
        sampler.load_state_dict(state)
        mixture.move(probabilities)
    assert got == expected


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("as_batch_sampler", [True, False])
def test_in_a_data_loader_the_lag_is_fixed_and_resume_is_exact(workers, as_batch_sampler):
    sizes = {"a": 9, "b": 20}
    lag = workers * 2  # num_workers * prefetch_factor

    def start():
        mixture = Mixture({"a": 0.5, "b": 0.5})
        sampler = MixtureSampler(sizes, mixture, 4 if as_batch_sampler else None, seed=3)
        return mixture, sampler

    def loader(sampler):
        how = {"batch_sampler": sampler} if as_batch_sampler else {"sampler": sampler, "batch_size": 4}
        return iter(DataLoader(numbered(sizes), num_workers=workers, **how))

    def steps(batches, mixture, first, last):
        out = []
        for step in range(first, last):
            out.append(next(batches)[0].tolist())
            if step == 5:
                mixture.move({"a": 0.0, "b": 1.0})
        return out

    mixture, sampler = start()
    expected = steps(loader(sampler), mixture, 0, 20)
    arrived = [{home(i, sizes) for i in batch} == {"b"} for batch in expected]
    assert all(arrived[6 + lag :])
    assert not all(arrived[: 6 + lag])  # the batches drawn ahead were made with the old mixture
    mixture, sampler = start()
    first = steps(loader(sampler), mixture, 0, 7)
    unit = 1 if as_batch_sampler else 4  # a sampler without a batch size counts indices
    state, moved = sampler.state_dict(consumed=7 * unit), mixture.probabilities
    mixture, sampler = start()
    sampler.load_state_dict(state)
    mixture.move(moved)
    assert first + steps(loader(sampler), mixture, 7, 20) == expected


def test_going_back_too_far_is_refused():
    sampler = MixtureSampler({"a": 5}, Mixture.uniform("a"), batch_size=2)
    take(iter(sampler), 3)
    with pytest.raises(ValueError, match="consumed must be between 0 and 3, but it is 4"):
        sampler.state_dict(consumed=4)
    sampler.state_dict()
    sampler.state_dict(consumed=2)  # the last batch was not finished
    with pytest.raises(ValueError, match="consumed must be between 2 and 3, but it is 1"):
        sampler.state_dict(consumed=1)
    sampler.load_state_dict(sampler.state_dict())
    with pytest.raises(ValueError, match="consumed must be between 3 and 3, but it is 2"):
        sampler.state_dict(consumed=2)


@given(SIZES, st.integers(1, 3), st.lists(st.integers(1, 19), max_size=4), st.data())
def test_a_state_of_consumed_batches_is_that_of_one_who_drew_no_more(sizes, world_size, moves, data):
    def drawn(count):
        mixture = Mixture.uniform(sizes)
        sampler = MixtureSampler(sizes, mixture, 3, seed=2, rank=0, world_size=world_size)
        indices = iter(sampler)
        for step in range(count):
            if step in moves:
                mixture.move(Mixture.temperature(sizes, 1 + step).probabilities)
            next(indices)
        return sampler, mixture, indices

    ahead, mixture, indices = drawn(20)
    rest = take(indices, 5)
    for consumed in sorted(data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=4))):
        loaded = MixtureSampler(sizes, mixture, 3, rank=0, world_size=world_size)
        loaded.load_state_dict(json.loads(json.dumps(ahead.state_dict(consumed=consumed))))
        assert loaded.examples == drawn(consumed)[0].examples
        again = take(iter(loaded), 25 - consumed)
        assert again[20 - consumed :] == rest
        assert loaded.examples == ahead.examples


def test_where_nobody_asks_for_states_old_ones_are_given_up():
    mixture = Mixture.uniform("ab")
    sampler = MixtureSampler({"a": 5, "b": 5}, mixture, batch_size=2)
    indices = iter(sampler)
    for step in range(400):
        next(indices)
        mixture.move({"a": step / 400, "b": 1 - step / 400})
    sampler.state_dict(consumed=300)  # what a loader asks for that has read a hundred updates ahead
    with pytest.raises(ValueError, match="consumed must be between 299 and 400, but it is 298"):
        sampler.state_dict(consumed=298)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MixtureSampler({"a": 5}, Mixture.uniform("ab")), "MixtureSampler: 'b' is missing."),
        (lambda: MixtureSampler({"a": 5, "b": 1}, Mixture.uniform("a")), "'b' is unknown"),
        (
            lambda: MixtureSampler({"a": 0}, Mixture.uniform("a")),
            "the size of 'a' must be a whole number of at least 1",
        ),
        (
            lambda: MixtureSampler({"a": 2.5}, Mixture.uniform("a")),
            "a whole number of at least 1, but it is 2.5",
        ),
        (
            lambda: MixtureSampler({"a": 5}, Mixture.uniform("a"), batch_size=0),
            "batch_size must be a whole number of at least 1",
        ),
        (lambda: MixtureSampler({"a": 5}, Mixture.uniform("a"), rank=1), "give both rank and world_size"),
        (lambda: MixtureSampler({"a": 5}, Mixture.uniform("a"), rank=2, world_size=2), "but it is 2 of 2"),
        (lambda: interleave({"a": [1]}, Mixture.uniform("ab")), "interleave: 'b' is missing."),
        (lambda: interleave({"a": []}, Mixture.uniform("a")), "interleave: loader 'a': there are no batches"),
        (
            lambda: interleave({"a": iter([1])}, Mixture.uniform("a")),
            "loader 'a': an iterator can be gone through only",
        ),
    ],
)
def test_a_bad_sampler_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class Augmented(Dataset):
    """Every example is drawn with the global generators: only seeds per batch can make it repeatable."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.rand(2) + index


class Streaming(IterableDataset):
    def __iter__(self):
        return iter([torch.tensor([float(i)]) for i in range(5)])


def loaders(kind):
    generator = torch.Generator().manual_seed(9)
    makers = {
        "shuffled": lambda d: DataLoader(d, batch_size=4, shuffle=True),
        "own generator": lambda d: DataLoader(d, batch_size=4, shuffle=True, generator=generator),
        "workers": lambda d: DataLoader(d, batch_size=4, shuffle=True, num_workers=2),
        "list": lambda d: list(DataLoader(d, batch_size=4)),
        "function": lambda d: lambda g: d[int(torch.randint(len(d), (), generator=g))],
        "augmented": lambda d: DataLoader(Augmented(), batch_size=5, shuffle=True),
        "replacement": lambda d: DataLoader(
            d, batch_size=4, sampler=torch.utils.data.RandomSampler(d, replacement=True, num_samples=50)
        ),
    }
    return {name: makers[kind](dataset(11 + i, seed=i)) for i, name in enumerate("ab")}, generator


KINDS = ["shuffled", "own generator", "workers", "list", "function", "augmented", "replacement"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_stream_goes_on_where_the_other_was(kind):
    def text(items):
        return [
            (name, [t.tolist() for t in (batch if isinstance(batch, (list, tuple)) else [batch])])
            for name, batch in items
        ]

    mixture = Mixture({"a": 0.3, "b": 0.7})
    given_loaders, generator = loaders(kind)
    stream = interleave(given_loaders, mixture, seed=1)
    before = torch.get_rng_state(), generator.get_state()
    take(stream, 9)
    state = json.loads(json.dumps(stream.state_dict()))
    rest = text(take(stream, 9))
    assert torch.equal(before[0], torch.get_rng_state())
    assert torch.equal(before[1], generator.get_state())
    torch.rand(3)  # the global generator has nothing to say
    resumed = interleave(loaders(kind)[0], mixture, seed=77)
    resumed.load_state_dict(state)
    assert text(take(resumed, 9)) == rest
    assert resumed.examples == stream.examples
    assert resumed.passes == stream.passes


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
    one = [(name, batch[1].item()) for name, batch in take(interleave(sources, mixture, 5, rank=0, world_size=1), 30)]
    for rank in range(3):
        stream = interleave(sources, mixture, 5, rank=rank, world_size=3)
        assert [(name, batch[1].item()) for name, batch in take(stream, 10)] == one[rank::3]


def test_examples_are_counted_by_the_first_tensor_or_as_the_user_says():
    batch = {"ids": ["x", torch.zeros(3, 5)], "labels": torch.zeros(7)}
    assert next(stream := interleave({"a": [batch]}, Mixture.uniform("a")))
    assert stream.examples == {"a": 3}
    next(stream := interleave({"a": [batch]}, Mixture.uniform("a"), count=lambda b: len(b["labels"])))
    assert stream.examples == {"a": 7}
    with pytest.raises(TypeError, match="no tensor in a batch of type str; give count="):
        next(interleave({"a": ["text"]}, Mixture.uniform("a")))


def test_a_streaming_loader_works_but_cannot_be_resumed_exactly():
    stream = interleave({"s": DataLoader(Streaming(), batch_size=2)}, Mixture.uniform(["s"]))
    assert [len(batch) for _, batch in take(stream, 4)] == [2, 2, 1, 2]
    assert stream.passes == {"s": 1.0}
    with pytest.raises(ValueError, match="loader 's': 'DataLoader' cannot be resumed exactly"):
        stream.state_dict()


def test_an_endless_stream_over_nothing_is_an_error_not_a_loop():
    class Empty:
        def __iter__(self):
            return iter(())

    with pytest.raises(ValueError, match="loader 'e': there are no batches"):
        next(interleave({"e": Empty()}, Mixture.uniform("e")))


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


def test_a_mixture_that_is_none_is_refused():
    for make in (interleave, MixtureSampler):
        with pytest.raises(TypeError, match="the mixture must be a Mixture, got dict"):
            make({"a": 5}, {"a": 1.0})


def test_state_of_other_datasets_is_refused():
    state = interleave({"a": [torch.zeros(1)]}, Mixture.uniform("a")).state_dict()
    with pytest.raises(ValueError, match="interleave: state: 'b' is missing"):
        interleave({"b": [torch.zeros(1)]}, Mixture.uniform("b")).load_state_dict(state)
    state = MixtureSampler({"a": 3}, Mixture.uniform("a")).state_dict()
    with pytest.raises(ValueError, match="the state is of 3 examples of 'a', not 4"):
        MixtureSampler({"a": 4}, Mixture.uniform("a")).load_state_dict(state)
    with pytest.raises(ValueError, match="MixtureSampler: state: 'b' is missing"):
        MixtureSampler({"b": 3}, Mixture.uniform("b")).load_state_dict(state)


def test_a_state_of_more_data_than_there_is_is_refused():
    mixture = Mixture.uniform("a")
    stream = interleave({"a": [torch.zeros(1)] * 5}, mixture)
    take(stream, 4)
    with pytest.raises(ValueError, match="the state is 4 batches into a pass, but a pass has 2: this is other data"):
        interleave({"a": [torch.zeros(1)] * 2}, mixture).load_state_dict(stream.state_dict())
