"""A training that goes on with datasets or dev sets added or left out, when that is asked for."""

import json

import pytest
import torch
from torch.utils.data import TensorDataset
from toys import batches, dataset, loss, mlp

from multidds import (
    Anchored,
    Balancer,
    Exp3,
    Exponentiated,
    Mixture,
    MixtureSampler,
    Schedule,
    Scorer,
    batches_of,
    interleave,
)
from multidds._base.carrying import carried_shares
from multidds.history.history import Moment
from multidds.history.plot import shares_of
from multidds.sampling.mixed_dataset import MixedDataset

SIZES = {"a": 10, "b": 20, "c": 30, "d": 40, "e": 60}
RULES = [Anchored(), Anchored(strength=2.0), Scorer(lr=1.0), Scorer.authors(), Exponentiated(), Exp3()]
HINT = r"Where the data were changed on purpose, load_state_dict\(state, changed=True\) goes on"


def balancer_of(names, dev="xy", scorer=None, **options):
    mixture = Mixture.proportional({name: SIZES[name] for name in names})
    train, dev_sets = batches(sorted(SIZES), 2), batches("xyz", 2, seed=1)
    options = {"every": 1, "batches": 2, "scorer": scorer or Anchored(), **options}
    return Balancer(
        mixture, mlp(), loss, train={n: train[n] for n in names}, dev={n: dev_sets[n] for n in dev}, **options
    )


def saved(balancer, updates=4):
    for _ in range(updates):
        balancer.step()
    return json.loads(json.dumps({**balancer.state_dict(), "tensors": {}}))


@pytest.mark.claim("The method", "changed data: the new one at its prior share, the others as they were")
@pytest.mark.parametrize("scorer", RULES)
def test_a_new_dataset_starts_at_its_prior_share_others_keep_theirs(scorer):
    state = saved(balancer_of("abc", scorer=scorer))
    before = state["mixture"]["probabilities"]
    other = balancer_of("abcd", scorer=scorer)
    other.load_state_dict(state, changed=True)
    assert other.mixture["d"] == pytest.approx(0.4)
    assert [other.mixture[n] / 0.6 for n in "abc"] == pytest.approx([before[n] for n in "abc"])
    update = other.step()
    assert update.step == 5
    assert update.skipped is None
    assert sum(update.mixture.values()) == pytest.approx(1)


@pytest.mark.parametrize("scorer", RULES)
def test_a_dataset_left_out_leaves_the_shares_of_the_others_alike(scorer):
    state = saved(balancer_of("abcd", scorer=scorer))
    before = state["mixture"]["probabilities"]
    other = balancer_of("cab", scorer=scorer)
    other.load_state_dict(state, changed=True)
    rest = 1 - before["d"]
    assert other.mixture.probabilities == pytest.approx({n: before[n] / rest for n in "cab"})
    assert other.step().skipped is None


def test_bounds_hold_from_the_change_on():
    state = saved(balancer_of("abcd", scorer=Scorer(lr=1.0)))
    other = balancer_of("ab", scorer=Scorer(lr=1.0), bounds={"b": (0.0, 0.3)})
    other.load_state_dict(state, changed=True)
    assert other.mixture["b"] == pytest.approx(0.3)


def test_what_was_learned_of_the_others_is_kept():
    one, other = balancer_of("abc", scorer=Anchored(strength=2.0)), balancer_of("abcd", scorer=Anchored(strength=2.0))
    state = saved(one)
    other.load_state_dict(state, changed=True)
    carried = other.state_dict()["rule"]
    for key in ("advantages", "changes", "rewards", "variances"):
        assert carried[key][:3] == state["rule"][key]
    assert carried["advantages"][3] == 0
    assert carried["updates"] == 4


def test_dev_sets_may_come_and_go():
    first = balancer_of("abc", dev="xy", priority={"x": 0.5, "y": 0.5})
    first.dev_losses = {"x": 1.0, "y": 2.0}
    state = saved(first)
    with pytest.raises(ValueError, match=HINT):
        balancer_of("abc", dev="xyz").load_state_dict(state)
    more = balancer_of("abc", dev="xyz", priority={"z": 1.0})
    more.load_state_dict(state, changed=True)
    assert more.priority == {"x": 0.5, "y": 0.5}
    assert more.dev_losses is None
    fewer = balancer_of("abc", dev="yz", priority={"z": 1.0})
    fewer.load_state_dict(state, changed=True)
    assert fewer.priority == {"z": 1.0}  # of the weights that were saved, one is of no dev set
    assert more.step().skipped is fewer.step().skipped is None


