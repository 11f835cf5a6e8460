import itertools
import json
from collections import Counter

import pytest
import torch
from assertions import assert_resumes_exactly
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

from multidds import Mixture, MixtureSampler

SIZES = st.dictionaries(st.text(min_size=1, max_size=4), st.integers(1, 40), min_size=1, max_size=6)


def take(iterator, count):
    return [next(iterator) for _ in range(count)]


def home(index, sizes):
    """The dataset of an index."""
    ends = itertools.accumulate(sizes.values())
    return next(name for name, end in zip(sizes, ends, strict=True) if index < end)


@given(SIZES, st.integers(0, 1000))
def test_every_pass_goes_through_a_dataset_without_repetition(sizes, seed):
    sampler = MixtureSampler(sizes, Mixture.uniform(sizes), seed=seed)
    drawn = {name: [] for name in sizes}
    for index in take(iter(sampler), 300):
        drawn[home(index, sizes)].append(index)
    for name, indices in drawn.items():
        size = sizes[name]
        for start in range(0, len(indices), size):
            whole = indices[start : start + size]
            assert len(set(whole)) == len(whole)
        assert sampler.examples[name] == len(indices)
        assert sampler.passes[name] == len(indices) / size


def test_every_pass_has_an_order_of_its_own_and_orders_are_even():
    """Every element comes first, and every ordered pair of neighbours occurs, about equally often."""
    for size in (2, 3, 4, 5, 10, 50):
        orders = take(iter(MixtureSampler({"a": size}, Mixture.uniform(["a"]), batch_size=size)), 4000)
        expected = 4000 / size
        firsts = Counter(order[0] for order in orders)
        pairs = Counter(pair for order in orders for pair in itertools.pairwise(order))
        assert all(abs(firsts[i] - expected) < 5 * expected**0.5 for i in range(size))
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


@pytest.mark.parametrize("batch_size", [None, 1, 3])
def test_a_sampler_resumes_exactly_with_the_seed_of_the_state(batch_size):
    sizes = {"a": 7, "b\x1f\ud800": 30, " ": 4}

    def make(seed=0):
        sampler = MixtureSampler(sizes, Mixture.proportional(sizes), batch_size, seed)
        indices = iter(sampler)
        return {"sampler": sampler}, lambda _: (next(indices), sampler.passes)

    assert_resumes_exactly(make, 60, stops=(0, 1, 30), again=lambda: make(seed=5), as_json=True)


@given(
    st.integers(1, 6),
    st.lists(st.integers(0, 12), max_size=5),
    st.lists(st.integers(0, 40), max_size=3),
    st.integers(1, 3),
)
def test_draws_ahead_are_taken_back_with_their_own_mixtures(ahead, moves, stops, world_size):
    """A loader that always has `ahead` more batches drawn than consumed; updates come at arbitrary steps."""
    sizes = {"a": 7, "b": 30, "c": 4}

    def start(probabilities):
        mixture = Mixture(probabilities)
        return mixture, MixtureSampler(sizes, mixture, 3, seed=5, rank=0, world_size=world_size)

    def run(sampler, mixture, first, last):
        indices, queue, consumed = iter(sampler), [], []
        for step in range(first, last):
            while len(queue) < ahead + 1:
                queue.append(next(indices))
            consumed.append(queue.pop(0))
            if step in moves:
                mixture.move({"a": (step + 1) / 20, "b": 0.2, "c": 0.8 - (step + 1) / 20})
        while len(queue) < ahead:  # what a loader has drawn when its state is asked for
            queue.append(next(indices))
        return consumed

    prior = Mixture.uniform(sizes).probabilities
    mixture, sampler = start(prior)
    expected = run(sampler, mixture, 0, 60)
    (mixture, sampler), consumed = start(prior), []
    for stop in (*sorted(stops), 60):
        consumed += run(sampler, mixture, len(consumed), stop)
        state = json.loads(json.dumps(sampler.state_dict(consumed=stop)))
        mixture, sampler = start(mixture.probabilities)
        sampler.load_state_dict(state)
        assert sum(sampler.examples.values()) == 3 * stop * world_size
    assert consumed == expected


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("as_batch_sampler", [True, False])
def test_in_a_data_loader_the_lag_is_fixed_and_resume_is_exact(workers, as_batch_sampler):
    sizes = {"a": 9, "b": 20}
    numbered = ConcatDataset([TensorDataset(torch.arange(9)), TensorDataset(torch.arange(9, 29))])
    lag = workers * 2  # num_workers * prefetch_factor

    def start():
        mixture = Mixture({"a": 0.5, "b": 0.5})
        return mixture, MixtureSampler(sizes, mixture, 4 if as_batch_sampler else None, seed=3)

    def steps(sampler, mixture, first, last):
        how = {"batch_sampler": sampler} if as_batch_sampler else {"sampler": sampler, "batch_size": 4}
        batches, out = iter(DataLoader(numbered, num_workers=workers, **how)), []
        for step in range(first, last):
            out.append(next(batches)[0].tolist())
            if step == 5:
                mixture.move({"a": 0.0, "b": 1.0})
        return out

    mixture, sampler = start()
    expected = steps(sampler, mixture, 0, 20)
    arrived = [{home(i, sizes) for i in batch} == {"b"} for batch in expected]
    assert all(arrived[6 + lag :])
    assert not all(arrived[: 6 + lag])  # the batches drawn ahead were made with the old mixture
    mixture, sampler = start()
    first = steps(sampler, mixture, 0, 7)
    unit = 1 if as_batch_sampler else 4  # a sampler without a batch size counts indices
    state, moved = sampler.state_dict(consumed=7 * unit), mixture.probabilities
    mixture, sampler = start()
    sampler.load_state_dict(state)
    mixture.move(moved)
    assert first + steps(sampler, mixture, 7, 20) == expected


