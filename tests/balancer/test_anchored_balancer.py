"""A balancer with the anchored rule: MultiDDS-S rewards, an anchor that they tilt, and nothing to tune."""

import copy
import json
import logging
import math

import pytest
import reference
import torch
from torch import nn
from toys import batch, batches, loss, mlp

from multidds import Balancer, Mixture
from multidds.mixture.planned import planned
from multidds.rules import Anchored, Scorer

pytestmark = [
    pytest.mark.claim(
        "The method",
        "the default rule is the documented formula; noise comes from the halves of a probe; what is cut and "
        "what is not; resume; limits; pace",
    )
]

NAMES = ("a", "b", "c")
DEV = ("x", "y", "z")
SIZES = {"a": 10, "b": 30, "c": 60}


def anchored(model=None, train=None, dev=None, **options):
    train, dev = train or batches(NAMES, 4), dev or batches(DEV, 4, seed=1)
    options = {"every": 1, "batches": 4, "scorer": Anchored(), **options}
    return Balancer(Mixture.proportional(SIZES), model or mlp(), loss, train=train, dev=dev, **options)


def test_an_update_is_the_rule_written_naively():
    model, train, dev = mlp(), batches(NAMES, 4), batches(DEV, 4, seed=1)
    weights = dict.fromkeys(DEV, 1 / 3)
    balancer = anchored(model, train, dev)
    update = balancer.step()
    rewards = reference.rewards(model, loss, train, dev, weights, stabilized=True)
    assert update.rewards == pytest.approx(rewards, abs=1e-9)

    first, second = (
        reference.rewards(
            model, loss, {i: b[half] for i, b in train.items()}, {k: b[half] for k, b in dev.items()}, weights, True
        )
        for half in (slice(0, 4, 2), slice(1, 4, 2))
    )
    difference = {i: first[i] - second[i] for i in NAMES}
    centre = sum(difference.values()) / 3
    noise = {i: abs(d - centre) / 2 * math.sqrt(3 / 2) for i, d in difference.items()}
    assert update.noise == pytest.approx(noise, abs=0.02)  # of sketches

    prior = Mixture.proportional(SIZES)
    assert update.signal == 0  # one update alone may be an accident
    assert update.mixture == pytest.approx(prior.probabilities)

    shares, rounds = (1 / 3, 2 / 3), [update, balancer.update()]
    advantages = [standardised(one.rewards) for one in rounds]
    average = {i: sum(share * z[i] for share, z in zip(shares, advantages, strict=True)) for i in NAMES}
    factor = 5 / 9
    changes = sum(s * sum((z[i] - average[i]) ** 2 for i in NAMES) / 3 for s, z in zip(shares, advantages, strict=True))
    probes = sum(share * share_of_noise(one) for share, one in zip(shares, rounds, strict=True))
    noise_of_one = max(probes, (1 + changes / (1 - factor)) / 2)
    signal = max(0.0, 1 - noise_of_one * factor / (sum(z**2 for z in average.values()) / 3))
    update = rounds[1]
    assert update.signal == pytest.approx(signal)
    assert 0 < signal < 1
    tilted = {i: prior[i] * math.exp(0.5 * signal * average[i]) for i in NAMES}
    assert update.mixture == pytest.approx({i: p / sum(tilted.values()) for i, p in tilted.items()})
    assert update.drift == pytest.approx(sum(abs(update.mixture[i] - prior[i]) for i in NAMES) / 2)
    assert update.learned == update.drift  # the anchor is the prior
    assert update.probed == NAMES


def standardised(rewards):
    mean = sum(rewards.values()) / len(rewards)
    deviation = math.sqrt(sum((r - mean) ** 2 for r in rewards.values()) / len(rewards))
    return {name: (r - mean) / deviation for name, r in rewards.items()}


def share_of_noise(update):
    mean = sum(update.rewards.values()) / 3
    return min(1, sum(e**2 for e in update.noise.values()) / sum((r - mean) ** 2 for r in update.rewards.values()))


