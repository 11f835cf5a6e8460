"""Updates that look at a part of many datasets: what is looked at, without bias; what is kept; what "
"it is worth."""

import copy
import logging
import math

import pytest
import reference
import torch
import torch.distributed as dist
from assertions import assert_order_invariant, assert_ranks_equal_one_process, assert_resumes_exactly
from torch import nn
from toys import dataset, loss, mlp

from multidds import Balancer, Mixture, batches_of
from multidds.balancer.pace import LEAST_SETS, WANTED, in_mixed_batches, in_parts
from multidds.mixture.limits import within_groups
from multidds.rewards.rotation import Rotation
from multidds.rules import Anchored, Scorer

NAMES = tuple(f"d{i:02}" for i in range(40))
DEV = tuple(f"k{i:02}" for i in range(30))


def losses(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def sources(names, seed, size=4):
    return {name: batches_of(dataset(30, seed=seed + i), size) for i, name in enumerate(names)}


def many(names=NAMES, dev_names=DEV, model=None, prior=None, **options):
    """2,000 steps buy no useful number of updates that look at 70 sets."""
    train, dev = sources(NAMES, 0), sources(DEV, 1000)
    options = {"steps": 2000, "budget": 0.4, **options}
    train, dev = ({name: given[name] for name in order} for given, order in ((train, names), (dev, dev_names)))
    mixture = Mixture({name: (prior or Mixture.uniform(names))[name] for name in names})
    return Balancer(mixture, model or mlp(), loss, train=train, dev=dev, **options)


def numbers(update):
    return update.step, update.mixture, update.rewards, update.noise, update.probed, update.dev_losses


# ------------------------------------------------------------------------------------------ when and how many


def test_a_given_every_looks_at_everything_whatever_the_budget():
    updates = [many(every=3, budget=budget, steps=None).update() for budget in (1e-9, 0.4)]
    assert updates[0].probed == NAMES
    assert set(updates[0].dev_losses) == set(DEV)
    assert updates[0].mixture == updates[1].mixture


@pytest.mark.claim("The method", "a budget holds at any number of datasets, and few datasets are balanced as before")
def test_a_budget_that_buys_everything_is_spent_as_before():
    few = many(names=NAMES[:8], dev_names=DEV[:8], steps=20_000, budget=0.02, losses=losses)
    given = many(names=NAMES[:8], dev_names=DEV[:8], every=few.every, steps=None)
    assert few.every == 1600
    for _ in range(3):
        one, other = few.update(), given.update()
        assert one.probed == NAMES[:8]
        assert (one.mixture, one.rewards, one.noise) == (other.mixture, other.rewards, other.noise)


def test_a_budget_that_does_not_buys_looks_at_a_part(caplog):
    with caplog.at_level(logging.INFO, "multidds"):
        balancer = many()
    assert balancer.every == 160
    assert "64 probe batches each (40.0%), of 16 datasets and 16 dev sets at a time." in caplog.text
    seen = set()
    for _ in range(3):
        update = balancer.update()
        assert len(update.probed) == len(update.dev_losses) == 16
        assert set(update.rewards) == set(update.noise) == set(update.mixture) == set(NAMES)
        seen |= set(update.probed)
    assert seen == set(NAMES)


@pytest.mark.claim("The method", "a budget holds at any number of datasets, and few datasets are balanced as before")
@pytest.mark.parametrize(("datasets", "dev_sets"), [(10_000, 10_000), (10_000, 1), (8, 5000), (100, 100)])
@pytest.mark.parametrize("steps", [None, 1000, 100_000, 10_000_000])
def test_the_budget_holds_at_any_number_of_datasets(datasets, dev_sets, steps):
    for pace in (in_parts(datasets, dev_sets, steps, 0.02, 2), in_mixed_batches(datasets, dev_sets, steps, 0.02, 64)):
        assert pace.share <= 0.02
        assert pace.part[0] <= datasets
        assert pace.part[1] <= dev_sets
        if pace.mixed is None:
            assert sum(pace.part) * 2 == pace.passes
            assert sum(pace.part) >= LEAST_SETS
        else:
            assert sum(pace.mixed) == pace.passes
        if steps == 10_000_000 and datasets == dev_sets == 10_000:
            assert pace.updates == pytest.approx(WANTED, abs=1)


def test_a_training_of_unknown_length_looks_at_a_part_of_many():
    assert many(steps=None, budget=0.02).update().probed == NAMES  # every 7,000 steps
    rare = many(steps=None, budget=0.005)
    assert len(rare.update().probed) == 16


@pytest.mark.parametrize("options", [{"step_ahead": 0.1}, {"sketch": 64}, {"reward": "moving-average"}])
def test_what_needs_every_dataset_looks_at_every_dataset(options):
    assert many(**options).update().probed == NAMES


# ------------------------------------------------------------------------------------------ rewards


class Spy:
    """Stands for a balancer's memory and keeps what each update brought."""

    def __init__(self, balancer):
        self._add, self.rewards, self.errors = balancer._estimates.add, None, None
        balancer._estimates.add = self

    def __call__(self, places, rewards, errors, degrees):
        self.rewards, self.errors, self.degrees = rewards, errors, degrees
        return self._add(places, rewards, errors, degrees)


def drawn(role, names, seed, balancer, update=0, count=2):
    """The batches that an update draws of each set."""
    return {
        name: [batch for _, batch in balancer._estimator._sources.batches(role, name, update, range(count), count)]
        for name in names
    }


@pytest.mark.claim(
    "The method",
    "an update that looks at a part: its rewards; every set within a bound; exactly unbiased over the "
    "places of the points; order; mid-rotation resume; two processes",
)
@pytest.mark.parametrize("priority", ["regular", {name: 1.0 + i % 3 for i, name in enumerate(DEV)}])
def test_rewards_of_a_part_weigh_dev_sets_by_how_rarely_they_come(priority):
    model = mlp()
    balancer = many(model=model, priority=priority, scorer=Anchored())
    spy = Spy(balancer)
    update = balancer.update()
    given = dict.fromkeys(DEV, 1.0) if priority == "regular" else priority
    assert update.weights == pytest.approx({name: weight / sum(given.values()) for name, weight in given.items()})
    shares = Rotation(0, "dev", 16, {}).looked_at(update.weights, 0)
    assert set(shares) == set(update.dev_losses)
    counting = {name: update.weights[name] / share for name, share in shares.items()}
    train, dev = drawn("train", sorted(update.probed), 0, balancer), drawn("dev", shares, 1000, balancer)
    expected = reference.rewards(model, loss, train, dev, counting, stabilized=True)
    assert spy.rewards == pytest.approx([expected[name] for name in sorted(update.probed)], abs=1e-9)


@pytest.mark.claim(
    "The method", "mixed batches give slopes of gradients of single examples, along a direction averaged over updates"
)
def test_mixed_probes_are_slopes_of_gradients_of_single_examples():
    model = mlp()
    balancer = many(model=model, losses=losses)
    spy = Spy(balancer)
    update = balancer.update()
    assert spy.degrees >= 1
    each = balancer._estimator._sources
    batches = balancer._estimator._mixed._batches
    per_set = batches["dev"] * 4 // len(update.dev_losses)
    dev = each.examples("dev", dict.fromkeys(update.dev_losses, per_set), 0)
    share = len(update.dev_losses) / len(DEV)
    v = sum(reference.gradient(model, loss, [(x[None], y[None])]) / len(DEV) / share / per_set for _, (x, y) in dev)
    per_set = batches["train"] * 4 // len(update.probed)
    examples = each.examples("train", dict.fromkeys(update.probed, per_set), 0)
    slopes = {name: [] for name in sorted(update.probed)}
    for name, (x, y) in examples:
        slopes[name].append(float(reference.gradient(model, loss, [(x[None], y[None])]) @ v / v.norm()))
    means = [sum(found) / len(found) for found in slopes.values()]
    assert spy.rewards == pytest.approx(means, abs=1e-6)
    errors = [torch.tensor(found).std().item() / math.sqrt(len(found)) for found in slopes.values()]
    assert spy.errors == pytest.approx(errors, abs=1e-6)
    assert set(update.train_losses) == set(update.probed)


@pytest.mark.claim(
    "The method", "mixed batches give slopes of gradients of single examples, along a direction averaged over updates"
)
def test_what_dev_sets_want_is_averaged_and_the_newest_counts_most():
    """v_1, v_2, v_3 with the weights 1, 2, 3, by gradients of single examples; none of an update that is"
    " skipped."""
    model = mlp()
    balancer = many(model=model, losses=losses)
    spy = Spy(balancer)
    each, mixed = balancer._estimator._sources, balancer._estimator._mixed
    total = 0.0
    for number in range(3):
        if number == 2:  # which neither moves nor counts
            mixed._losses, update = (lambda model, batch: losses(model, batch) * math.nan), None
            assert balancer.update().skipped
            balancer._estimator._rounds, mixed._losses = number, losses
        update = balancer.update()
        per_set = mixed._batches["dev"] * 4 // len(update.dev_losses)
        dev = each.examples("dev", dict.fromkeys(update.dev_losses, per_set), number)
        v = sum(reference.gradient(model, loss, [(x[None], y[None])]) for _, (x, y) in dev)
        total = total + (number + 1) * v / per_set / len(update.dev_losses)
    per_set = mixed._batches["train"] * 4 // len(update.probed)
    slopes = {name: [] for name in sorted(update.probed)}
    for name, (x, y) in each.examples("train", dict.fromkeys(update.probed, per_set), 2):
        slopes[name].append(float(reference.gradient(model, loss, [(x[None], y[None])]) @ total / total.norm()))
    assert spy.rewards == pytest.approx([sum(found) / len(found) for found in slopes.values()], abs=1e-6)
    state = balancer.state_dict()
    assert state["direction"] == 3
    direction = torch.cat([tensor.reshape(-1) for tensor in state["tensors"].values()])
    assert torch.allclose(direction, total / 6, atol=1e-9)


def test_a_direction_of_other_parameters_is_refused_and_nothing_moves():
    balancer = many(losses=losses)
    balancer.update()
    state = balancer.state_dict()
    other = many(losses=losses)
    for bad in ({**state, "tensors": {}}, {**state, "direction": -1}):
        with pytest.raises(
            ValueError, match="the direction of the dev sets in the state is of other parameters, or miss"
        ):
            other.load_state_dict(bad)
    assert other._estimator._mixed.direction.updates == 0
    del state["direction"]  # of a version that had none: it begins anew
    other.load_state_dict({**state, "tensors": {}})
    assert other.mixture.probabilities == balancer.mixture.probabilities
    balancer.refresh_parameters()
    assert balancer._estimator._mixed.direction.updates == 0


def test_over_a_rotation_dev_sets_count_as_their_priority_says():
    """The mean over a turn of v is that of all dev sets: with the rewards of fixed gradients, so are theirs."""
    weights = dict.fromkeys(DEV, 1 / 30)
    one = Rotation(0, "dev", 15, {})
    total = dict.fromkeys(DEV, 0.0)
    for update in range(2):
        for name, share in one.looked_at(weights, update).items():
            total[name] += weights[name] / share / 2
    assert total == pytest.approx(weights)


def test_dev_sets_are_ranked_by_their_last_looks():
    balancer = many(priority="low")
    first, second = balancer.update(), balancer.update()
    assert sum(weight > 0 for weight in second.weights.values()) == 15
    known = {**first.dev_losses}
    mean = sum(known.values()) / len(known)
    ranking = sorted(DEV, key=lambda name: (-known.get(name, mean), name))
    assert {name for name, weight in second.weights.items() if weight} == set(ranking[:15])


def test_a_part_with_another_dev_objective_takes_gradients_of_dev_sets():
    def doubled(model, batch):
        return 2 * loss(model, batch)

    update = many(losses=losses, dev_loss=doubled).update()
    plain = many(losses=losses).update()
    assert update.skipped is None
    assert 1 <= len(update.dev_losses) < len(plain.dev_losses)


@pytest.mark.parametrize("scorer", [Scorer(), Scorer.authors(), Anchored(strength=2.0)])
@pytest.mark.parametrize("options", [{}, {"losses": losses}])
def test_every_rule_learns_from_parts(scorer, options):
    balancer = many(scorer=scorer, **options)
    for _ in range(4):
        update = balancer.update()
    assert update.skipped is None
    assert update.learned > 0
    assert math.fsum(update.mixture.values()) == pytest.approx(1)


# ------------------------------------------------------------------------------------------ promises


@pytest.mark.claim(
    "The method",
    "an update that looks at a part: its rewards; every set within a bound; exactly unbiased over the "
    "places of the points; order; mid-rotation resume; two processes",
)
@pytest.mark.parametrize("options", [{}, {"losses": losses}])
def test_the_order_of_datasets_does_not_matter(options):
    def updates(names):
        balancer = many(names=names, dev_names=DEV if names == list(NAMES) else DEV[::-1], **options)
        done = [balancer.update() for _ in range(3)]
        return [(sorted(update.probed), update.rewards, update.mixture) for update in done]

    assert_order_invariant(updates, NAMES)


@pytest.mark.claim(
    "The method",
    "an update that looks at a part: its rewards; every set within a bound; exactly unbiased over the "
    "places of the points; order; mid-rotation resume; two processes",
)
@pytest.mark.parametrize("options", [{}, {"losses": losses}, {"groups": {"d00": "g", "d01": "g"}}])
def test_resume_in_the_middle_of_a_rotation_is_exact(options):
    def make(seed=0):
        balancer = many(seed=seed, **options)
        return {"balancer": balancer}, lambda _: numbers(balancer.update())

    assert_resumes_exactly(make, 5, stops=(2,), again=lambda: make(seed=5), as_json=True)


@pytest.mark.parametrize("options", [{}, {"losses": losses}])
def test_a_look_at_a_part_is_invisible(options):
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.4), nn.Linear(8, 3)).double()
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(7)
    state = torch.get_rng_state()
    many(model=model, **options).update()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())


