"""Rounds of probes: weights of dev sets, and rounds that probe a part of the sets."""

import math

import pytest
import reference
from toy_balancers import DEV, MANY, MANY_DEV, NAMES, estimator_of, many_sources
from toys import batches, loss, mlp

from multidds.probes.probe_sources import ProbeSources
from multidds.rewards.estimator import Part
from multidds.rewards.rotation import Rotation


def test_priorities_rank_by_the_last_validation_if_there_was_one():
    estimator = estimator_of(dev=batches(DEV, seed=1))
    estimator.dev.weights.priority = "low"
    estimator.dev.weights.losses = {"x": 9.0, "y": 1.0, "z": 5.0}
    assert estimator.estimate({}).weights == {"x": 0.5, "y": 0.0, "z": 0.5}
    estimator.dev.weights.priority = "high"
    assert estimator.estimate({}).weights == {"x": 0.0, "y": 0.5, "z": 0.5}
    estimator.dev.weights.losses = None
    assert estimator.estimate({}).weights == reference.priority("high", mlp(), loss, batches(DEV, seed=1))


@pytest.mark.parametrize(
    ("losses", "message"), [({"x": 1.0, "y": 2.0}, "'z'"), ({"x": 1.0, "y": math.nan, "z": 1.0}, "'y' is nan")]
)
def test_losses_of_a_validation_that_cannot_rank_are_refused(losses, message):
    with pytest.raises(ValueError, match=f"dev_losses: .*{message}"):
        estimator_of().dev.weights.losses = losses


def test_a_priority_may_be_a_function_of_the_dev_losses():
    estimator = estimator_of(dev=batches(DEV, seed=1))
    estimator.dev.weights.priority = lambda losses: {max(losses, key=losses.get): 2.0}
    measured = {name: loss(mlp(), b[0]).item() for name, b in batches(DEV, seed=1).items()}
    worst = max(measured, key=measured.get)
    assert estimator.estimate({}).weights == {name: float(name == worst) for name in DEV}


@pytest.mark.claim(
    "The method",
    "an update that looks at a part: its rewards; every set within a bound; exactly unbiased over the "
    "places of the points; order; mid-rotation resume; two processes",
)
@pytest.mark.parametrize("priority", ["regular", {name: 1.0 + i % 3 for i, name in enumerate(MANY_DEV)}])
def test_rewards_of_a_part_weigh_dev_sets_by_their_inclusion_probabilities(priority):
    model, (train, dev) = mlp(), many_sources()
    estimator = estimator_of(model, train, dev, part=Part(16, 12, {}), batches_per_set=2)
    estimator.dev.weights.priority = priority
    given = dict.fromkeys(MANY_DEV, 1.0) if priority == "regular" else priority
    weights = {name: weight / sum(given.values()) for name, weight in given.items()}
    sources = ProbeSources("Balancer", {"train": train, "dev": dev}, 0)
    for number in range(2):
        estimate = estimator.estimate({})
        probed = Rotation(0, "train", 16, {}).sets_of(dict.fromkeys(MANY, 1.0), number)
        shares = Rotation(0, "dev", 12, {}).sets_of(estimate.weights, number)
        drawn = [
            {name: [b for _, b in sources.batches(role, name, number, range(2), 2)] for name in names}
            for role, names in (("train", probed), ("dev", shares))
        ]
        counting = {name: weights[name] / share for name, share in shares.items()}
        assert estimate.weights == pytest.approx(weights)
        assert estimate.rewards == pytest.approx(reference.rewards(model, loss, *drawn, counting, True), abs=1e-9)
        assert set(estimate.dev_losses) == set(shares)


def test_dev_sets_of_a_part_are_ranked_by_their_last_probes():
    train, dev = many_sources()
    estimator = estimator_of(None, train, dev, part=Part(16, 16, {}))
    estimator.dev.weights.priority = "low"
    losses = {}
    for _ in range(3):
        mean = sum(losses.values()) / max(1, len(losses))
        worst = sorted(MANY_DEV, key=lambda name: (-losses.get(name, mean), name))[:15]
        estimate = estimator.estimate({})
        assert {name for name, weight in estimate.weights.items() if weight} == set(worst)
        losses |= estimate.dev_losses


def test_rounds_of_a_part_follow_the_groups():
    groups = {name: "odd" if i % 2 else "even" for i, name in enumerate(MANY)}
    train, dev = many_sources()
    estimator = estimator_of(None, train, dev, part=Part(4, 4, groups))
    for number in range(2):
        probed = list(estimator.estimate({}).rewards)
        assert probed == list(Rotation(0, "train", 4, groups).sets_of(dict.fromkeys(MANY, 1.0), number))
        assert len({groups[name] for name in probed}) == 2


def test_the_seed_of_a_state_is_that_of_the_next_rounds():
    train, dev = many_sources(MANY[:3], MANY_DEV[:3])
    one, other = (estimator_of(None, train, dev, seed=seed) for seed in (0, 7))
    assert one.estimate({}).rewards != other.estimate({}).rewards
    other.load_state_dict(one.state_dict(), one.tensors())
    assert other.estimate({}).rewards == one.estimate({}).rewards


def test_an_error_in_a_round_does_not_count_it():
    failing = []

    def compute(model, b):
        if failing:
            raise OSError("no more memory")
        return loss(model, b)

    train, dev = many_sources(MANY[:3], MANY_DEV[:3])
    one, other = (estimator_of(None, train, dev, compute=compute) for _ in range(2))
    failing.append(1)
    with pytest.raises(OSError, match="no more memory"):
        one.estimate({})
    failing.clear()
    assert one.estimate({}).rewards == other.estimate({}).rewards
    assert tuple(one.estimate({}).rewards) == MANY[:3] != NAMES