@pytest.mark.parametrize("reward", ["moving-average", "multidds"])
def test_moving_averages_of_datasets_that_are_gone_are_forgotten(reward):
    first = balancer_of("abc", reward=reward, scorer=Scorer())
    first.step()
    other = balancer_of("bcd", reward=reward, scorer=Scorer())
    other.load_state_dict(first.state_dict(), changed=True)
    assert other.step().skipped is None


@pytest.mark.parametrize("scorer", RULES)
def test_with_nothing_changed_the_option_changes_nothing(scorer):
    state = saved(balancer_of("abc", scorer=scorer))
    one, other = balancer_of("abc", scorer=scorer), balancer_of("cab", scorer=scorer)
    one.load_state_dict(state)
    other.load_state_dict(state, changed=True)
    assert other.state_dict() == one.state_dict()
    for _ in range(2):
        assert one.step().mixture == other.step().mixture


def test_shares_stay_to_the_last_bit_where_only_dev_sets_change():
    shares = {"a": 0.1, "b": 0.2, "c": 0.7}  # whose sum, in this order, is not quite 1
    assert carried_shares(shares, {"c": 0.5, "b": 0.3, "a": 0.2}) == shares


def test_estimates_of_parts_are_carried_by_name():
    names = [f"d{i:02}" for i in range(40)]

    def many(some):
        train = {n: batches_of(dataset(30, seed=int(n[1:])), 4) for n in some}
        dev = {f"k{i}": batches_of(dataset(30, seed=99 + i), 4) for i in range(30)}
        return Balancer(Mixture.uniform(some), mlp(), loss, train=train, dev=dev, steps=2000, budget=0.4)

    first = many(names)
    for _ in range(3):
        first.update()
    rewards = first.history[-1].rewards
    other = many([*names[5:], "d90"])
    other.load_state_dict(first.state_dict(), changed=True)
    belief = dict(zip(other._order, other._estimates.belief().rewards, strict=True))
    assert {n: belief[n] for n in names[5:]} == pytest.approx({n: rewards[n] for n in names[5:]})
    assert dict(zip(other._order, other._estimates.looks, strict=True))["d90"] == 0
    assert other.mixture["d90"] == pytest.approx(1 / 36)
    assert other.update().skipped is None


def test_it_is_refused_unless_it_is_asked_for():
    state = saved(balancer_of("abc"))
    for names in ("abcd", "ab"):
        other = balancer_of(names)
        before = other.state_dict()
        with pytest.raises(ValueError, match=HINT):
            other.load_state_dict(state)
        assert other.state_dict() == before


def test_other_data_altogether_and_damaged_states_are_refused():
    state = saved(balancer_of("abc"))
    with pytest.raises(ValueError, match="none of the datasets of the state is still there; begin a new training"):
        balancer_of("de").load_state_dict(state, changed=True)
    with pytest.raises(ValueError, match="the state is damaged, or of another rule; nothing is carried over"):
        balancer_of("abcd", scorer=Scorer()).load_state_dict(state, changed=True)
    other = balancer_of("abcd")
    before = other.state_dict()
    with pytest.raises(ValueError, match="'prior' is"):
        other.load_state_dict({**state, "prior": [0.5, 0.5]}, changed=True)
    assert other.state_dict() == before


# ------------------------------------------------------------------------------------------ streams and samplers


def test_a_sampler_goes_on_with_other_datasets():
    first = MixtureSampler({n: SIZES[n] for n in "abc"}, Mixture.uniform("abc"), batch_size=4, seed=3)
    drawing = iter(first)
    for _ in range(5):
        next(drawing)
    state = json.loads(json.dumps(first.state_dict()))
    sizes = {"b": 20, "c": 33, "d": 40}
    with pytest.raises(ValueError, match=HINT):
        MixtureSampler(sizes, Mixture.uniform("bcd"), batch_size=4).load_state_dict(state)
    other = MixtureSampler(sizes, Mixture.uniform("bcd"), batch_size=4)
    other.load_state_dict(state, changed=True)
    assert other.examples == {"b": first.examples["b"], "c": first.examples["c"], "d": 0}
    assert other.drawn == 5
    drawing = iter(other)
    drawn = [i for _ in range(50) for i in next(drawing)]
    assert set(drawn) <= set(range(93))
    assert other.examples["d"] > 40
    again = MixtureSampler(sizes, Mixture.uniform("bcd"), batch_size=4)
    again.load_state_dict(json.loads(json.dumps(other.state_dict())))
    assert again.examples == other.examples


