"""Rounds of probes: weights of dev sets, and rounds that probe a part of the sets."""

import pytest
from toy_balancers import DEV, MANY, MANY_DEV, estimator_of, many_sources
from toys import batches, loss, mlp

from multidds import reference
from multidds.probes.probe_sources import ProbeSources
from multidds.rewards.estimator import Part
from multidds.rewards.rotation import Rotation


def test_a_priority_may_be_a_function_of_the_dev_losses():
    estimator = estimator_of(dev=batches(DEV, seed=1))
    estimator.dev.weights.priority = lambda losses: {max(losses, key=losses.get): 2.0}
    measured = {name: loss(mlp(), b[0]).item() for name, b in batches(DEV, seed=1).items()}
    worst = max(measured, key=measured.get)
    assert estimator.estimate({}).weights == {name: float(name == worst) for name in DEV}


@pytest.mark.claim("The method", "updates that probe a part: unbiased, every set in time; order, resume, ranks")
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