def test_only_states_from_one_batch_before_the_last_on_can_be_asked_for():
    sampler = MixtureSampler({"a": 5}, Mixture.uniform("a"), batch_size=2)

    def refuse(consumed, least):
        with pytest.raises(ValueError, match=f"consumed.*between {least} and 3.* {consumed}"):
            sampler.state_dict(consumed)

    take(iter(sampler), 3)
    refuse(4, least=0)
    sampler.state_dict()
    sampler.state_dict(consumed=2)  # the last batch was not finished
    refuse(1, least=2)
    sampler.load_state_dict(sampler.state_dict())
    refuse(2, least=3)


def test_if_no_state_is_asked_for_old_ones_are_given_up():
    mixture = Mixture.uniform("ab")
    sampler = MixtureSampler({"a": 5, "b": 5}, mixture, batch_size=2)
    indices = iter(sampler)
    for step in range(400):
        next(indices)
        mixture.move({"a": step / 400, "b": 1 - step / 400})
    sampler.state_dict(consumed=300)  # of a loader that has read a hundred updates ahead
    with pytest.raises(ValueError, match="consumed.*between 299 and 400.* 298"):
        sampler.state_dict(consumed=298)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mixture": Mixture.uniform("ab")}, "'b' is missing"),
        ({"sizes": {"a": 5, "b": 1}}, "'b' is unknown"),
        ({"sizes": {"a": 0}}, "size of 'a'.* 0"),
        ({"sizes": {"a": 2.5}}, "size of 'a'.* 2.5"),
        ({"batch_size": 0}, "batch_size.* 0"),
        ({"rank": 1}, "rank and world_size"),
        ({"rank": 2, "world_size": 2}, "rank.* 2 of 2"),
        ({"mixture": {"a": 1.0}}, "mixture.* dict"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=f"MixtureSampler: .*{message}"):
        MixtureSampler(**{"sizes": {"a": 5}, "mixture": Mixture.uniform("a"), **options})


def test_a_state_of_other_data_is_refused():
    state = MixtureSampler({"a": 3}, Mixture.uniform("a")).state_dict()
    for name, size, other, message in (
        ("a", 4, {}, "3 examples of 'a', not 4"),
        ("b", 3, {}, "'b' is missing"),
        ("a", 3, {"version": None}, "version None"),
    ):
        with pytest.raises(ValueError, match=f"MixtureSampler: .*{message}"):
            MixtureSampler({name: size}, Mixture.uniform(name)).load_state_dict(state | other)
