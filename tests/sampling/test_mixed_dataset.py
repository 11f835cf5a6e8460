"""The dataset whose indices are positions: the sequence of MixtureSampler, whoever reads it."""

import copy
import inspect
import itertools
import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset
from toy_streams import Flow

from multidds import Mixture, MixtureSampler
from multidds.sampling import Draws
from multidds.sampling.mixed_dataset import AnyOrder, MixedDataset
from multidds.sampling.shared_mixtures import SharedMixtures

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on machines with few cores

SIZES = {"a": 5, "b": 20, "c": 11}


class Named(Dataset):
    """Examples that say which ones they are."""

    def __init__(self, name, size):
        self.name, self.size = name, size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        return f"{self.name}{i}"


class Batched(Named):
    """As `datasets.Dataset` does it: several examples in one call."""

    def __getitem__(self, i):
        raise AssertionError("one by one")

    def __getitems__(self, places):
        return [f"{self.name}{i}" for i in places]


def sets(kind=Named, sizes=SIZES):
    return {name: kind(name, size) for name, size in sizes.items()}


def sampled(count, mixture, seed, sizes=SIZES, moves=None):
    """What MixtureSampler draws; `moves`: {position: probabilities}."""
    everything = ConcatDataset([Named(name, size) for name, size in sizes.items()])
    indices = iter(MixtureSampler(sizes, mixture, seed=seed))
    drawn = []
    for position in range(count):
        if moves and position in moves:
            mixture.move(moves[position])
        drawn.append(everything[next(indices)])
    return drawn


def probabilities(draw):
    weights = draw(st.lists(st.integers(1, 50), min_size=3, max_size=3))
    return {name: weight / sum(weights) for name, weight in zip(SIZES, weights, strict=True)}


@pytest.mark.claim(
    "Hugging Face Trainer", "the draws are those of `MixtureSampler`, across epochs and changes of the mixture"
)
@pytest.mark.parametrize("step", [1, 4, 7])
@settings(max_examples=25)
@given(st.data(), st.integers(0, 2**40))
def test_the_sequence_is_that_of_the_sampler_whoever_reads(step, data, seed):
    mixture = Mixture.proportional(SIZES)
    moves = {step * data.draw(st.integers(1, 20)): probabilities(data.draw) for _ in range(3)}
    dataset = MixedDataset(sets(data.draw(st.sampled_from([Named, Batched]))), mixture, seed=seed)
    dataset.attach(step, step, rounds_to_remember=100)
    readers = data.draw(st.integers(1, 3))  # each reads every n-th batch
    for start in sorted(moves):
        mixture.move(moves[start])
        dataset.mixture_changed(start)
    found = {}
    state = json.dumps(dataset.state_dict())
    for reader in range(readers):
        dataset.load_state_dict(json.loads(state))
        for epoch in range(2):
            dataset.set_epoch(epoch)
            for i in range(0, len(dataset), step):
                position = epoch * len(dataset) + i
                if position // step % readers == reader:
                    batch = dataset.__getitems__(range(i, i + step))
                    found.update(enumerate(batch, start=position))
            dataset.consume(len(dataset))
    assert len(dataset) == {1: 36, 4: 36, 7: 42}[step]  # whole steps
    expected = sampled(2 * len(dataset), Mixture.proportional(SIZES), seed, moves=moves)
    assert [found[i] for i in range(2 * len(dataset))] == expected


def test_without_a_callback_a_moved_mixture_counts_from_the_next_epoch():
    mixture = Mixture.proportional(SIZES)
    dataset = MixedDataset(sets(), mixture, seed=3)
    assert len(dataset) == 36
    moved = {"a": 0.5, "b": 0.25, "c": 0.25}
    expected = sampled(108, Mixture.proportional(SIZES), 3, moves={72: moved})
    read = []
    for epoch in range(3):
        if epoch == 1:
            dataset.set_epoch(1)
            mixture.move(moved)
        else:
            dataset.set_epoch(epoch)
        read += [example for (example,) in DataLoader(dataset, num_workers=epoch == 1)]
    assert read == expected
    for counted in ("passes", "examples"):  # of one epoch too few, and unknown with several processes
        with pytest.raises(RuntimeError, match="BalanceCallback.*passes"):
            getattr(dataset, counted)
    dataset.set_epoch(0)  # another training
    mixture.move(Mixture.proportional(SIZES).probabilities)
    assert dataset.position == 0