def test_a_stream_goes_on_with_other_loaders():
    loaders = {n: [torch.full((2,), float(i)) for _ in range(4)] for i, n in enumerate("abcd")}
    first = interleave({n: loaders[n] for n in "abc"}, Mixture.uniform("abc"), seed=1)
    for _ in range(10):
        next(first)
    other = interleave({n: loaders[n] for n in "bcd"}, Mixture.uniform("bcd"), seed=1)
    with pytest.raises(ValueError, match=HINT):
        other.load_state_dict(first.state_dict())
    other.load_state_dict(first.state_dict(), changed=True)
    assert other.examples == {"b": first.examples["b"], "c": first.examples["c"], "d": 0}
    assert other.passes["b"] == first.passes["b"]
    assert {next(other)[0] for _ in range(40)} == set("bcd")


def test_with_nothing_changed_mixtures_that_wait_are_kept_too():
    sets = {n: TensorDataset(torch.arange(SIZES[n])) for n in "abc"}

    def mixed():
        return MixedDataset(sets, Mixture.uniform("abc"), seed=2)

    first = mixed()
    first.attach(5, 5, 4)
    first.consume(10)
    first.mixture.move({"a": 0.8, "b": 0.1, "c": 0.1})
    first.rule_from(20)
    other = mixed()
    other.load_state_dict(first.state_dict(), changed=True)
    assert other.state_dict() == first.state_dict()


def test_a_schedule_goes_on_with_other_datasets():
    def schedule(names):
        mixture = Mixture.proportional({name: SIZES[name] for name in names})
        points = [(0.0, mixture), (1.0, Mixture.uniform(names))]
        return Schedule(Mixture(mixture.probabilities), points, steps=10, every=4)

    first = schedule("abc")
    for _ in range(6):
        first.step()
    state = json.loads(json.dumps(first.state_dict()))
    with pytest.raises(ValueError, match="'d' is missing"):
        schedule("abd").load_state_dict(state)
    other, same = schedule("abd"), schedule("abd")
    other.load_state_dict(state, changed=True)
    for _ in range(6):
        same.step()
    assert other.mixture.probabilities == same.mixture.probabilities
    assert [other.step() for _ in range(4)] == [same.step() for _ in range(4)]
    again = schedule("abc")
    again.load_state_dict(state, changed=True)
    assert again.state_dict() == first.state_dict()


def test_a_picture_shows_datasets_only_where_they_were():
    moments = [
        Moment(step, {"mixture": shares}) for step, shares in enumerate(({"a": 0.4, "b": 0.6}, {"b": 0.2, "c": 0.8}))
    ]
    assert [shares_of(moments, name) for name in "abc"] == [[0.4, 0.0], [0.6, 0.2], [0.0, 0.8]]
    part = [moments[0], Moment(2, {"mixture": {"b": 0.3}})]  # a log of what moved most says nothing of the others
    assert shares_of(part, "a") == [0.4, 0.4]


def test_a_mixed_dataset_goes_on_with_other_datasets():
    sets = {n: TensorDataset(torch.arange(SIZES[n])) for n in "abcd"}
    first = MixedDataset({n: sets[n] for n in "abc"}, Mixture.uniform("abc"), seed=2)
    first.consume(25)
    other = MixedDataset({n: sets[n] for n in "bcd"}, Mixture.uniform("bcd"), seed=2)
    with pytest.raises(ValueError, match=HINT):
        other.load_state_dict(first.state_dict())
    other.load_state_dict(first.state_dict(), changed=True)
    assert other.position == 25
    assert other.examples == {"b": first.examples["b"], "c": first.examples["c"], "d": 0}
    other.consume(60)
    assert other.examples["d"] > 5
