"""The pace of updates: how often, how many probe batches, of which part, within which budget."""

import math
from itertools import pairwise

import pytest
from toy_balancers import MANY, MANY_DEV, balancer_of, many

from multidds import Budget
from multidds.balancer.pace import _FIRST, _LAST, MIN_SETS, pace_of
from multidds.rules import Cosine, MovingAverage, RelevancePlan, Scorer, paper

HOLDS = "a budget holds at any number of datasets; few datasets are probed whole"


def pace(datasets=3, dev_sets=3, every=Budget(), steps=None, batches=None, rule=RelevancePlan(), cost=1.0):  # noqa: B008
    return pace_of(datasets, dev_sets, every, steps, batches, rule, cost)


@pytest.mark.parametrize("word", ["share", "at_most"])
@pytest.mark.parametrize("share", [0, -0.1, 101, math.nan])
def test_a_share_that_buys_nothing_or_too_much_is_refused(word, share):
    with pytest.raises(ValueError, match=f"{word}.*{share}"):
        Budget(**{word: share})


@pytest.mark.parametrize(
    ("options", "every", "batches", "updates"),
    [
        ({"steps": 30_000}, 600, 2, 50),  # 2 batches of 3 + 3 sets are 12 passes: 2% of 600 steps
        ({"steps": 300_000}, 2400, 8, 125),  # more than 8 batches would not be better
        ({"steps": 30_000, "every": Budget(0.2)}, 240, 8, 125),
        ({"steps": 60_000, "rule": Scorer(Cosine(ahead=0.1))}, 1200, 2, 50),  # 3 + 3 * 3 gradients
        ({}, 600, 2, math.inf),
        ({"steps": 30_000, "cost": 0.5}, 600, 4, 50),
        ({"steps": 100_000, "cost": 1e-4}, 200, 8, 500),  # more would not bring more
        ({"every": 7, "steps": 70}, 7, 2, 10),
        ({"every": 7, "rule": paper()}, 7, 1, math.inf),
        ({"every": 7, "batches": 3}, 7, 3, math.inf),
    ],
)
def test_a_budget_buys_updates_and_batches(options, every, batches, updates):
    found = pace(**options)
    assert (found.every, found.batches, found.updates, found.part, found.at) == (every, batches, updates, None, ())


@pytest.mark.parametrize(
    ("options", "updates", "batches"),
    [
        ({"steps": 30_000, "batches": 4}, 25, 4),
        ({"steps": 2000}, 7, 7),  # a short training makes at least seven, as large as 15% of it buys them
        ({"steps": 400}, 5, 2),  # if 15% buys them
        ({"steps": 400, "cost": 0.25}, 7, 5),  # probe batches of a quarter of a step
        ({"steps": 400, "every": Budget(at_least=3)}, 3, 3),
        ({"steps": 400, "every": Budget(at_most=0.5)}, 7, 4),
        ({"steps": 12, "cost": 1e-3}, 12, 2),
        ({"steps": 50}, 0, 2),
    ],
)
def test_distances_grow_if_updates_are_few(options, updates, batches):
    found, steps = pace(**options), options["steps"]
    assert (len(found.at), found.updates, found.batches, found.part) == (updates, updates, batches, None)
    assert not updates or found.share <= options.get("every", Budget()).at_most * 1.02
    assert all(0 < before < after < steps or steps == 12 for before, after in pairwise(found.at))
    if steps > 50:
        assert found.at[0] == pytest.approx(_FIRST * steps, abs=1)
        assert found.at[-1] == pytest.approx(_LAST * steps, abs=1)
        ratios = [after / before for before, after in pairwise(found.at)]
        assert max(ratios) / min(ratios) < 1.05


@pytest.mark.parametrize("options", [{"steps": 400}, {"steps": 400, "every": 70}, {"every": 70}])
def test_the_next_update_is_counted_from_any_step(options):
    found = pace(**options)
    expected = list(found.at) or list(range(70, 401, 70))
    apart = expected[-1] - expected[-2]
    expected += [expected[-1] + apart * i for i in range(1, 12)]  # after the planned end
    for done in range(1000):
        (following, *_) = (step for step in expected if step > done)
        assert found.until(done) == following - done
        if "steps" in options and done < 400:
            assert found.left(done) == sum(done < step <= 400 for step in expected)


def test_a_training_behind_its_planned_end_has_no_updates_left():
    pace = pace_of(3, 3, 5, 20, 1, paper())
    assert [pace.left(done) for done in (0, 14, 20, 25)] == [4, 2, 0, 0]


@pytest.mark.parametrize("rule", [RelevancePlan(), paper()])
def test_a_balancer_makes_its_updates_when_they_are_due(rule):
    balancer = balancer_of(rule=rule, steps=100, every=Budget(at_most=2.0), examples_per_step=4)
    due = [step for step in range(1, 101) if balancer.step() is not None]
    assert [update.step for update in balancer.history] == due
    assert len(due) == 7
    distances = [after - before for before, after in pairwise(due)]
    assert distances == sorted(set(distances))


@pytest.mark.claim("The method", HOLDS)
@pytest.mark.parametrize(("datasets", "dev_sets"), [(10_000, 10_000), (10_000, 1), (8, 5000), (100, 100)])
@pytest.mark.parametrize("steps", [None, 1000, 100_000, 10_000_000])
def test_the_budget_holds_at_any_number_of_datasets(datasets, dev_sets, steps):
    found = pace(datasets, dev_sets, steps=steps)
    assert found.share <= (0.0201 if found.updates >= Budget().at_least else 0.15)  # of a short training, more
    if steps == 10_000_000 and datasets == dev_sets == 10_000:
        assert found.updates == pytest.approx(50, abs=1)
    if found.part is None:
        assert found.updates >= Budget().at_least
        return
    assert found.part[0] <= datasets
    assert found.part[1] <= dev_sets
    assert sum(found.part) * 2 == found.passes
    assert sum(found.part) >= MIN_SETS


@pytest.mark.claim("The method", HOLDS)
def test_a_budget_that_buys_everything_is_spent_on_everything():
    few = many(MANY[:8], MANY_DEV[:8], steps=20_000, every=Budget())
    given = many(MANY[:8], MANY_DEV[:8], steps=None, every=few.every)
    assert few.every == 1666
    for _ in range(3):
        one, other = few.update(), given.update()
        assert one.probed == MANY[:8]
        assert (one.mixture, one.rewards, one.noise) == (other.mixture, other.rewards, other.noise)


def test_a_budget_that_does_not_is_spent_on_a_part():
    balancer = many()
    assert balancer.every == 160
    seen = set()
    for _ in range(3):
        update = balancer.update()
        assert len(update.probed) == len(update.dev_losses) == 16
        assert set(update.rewards) == set(update.noise) == set(update.probed)
        assert set(update.mixture) == set(MANY)
        seen |= set(update.probed)
    assert seen == set(MANY)


@pytest.mark.parametrize(
    ("options", "probed"),
    [
        ({}, 16),
        ({"every": 3}, 40),  # which is as the user says
        ({"steps": None, "every": Budget(0.02)}, 40),  # every 7,000 steps
        ({"steps": None, "every": Budget(0.005)}, 16),
        ({"rule": Scorer(Cosine(ahead=0.1))}, 40),
        ({"rule": Scorer(table=64)}, 40),
        ({"rule": Scorer(MovingAverage())}, 40),
    ],
)
def test_a_part_is_probed_if_everything_is_too_much_and_not_needed(options, probed):
    assert len(many(**options).update().probed) == probed