@pytest.mark.claim("Hugging Face Trainer", "forked and spawned workers see later mixtures")
@pytest.mark.parametrize(("context", "workers"), [("fork", 2), ("spawn", 1)])
def test_persistent_workers_see_a_mixture_that_comes_after_they_began(context, workers):
    mixture = Mixture.proportional(SIZES)
    dataset = MixedDataset(sets(), mixture, seed=1)
    dataset.attach(4, 4, rounds_to_remember=10)
    loader = DataLoader(
        dataset, 4, num_workers=workers, prefetch_factor=1, persistent_workers=True, multiprocessing_context=context
    )
    moves = {}
    read = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        for batch in loader:
            read += batch
            dataset.consume(4)
            if len(read) in (8, 20, 40):
                behind = len(read) + 4 * workers  # what is in the workers' hands
                moves[behind] = {"a": len(read) / 80, "b": 0.5 - len(read) / 80, "c": 0.5}
                mixture.move(moves[behind])
                dataset.mixture_changed(behind)
    assert read == sampled(72, Mixture.proportional(SIZES), 1, moves=moves)
    assert sum(dataset.examples.values()) == 72


@pytest.mark.parametrize("batch_size", [4, None])
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_streams_keep_the_proportions_exact_and_no_example_twice_in_a_pass(workers, batch_size):
    mixture = Mixture({"a": 0.2, "b": 0.5, "c": 0.3})
    parts = {"a": Named("a", 5), "b": Flow("b", 200, 12), "c": Flow("c", 24, 12)}
    loader = DataLoader(MixedDataset(parts, mixture, seed=2, batch_size=batch_size), 4, num_workers=workers)
    read = [example for batch in itertools.islice(loader, 60) for example in batch]
    expected = sampled(240, mixture, 2, {"a": 5, "b": 200, "c": 24})
    if batch_size is None:  # without it, workers divide single examples: the same in every batch of each worker
        rounds = range(0, 240, 4 * max(1, workers))
        names = [sorted(example[0] for example in read[i : i + rounds.step]) for i in rounds]
        assert names == [sorted(example[0] for example in expected[i : i + rounds.step]) for i in rounds]
    else:
        assert [example[0] for example in read] == [example[0] for example in expected]
        assert [e for e in read if e[0] == "a"] == [e for e in expected if e[0] == "a"]
    for name in "bc":
        assert len({e for e in read if e[0] == name}) == sum(e[0] == name for e in expected)
    assert {"0", "1", "2"} <= {e.split("p")[1] for e in read if e[0] == "c"}  # it starts over, with the next pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"datasets": [Named("a", 3)]}, "datasets.* list"),
        ({"mixture": {"a": 1.0}}, "mixture.* dict"),
        ({"datasets": {"a": Named("a", 3)}}, "'b' is missing"),
        ({"datasets": {"a": Named("a", 3), "b": (i for i in range(3))}}, "'b'.* generator"),
        ({"datasets": {"a": Named("a", 3), "b": {"train": Named("b", 3)}}}, "'b'.* dict"),
        ({"datasets": {"a": Named("a", 3), "b": Named("b", 0)}}, "size of 'b'.* 0"),
        ({"datasets": {"a": Named("a", 3), "b": Flow("b", 3)}, "batch_size": 0}, "batch_size.* 0"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=f"MixedDataset: .*{message}"):
        MixedDataset(
            **{"datasets": {"a": Named("a", 3), "b": Named("b", 3)}, "mixture": Mixture.uniform("ab"), **options}
        )


def test_an_empty_stream_is_an_error_not_a_loop():
    with pytest.raises(ValueError, match="no examples in '[ab]'"):
        next(iter(MixedDataset({"a": Flow("a", 0), "b": Flow("b", 0)}, Mixture.uniform("ab"))))


@settings(max_examples=20)
@given(st.integers(1, 300), st.data())
def test_an_epoch_can_be_read_in_any_order(size, data):
    sizes = {"a": size, "b": 20}
    mixture = Mixture({"a": 0.3, "b": 0.7})
    dataset = MixedDataset(sets(sizes=sizes), mixture, seed=7)
    expected = sampled(3 * len(dataset), Mixture({"a": 0.3, "b": 0.7}), 7, sizes)
    for epoch in (0, 2, 1):
        dataset.set_epoch(epoch)
        order = data.draw(st.permutations(range(len(dataset))))
        found = dict(zip(order, dataset.__getitems__(order[:50]) + [dataset[i] for i in order[50:]], strict=True))
        start = epoch * len(dataset)
        assert [found[i] for i in range(len(dataset))] == expected[start : start + len(dataset)]


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_that_shuffle_find_what_one_reader_finds(persistent):
    mixture = Mixture.proportional(SIZES)
    dataset = MixedDataset(sets(), mixture, seed=3)
    loader = DataLoader(dataset, 4, shuffle=True, num_workers=2, persistent_workers=persistent)
    moved = {"a": 0.5, "b": 0.25, "c": 0.25}
    expected = sampled(108, Mixture.proportional(SIZES), 3, moves={72: moved})
    for epoch in range(3):
        if epoch == 2:
            mixture.move(moved)
        dataset.set_epoch(epoch)
        read = [example for batch in loader for example in batch]
        assert sorted(read) == sorted(expected[36 * epoch : 36 * epoch + 36])
        assert read != expected[36 * epoch : 36 * epoch + 36]