def updates_of_ranks():
    """Two updates by gradients and two by mixed batches, as numbers. With dropout, seeded by batch."""
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    found = []
    for options in ({"batches": 2 // world_size, "steps": 1000}, {"losses": losses, "budget": 0.6 / world_size}):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.4), nn.Linear(8, 3)).double()
        balancer = many(model=model, **options)
        done = [balancer.update() for _ in range(2)]
        found += [[update.mixture, update.rewards, update.dev_losses, list(update.probed)] for update in done]
    return found


@pytest.mark.claim(
    "The method",
    "an update that looks at a part: its rewards; every set within a bound; exactly unbiased over the "
    "places of the points; order; mid-rotation resume; two processes",
)
def test_two_processes_equal_one(tmp_path):
    assert_ranks_equal_one_process(updates_of_ranks, tmp_path, tolerance=1e-8)


def test_a_loss_that_is_not_finite_moves_and_loses_nothing():
    def broken(model, batch):
        return losses(model, batch) * math.nan

    balancer = many(losses=losses)
    balancer.update()
    before = balancer.state_dict()
    balancer._estimator._mixed._losses = broken
    update = balancer.update()
    assert "is not finite" in update.skipped
    after = balancer.state_dict()
    assert all(map(torch.equal, before.pop("tensors").values(), after.pop("tensors").values()))
    assert {**after, "rounds": 1} == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"losses": lambda model, batch: loss(model, batch)}, r"losses\(model, batch\) must return one number per"),
        (
            {"losses": lambda model, batch: losses(model, batch)[1:]},
            r"one number per example, \d+ of them, but the shape",
        ),
        ({"losses": lambda model, batch: None}, r"must return a tensor \[B\], got NoneType"),
    ],
)
def test_losses_of_a_wrong_shape_are_refused_and_nothing_moves(options, message):
    balancer = many(**options)
    before = balancer.state_dict()
    with pytest.raises((ValueError, TypeError), match=message):
        balancer.step() or balancer.update()
    assert balancer.state_dict()["rounds"] == before["rounds"]
    assert balancer.mixture.probabilities == Mixture.uniform(NAMES).probabilities


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"losses": 3}, r"losses must be a function \(model, batch\) -> tensor \[B\], got int"),
        ({"groups": {"nobody": "g"}}, "groups: 'nobody' is unknown"),
        ({"groups": {"d00": 3}}, "groups must be {dataset: name of its group}, but 'd00' is in 3"),
        ({"groups": {"d00": "d01"}}, "the group of 'd00' is called 'd01', as a dataset is; call it otherwise"),
        ({"groups": {"d00": "g"}, "bounds": {"h": (0, 0.5)}}, "bounds: 'h' is unknown"),
        ({"bounds": {"g": (0, 0.5)}}, "bounds: 'g' is unknown"),
        ({"groups": {"d00": "g"}, "bounds": {"g": (0.5, 0.4)}}, "'g' has"),
        ({"groups": {"d00": "g"}, "bounds": {"g": (0.5, 0.6), "d00": (0, 0.1)}},
         r"the group 'g' has \(0\.5, 0\.6\), but the bounds of its datasets leave it 0 to 0\.1"),
        ({"groups": dict.fromkeys(NAMES, "g"), "bounds": {"g": (0, 0.5)}}, "included, sum to 0.5, which is less"),
        ({"groups": {"d00": "g", "d01": "h"}, "bounds": {"g": (0.6, 1), "h": (0.6, 1)}}, "sum to 1.2, which is more"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_a_sentence(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        many(**options)


def test_sources_that_give_no_single_examples_are_refused_by_name():
    train, dev = sources(NAMES, 0), sources(DEV, 1000)
    options = {"dev": dev, "steps": 2000, "losses": losses}
    lists = train | {"d07": [torch.zeros(1)]}
    with pytest.raises(ValueError, match=r"train 'd07' gives no single examples; make it with batches_of"):
        Balancer(Mixture.uniform(NAMES), mlp(), loss, train=lists, **options)
    other = train | {"d07": batches_of(dataset(30), 5)}
    with pytest.raises(ValueError, match="one batch_size and one collate_fn, but those of train 'd07' are others"):
        Balancer(Mixture.uniform(NAMES), mlp(), loss, train=other, **options)


# ------------------------------------------------------------------------------------------ groups


def test_the_share_of_a_group_can_be_bounded_and_set():
    groups = {name: "odd" if i % 2 else "even" for i, name in enumerate(NAMES)}
    balancer = many(groups=groups, bounds={"odd": (0.2, 0.2), "d00": (0.3, 1.0)}, scorer=Anchored(strength=2.0))
    for _ in range(3):
        mixture = balancer.update().mixture
    assert math.fsum(p for name, p in mixture.items() if groups[name] == "odd") == pytest.approx(0.2)
    assert mixture["d00"] >= 0.3 - 1e-12
    assert math.fsum(mixture.values()) == pytest.approx(1)


def test_within_a_group_shares_keep_their_proportions():
    p = {"a": 0.1, "b": 0.3, "c": 0.4, "d": 0.2}
    found = within_groups(p, {}, {"a": "g", "b": "g", "c": "h"}, {"g": (0.0, 0.2)})
    assert found == pytest.approx({"a": 0.05, "b": 0.15, "c": 0.4 * 0.8 / 0.6, "d": 0.2 * 0.8 / 0.6})
    found = within_groups(p, {"c": (0.0, 0.1)}, {"a": "g", "b": "g", "c": "h"}, {"g": (0.6, 0.6)})
    assert found == pytest.approx({"a": 0.15, "b": 0.45, "c": 0.1, "d": 0.3})
    assert within_groups(p, {}, {"a": "g"}, {"g": (0.0, 1.0)}) == pytest.approx(p)


def test_groups_of_few_datasets_share_their_noise_though_all_are_probed():
    groups = {name: "odd" if i % 2 else "even" for i, name in enumerate(NAMES[:6])}
    balancer = many(names=NAMES[:6], every=1, steps=None, groups=groups)
    for _ in range(3):
        update = balancer.step()
    assert update.probed == NAMES[:6]
    assert 0 <= update.signal <= 1