def test_with_sizes_and_length_training_starts_with_the_plan_and_tilts_it():
    options = {"dev": batches(NAMES, 4, seed=1), "sizes": SIZES, "examples": 300.0}
    balancer = anchored(**options)
    plan = planned(SIZES, 300.0)
    assert balancer.mixture.probabilities == pytest.approx(plan)
    assert plan["a"] > 0.15  # of a dataset that is a tenth of all
    tilting = anchored(**options)
    update = [tilting.step() for _ in range(3)][-1]
    assert update.learned > 0.02
    assert update.drift != update.learned
    assert anchored(**options, scorer=Anchored(strength=0.0)).step().mixture == pytest.approx(plan)
    weighted = anchored(**options, priority={"a": 3, "b": 1, "c": 1})
    assert weighted.mixture["a"] > plan["a"]
    only = anchored(**options, priority={"a": 1})  # the others count for nothing, as if they were given as 0
    assert only.mixture.probabilities == anchored(**options, priority={"a": 1, "b": 0, "c": 0}).mixture.probabilities
    partly = anchored(**options | {"dev": batches(("a", "b"), 4, seed=1)})
    assert partly.mixture["c"] == pytest.approx(1 / 3)  # of 0.6: there is no dev set of its own to plan by
    assert partly.mixture["a"] > 0.13
    bounded = anchored(**options, bounds={"a": (0.0, 0.12)})
    assert bounded.mixture["a"] == pytest.approx(0.12)


@pytest.mark.parametrize(
    "options",
    [
        {"sizes": SIZES, "examples": 300.0},  # the dev sets have names of their own
        {"dev": batches(NAMES, 4, seed=1), "sizes": SIZES},
        {"dev": batches(NAMES, 4, seed=1), "sizes": SIZES, "examples": 300.0, "scorer": Anchored(plan=False)},
    ],
)
def test_where_nothing_can_be_planned_the_anchor_is_the_prior(options):
    balancer = anchored(**options)
    assert balancer.mixture.probabilities == Mixture.proportional(SIZES).probabilities
    update = balancer.step()
    assert update.learned == update.drift


def test_it_is_the_default_and_rewards_of_the_paper_bring_its_rule():
    def moved(**options):
        train, dev = batches(NAMES, 4), batches(DEV, 4, seed=1)
        balancer = Balancer(Mixture.proportional(SIZES), mlp(), loss, train=train, dev=dev, every=1, **options)
        return [balancer.step() for _ in range(3)][-1]

    assert moved().mixture == moved(scorer=Anchored(), batches=2).mixture
    paper = moved(reward="multidds-s")
    assert paper.mixture == moved(reward="multidds-s", scorer=Scorer(), batches=1).mixture
    assert math.isnan(paper.signal)


def test_the_noise_of_equal_halves_is_nothing_and_what_lasts_is_signal():
    one = {name: [b[0], b[0]] for name, b in batches(NAMES).items()}
    dev = {name: [b[0], b[0]] for name, b in batches(DEV, seed=1).items()}
    balancer = anchored(train=one, dev=dev, batches=2)
    update = [balancer.step() for _ in range(20)][-1]  # the same every time
    assert list(update.noise.values()) == pytest.approx([0.0] * 3, abs=1e-6)
    assert update.signal > 0.99


def test_one_batch_has_no_halves_so_its_noise_is_not_known():
    update = anchored(batches=1).step()
    assert update.noise == {}
    assert update.skipped is None


def test_resume_is_exact():
    def run(model, balancer, start, stop):
        seen = []
        for step in range(start, stop):
            loss(model, batch(50 + step)).backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.3 * p.grad
                    p.grad = None
            if update := balancer.step():
                seen.append((update.mixture, update.rewards, update.noise, update.signal))
        return seen

    options = {"every": 2, "sizes": SIZES, "examples": 200.0, "steps": 40, "max_passes": 5.0}
    model = mlp()
    expected = run(model, anchored(model, **options), 0, 12)
    model = mlp()
    first = anchored(model, **options)
    got = run(model, first, 0, 5)
    model = copy.deepcopy(model)
    second = anchored(model, **options, seed=9)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert got + run(model, second, 5, 12) == expected


def test_a_state_of_another_rule_is_refused():
    with pytest.raises(ValueError, match="the state is of another rule"):
        anchored().load_state_dict(anchored(scorer=Scorer()).state_dict())
    with pytest.raises(ValueError, match="the state is of another rule"):
        anchored(scorer=Scorer()).load_state_dict(anchored().state_dict())


def test_a_frozen_balancer_counts_but_moves_nothing_any_more():
    balancer = anchored()
    balancer.step()
    before = balancer.mixture.probabilities
    balancer.freeze()
    assert [balancer.step() for _ in range(3)] == [None] * 3
    assert balancer.mixture.probabilities == before
    other = anchored()
    other.load_state_dict(balancer.state_dict())
    assert other.step() is None
    assert other.steps_until_update > 10**9