def test_what_is_kept_to_read_in_any_order_is_bounded():
    draws = Draws(Mixture.uniform("ab"), seed=1)
    draws.skip_to(500)
    expected = draws.fork().draw_for(0, 1, 2000)
    window = AnyOrder(draws, 2000, most_counts=30)
    for position in (1999, 0, 1200, 1201, 3, 1500):
        assert window.draw_at(500 + position) == expected[position]
    assert window.distance * 15 >= 2000  # 15 positions with the counts of two datasets


def test_with_a_callback_reading_out_of_order_is_refused():
    dataset = MixedDataset(sets(), Mixture.proportional(SIZES))
    with pytest.raises(IndexError, match="index 36.* 35"):
        dataset[36]
    dataset.attach(6, 6, rounds_to_remember=0)
    assert dataset[3] == sampled(4, Mixture.proportional(SIZES), 0)[3]
    with pytest.raises(ValueError, match="position 1.*after 3.*'sequential'"):
        dataset[1]
    dataset.set_epoch(0)
    assert list(dataset) == sampled(36, Mixture.proportional(SIZES), 0)
    dataset.consume(6)
    with pytest.raises(ValueError, match="epoch 1.* 36.* 6 examples"):
        dataset.set_epoch(1)


def test_its_signature_and_its_copies_are_those_of_an_ordinary_class():
    assert list(inspect.signature(MixedDataset).parameters) == ["datasets", "mixture", "seed", "batch_size"]
    for parts in (sets(), {**sets(), "a": Flow("a", 5)}):
        dataset = MixedDataset(parts, Mixture.proportional(SIZES), seed=4)
        assert isinstance(dataset, MixedDataset)
        assert isinstance(dataset, IterableDataset) == isinstance(parts["a"], Flow)
        for twin in (pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset)):
            assert type(twin) is type(dataset)
            assert next(iter(twin)) == next(iter(dataset))


def test_a_state_of_other_data_is_refused_and_changes_nothing():
    mixture = Mixture.proportional(SIZES)
    state = MixedDataset(sets(), mixture).state_dict()
    flowing = MixedDataset({**sets(), "a": Flow("a", 5)}, mixture)
    for dataset, other, message in (
        (MixedDataset(sets(), mixture), {"sizes": {"a": 5, "b": 20}}, "'c' is missing"),
        (MixedDataset(sets(), mixture), {"sizes": {**SIZES, "a": 6}}, "6 examples of 'a', not 5"),
        (flowing, {"places": {}}, "5 examples of 'a', not a stream"),
        (flowing, {"sizes": {**SIZES, "a": None}}, "no 'places'"),
        (MixedDataset(sets(), mixture), {"version": 1}, "version 1"),
    ):
        before = dataset.state_dict()
        with pytest.raises(ValueError, match=message):
            dataset.load_state_dict({**state, "position": 8, **other})
        assert dataset.state_dict() == before


def test_a_rare_stream_keeps_its_place_when_saved_before_it_is_read_again():
    def made():
        mixture = Mixture({"a": 0.98, "b": 0.02})
        dataset = MixedDataset({"a": Named("a", 5), "b": Flow("b", 50)}, mixture, seed=2)
        dataset.attach(4, 4, rounds_to_remember=1)
        return dataset

    whole = made()
    expected = [example for example, _ in zip(whole, range(600), strict=False)]
    dataset, read = made(), []
    while len(read) < 600:
        examples = iter(dataset)
        for _ in range(dataset.position):
            next(examples)  # which the Trainer throws away
        read += [next(examples) for _ in range(4)]
        dataset.consume(4)
        state = json.loads(json.dumps(dataset.state_dict()))
        dataset = made()
        dataset.load_state_dict(state)
    assert read == expected


def test_a_reader_too_far_behind_is_our_mistake_and_no_wrong_draw():
    mixtures = SharedMixtures(SIZES, capacity=8)
    draws, known = Draws(Mixture.proportional(SIZES)), 0
    for step in range(9):
        assert mixtures.add(step, {"a": 0.1, "b": 0.1 + step / 100, "c": 0.8 - step / 100}) == step + 1
        if step == 7:
            assert mixtures.bring_up_to_date(draws.fork(), known) == 8
    with pytest.raises(AssertionError, match="a reader fell behind"):
        mixtures.bring_up_to_date(draws, known)


def test_positions_are_exact_far_out():
    dataset = MixedDataset(sets(), Mixture.proportional(SIZES))
    state = dataset.state_dict()
    far = 2**45
    history = [[far, Mixture.uniform(SIZES).probabilities], [far + 1, Mixture.proportional(SIZES).probabilities]]
    dataset.load_state_dict({**state, "position": far, "mixtures": history})
    assert dataset.state_dict()["mixtures"] == history
