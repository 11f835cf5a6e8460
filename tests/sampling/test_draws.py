"""The sequence of draws, beside a naive version: a list, made one by one with the mixture in effect."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multidds import Mixture
from multidds._base.randomness import derive, point, points
from multidds.sampling import Draws, Order

NAMES = ("a", "b", "c")
SEEDS = st.integers(0, 2**40)
FAR = st.integers(0, 300)


@st.composite
def probabilities(draw):
    weights = draw(st.lists(st.integers(0, 20), min_size=3, max_size=3).filter(any))
    return {name: weight / sum(weights) for name, weight in zip(NAMES, weights, strict=True)}


CHANGES = st.lists(st.tuples(st.integers(0, 400), probabilities()), max_size=5)


def naive(first, changes, seed, count):
    """Returns [(name, number of its draws before)]; changes: (from position, mixture), in the order of their calls."""
    key, drawn, counts = derive(seed, "draws"), [], dict.fromkeys(NAMES, 0)
    for position in range(count):
        in_effect, started = first, 0
        for start, mixture in changes:
            started = max(started, start)  # one waits for those before it
            if started <= position:
                in_effect = mixture
        name = Mixture(in_effect).at(point(key, position))
        drawn.append((name, counts[name]))
        counts[name] += 1
    return drawn


def changed(first, changes, seed):
    draws = Draws(Mixture(first), seed)
    for start, mixture in changes:
        draws.use(Mixture(mixture), start)
    return draws


@settings(max_examples=60)
@given(probabilities(), CHANGES, SEEDS, FAR)
def test_draws_are_those_of_a_list_made_one_by_one(first, changes, seed, count):
    draws = changed(first, changes, seed)
    assert [draws.draw() for _ in range(count)] == naive(first, changes, seed, count)
    assert draws.position == sum(draws.counts.values()) == count


@settings(max_examples=60)
@given(probabilities(), CHANGES, SEEDS, st.integers(1, 5), st.integers(1, 40), st.data())
def test_ranks_share_one_sequence_of_draws(first, changes, seed, world_size, rounds, data):
    expected = naive(first, changes, seed, 2 * rounds * world_size)
    rank = data.draw(st.integers(0, world_size - 1))
    draws = changed(first, changes, seed)
    drawn = draws.draw_for(rank, world_size, rounds)
    for _ in range(rounds):
        drawn += draws.draw_for(rank, world_size)
    assert drawn == expected[rank::world_size]
    assert draws.position == len(expected)


@settings(max_examples=60)
@given(probabilities(), CHANGES, SEEDS, st.lists(FAR, max_size=4))
def test_skipping_is_drawing_with_nobody_looking(first, changes, seed, jumps):
    skipping, drawing = changed(first, changes, seed), changed(first, changes, seed)
    for jump in jumps:
        skipping.skip_to(skipping.position + jump)
        for _ in range(jump):
            drawing.draw()
        assert skipping.state_dict() == drawing.state_dict()
        assert skipping.draw() == drawing.draw()
    skipping.skip_to(0)  # never back
    assert skipping.position == drawing.position


@given(probabilities(), CHANGES, SEEDS, FAR, FAR, probabilities())
def test_a_fork_goes_its_own_way(first, changes, seed, count, ahead, other):
    draws = changed(first, changes, seed)
    draws.skip_to(count)
    fork = draws.fork()
    before = fork.state_dict()
    draws.use(Mixture(other), count + ahead)
    drawn = [draws.draw() for _ in range(50)]
    assert fork.state_dict() == before
    assert [fork.draw() for _ in range(50)] == naive(first, changes, seed, count + 50)[count:]
    fork.skip_to(500)
    assert draws.position == count + 50
    assert drawn == naive(first, [*changes, (count + ahead, other)], seed, count + 50)[count:]


@given(probabilities(), CHANGES, SEEDS, FAR)
def test_a_state_goes_through_json_with_the_mixtures_that_wait(first, changes, seed, count):
    draws = changed(first, changes, seed)
    draws.skip_to(count)
    loaded = Draws(Mixture.uniform(NAMES), seed + 1)
    loaded.load_state_dict(json.loads(json.dumps(draws.state_dict())))
    assert loaded.waiting == draws.waiting == len(draws.state_dict()["mixtures"]) - 1
    assert [loaded.draw() for _ in range(250)] == [draws.draw() for _ in range(250)]
    assert loaded.state_dict() == draws.state_dict()


def test_a_mixture_that_moved_takes_effect_from_where_it_is_said_to():
    mixture = Mixture({"a": 1.0, "b": 0.0})
    draws = Draws(mixture)
    assert not draws.use(mixture)
    mixture.move({"a": 0.0, "b": 1.0})
    assert draws.draw()[0] == "a"  # nobody has said so
    assert draws.use(mixture, 4)
    assert not draws.use(mixture, 2)
    assert draws.waiting == 1
    assert [draws.draw()[0] for _ in range(5)] == ["a", "a", "a", "b", "b"]
    assert draws.waiting == 0
    mixture.move({"a": 1.0, "b": 0.0})
    assert draws.use(mixture)  # from here on
    assert [draws.draw()[0] for _ in range(60)] == ["a"] * 60


def test_after_loading_the_mixture_takes_effect_where_the_state_ends():
    draws = Draws(Mixture({"a": 1.0, "b": 0.0}))
    draws.use(Mixture({"a": 0.5, "b": 0.5}), 10)
    mixture = Mixture({"a": 0.0, "b": 1.0})
    loaded = Draws(mixture)
    loaded.load_state_dict(draws.state_dict())
    assert loaded.use(mixture)  # though it has not moved
    state = loaded.state_dict()
    assert [loaded.draw()[0] for _ in range(20)] == ["a"] * 10 + ["b"] * 10
    loaded.load_state_dict(state)
    assert not loaded.use(mixture)  # it is there already


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**50))
def test_points_in_an_array_are_the_single_ones(key, start):
    assert points(key, start, start + 20).tolist() == [point(key, start + i) for i in range(20)]


def test_skipping_draws_no_dataset_of_probability_0_and_none_past_the_end():
    mixture = Mixture({"a": 0.0, "b": 0.1, "c": 0.9 - 1e-12, "d": 1e-12, "e": 0.0})
    draws = Draws(mixture, seed=2)
    draws.skip_to(200_000)
    assert draws.counts["a"] == draws.counts["e"] == 0
    assert sum(draws.counts.values()) == 200_000
    assert abs(draws.counts["b"] - 20_000) < 5 * (200_000 * 0.09) ** 0.5


@given(SEEDS, st.integers(1, 40))
def test_an_order_goes_through_all_examples_pass_after_pass(seed, size):
    order = Order(seed, "a", size)
    assert sorted(order[i] for i in range(size)) == list(range(size))
    assert sorted(order[i] for i in range(size, 2 * size)) == list(range(size))
    assert [order[i] for i in (0, size, 0)] == [Order(seed, "a", size)[i] for i in (0, size, 0)]


def test_bad_arguments_and_states_are_refused():
    draws = Draws(Mixture.uniform("ab"))
    draws.skip_to(7)
    with pytest.raises(TypeError, match="mixture.* dict"):
        Draws({"a": 1.0})
    with pytest.raises(ValueError, match="'b' is missing"):
        draws.load_state_dict(Draws(Mixture.uniform("a")).state_dict())
    with pytest.raises(ValueError, match="from_position.* 7.* 6"):
        draws.use(Mixture.uniform("ab"), 6)