@pytest.mark.parametrize("scorer", [Anchored(), Scorer(lr=5.0)])
def test_bounds_hold_for_every_rule(scorer):
    balancer = anchored(bounds={"c": (0.7, 0.75), "a": (0.0, 0.05)}, scorer=scorer)
    for _ in range(3):
        mixture = balancer.step().mixture
        assert 0.7 - 1e-9 <= mixture["c"] <= 0.75 + 1e-9
        assert mixture["a"] <= 0.05 + 1e-9


@pytest.mark.parametrize("scorer", [Anchored(), Scorer(lr=5.0)])
def test_no_dataset_is_gone_through_more_often_than_allowed(scorer):
    sizes, steps, per_step = {"a": 10, "b": 300, "c": 600}, 60, 10
    balancer = Balancer(
        Mixture.uniform(NAMES), mlp(), loss, train=batches(NAMES, 2), dev=batches(DEV, 2, seed=1), every=3,
        sizes=sizes, examples=steps * per_step, steps=steps, max_passes={"a": 4.0}, scorer=scorer,
    )  # fmt: skip
    drawn = 0.0
    for _ in range(steps):
        drawn += balancer.mixture["a"] * per_step
        balancer.step()
    assert drawn <= 40 + 1e-6


def test_the_dev_sets_may_want_something_else_than_training():
    def accuracy_lost(model, b):
        x, y = b
        return -model(x).softmax(-1).gather(1, y[:, None]).mean()

    model, train, dev = mlp(), batches(NAMES), batches(DEV, seed=1)
    update = anchored(model, train, dev, dev_loss=accuracy_lost, batches=1, priority="low").step()
    weights = reference.priority("low", model, loss, dev)  # ranked by the loss, not by what the dev sets want
    assert update.weights == pytest.approx(weights)
    for name in NAMES:
        t = reference.gradient(model, loss, train[name])
        cosines = {k: reference.cosine(reference.gradient(model, accuracy_lost, dev[k]), t) for k in DEV}
        assert update.rewards[name] == pytest.approx(sum(weights[k] * cosines[k] for k in DEV))
    assert update.dev_losses["x"] == pytest.approx(accuracy_lost(model, dev["x"][0]).item())


def test_the_budget_says_how_often_and_one_line_says_what_was_chosen(caplog):
    with caplog.at_level(logging.INFO, "multidds"):
        balancer = anchored(every=None, batches=None, steps=30_000, budget=0.02)
    assert balancer.every == 600  # 2 batches of 3 + 3 sets are 12 passes
    assert "an update every 600 steps, 50 in all, 12 probe batches each (2.0%)" in caplog.text
    assert anchored(every=None, batches=None, steps=300_000).every == 2400  # 8 batches: more would not be better


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"every": 500, "steps": 500}, "500 steps have 1 update (after its last step, where it changes nothing) with "
         "every=500; set every=25 for 20"),
        ({"every": 300, "steps": 1000}, "1,000 steps have 3 updates with every=300; set every=50 for 20"),
        ({"every": None, "steps": 2000, "batches": 2}, "2,000 steps have 3 updates within budget=0.02; 10 need "
         "budget=0.06"),
    ],
)  # fmt: skip
def test_too_few_updates_are_said_with_what_to_set(caplog, options, sentence):
    anchored(**options)
    assert sentence in caplog.text


def test_a_budget_that_buys_no_update_is_a_warning(caplog):
    options = {"every": None, "steps": 100, "dev": batches(NAMES, 4, seed=1), "sizes": SIZES, "examples": 300.0}
    with caplog.at_level(logging.WARNING, "multidds"):
        balancer = anchored(**options)
    assert "100 steps have 0 updates within budget=0.02; 10 need budget=" in caplog.text
    assert balancer.mixture.probabilities == pytest.approx(planned(SIZES, 300.0))  # which is worth having
    assert not any(balancer.step() for _ in range(100))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0.0}, "budget must be positive"),
        ({"steps": 0}, "steps must be a whole number of at least 1"),
        ({"max_passes": 4.0}, "max_passes needs sizes, draws and steps"),
        ({"max_passes": {"d": 1.0}, "sizes": SIZES, "examples": 1.0, "steps": 1}, "max_passes: 'd' is unknown"),
        ({"sizes": {"a": 1, "b": 2}}, "sizes: 'c' is missing"),
        ({"sizes": {**SIZES, "a": 0}}, "must be positive, but 'a' is 0"),
        ({"bounds": {"a": (0.9, 0.1)}}, "bounds must be (low, high)"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
        anchored(**options)
    with pytest.raises(TypeError, match="dev_loss must be a function"):
        anchored(dev_loss=3)
    with pytest.raises(TypeError, match="scorer must be one of Scorer, Anchored, Exponentiated, Exp3"):
        anchored(scorer=nn.Linear(1, 1))
