"""The balancer: Algorithm 1, the default rule with its plan, limits and groups, and when updates come."""

import copy
import math

import pytest
import torch
from assertions import assert_order_invariant
from torch import nn
from torch.utils.data import DataLoader
from toy_balancers import DEV, MANY, MANY_DEV, NAMES, SIZES, balancer_of, many
from toys import Everything, batches, dataset, loss, losses, mlp, train_step

from multidds import Balancer, Budget, Limits, Mixture, Probes, batches_of, interleave, reference
from multidds.mixture import Replay
from multidds.rewards import Cosine, FromTable, MeanSlope, MovingAverage, StabilizedCosine
from multidds.rules import Evidence, RelevancePlan, Scorer, Training

DEFAULT_RULE = "the default rule starts from its plan and follows what its probes measure, by the documented formula"
LIMITS = "bounds of shares and of passes hold for every rule"


# ------------------------------------------------------------------------------------------ the paper


@pytest.mark.claim(
    "The method",
    "the fast code equals Algorithm 1, MultiDDS-S and the moving average, to 1e-9, for every reward, "
    "priority, rule and step-ahead",
)
@pytest.mark.parametrize("kind", [Cosine, StabilizedCosine, MovingAverage])
@pytest.mark.parametrize("priority", ["regular", "low", "high", {"x": 3.0, "z": 1.0}])
@pytest.mark.parametrize("ahead", [None, 0.001, 0.3])
@pytest.mark.parametrize("rule", ["sum", "policy"])
def test_an_update_is_algorithm_1(kind, priority, ahead, rule):
    """Three updates with SGD steps between them, against the naive version, in float64."""
    model, train, dev = mlp(), batches(NAMES, 2), batches(DEV, 2, seed=1)
    options = {"priority": priority, "rule": Scorer(lr=0.7, rule=rule, floor=0), "probes": Probes(batches=2)}
    balancer = balancer_of(model, train, dev, reward=kind(ahead=ahead), **options)
    naive = copy.deepcopy(model)
    psi = {i: math.log(balancer.mixture[i]) for i in NAMES}
    averages = None
    for number in range(3):
        weights = {"x": 0.75, "y": 0.0, "z": 0.25}
        if isinstance(priority, str):
            weights = reference.priority(priority, naive, loss, dev)
        if kind is MovingAverage:  # never observed: over the probe gradients of successive updates
            fresh = {i: reference.gradient(naive, loss, train[i]) for i in NAMES}
            share = 0.1 / (1 - 0.9 ** (number + 1))  # the weights of an average sum to 1
            averages = {i: share * fresh[i] + ((1 - share) * averages[i] if averages else 0) for i in NAMES}
        expected = reference.rewards(naive, loss, train, dev, weights, kind is StabilizedCosine, ahead, averages)
        psi = reference.scorer_step(psi, expected, 0.7, weighted_by_p=rule == "policy")
        update = balancer.step()
        assert update.step == number + 1
        assert update.rewards == pytest.approx(expected, abs=1e-9)
        assert update.weights == pytest.approx(weights, abs=1e-12)
        assert update.mixture == pytest.approx(reference.softmax(psi), abs=1e-9)
        assert update.mixture == balancer.mixture.probabilities
        for m in (model, naive):
            train_step(m, 50 + number)


@pytest.mark.claim("The method", "the order of datasets does not matter")
def test_datasets_in_another_order_give_the_same_mixture():
    """With dropout, shuffled loaders and functions: nothing random may come from a position in a list."""
    data = {name: dataset(20, seed=i) for i, name in enumerate("abcd")}
    sizes = {"a": 1, "b": 2, "c": 3, "d": 4}

    def updates(names):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(4, 9), nn.Dropout(0.5), nn.Linear(9, 3)).double()
        balancer = balancer_of(
            model,
            {name: DataLoader(data[name], batch_size=6, shuffle=True) for name in names},
            {name: batches_of(data[name], 6) for name in reversed(names)},
            Mixture.proportional({name: sizes[name] for name in names}),
            probes=Probes(batches=2),
        )
        return [(update.rewards, update.mixture) for update in (balancer.step() for _ in range(3))]

    assert_order_invariant(updates, "abcd", tolerance=1e-12)


@pytest.mark.claim(
    "The method",
    "an update that looks at a part: its rewards; every set within a bound; exactly unbiased over the "
    "places of the points; order; mid-rotation resume; two processes",
)
@pytest.mark.parametrize("reward", [StabilizedCosine(), MeanSlope(losses)])
def test_many_datasets_in_another_order_give_the_same_mixture(reward):
    def updates(names):
        balancer = many(names, MANY_DEV if names == list(MANY) else MANY_DEV[::-1], reward=reward)
        done = [balancer.update() for _ in range(3)]
        return [(sorted(update.probed), update.rewards, update.noise, update.mixture) for update in done]

    assert_order_invariant(updates, MANY)


# ------------------------------------------------------------------------------------------ the default rule


@pytest.mark.claim("The method", DEFAULT_RULE)
def test_the_default_follows_what_its_probes_measure():
    """Rewards and relevance of an update are those of the naive reference, and the mixture is the plan by them."""
    model, train, dev = mlp(), batches(NAMES, 4), batches(DEV, 4, seed=1)
    options = {"every": 1, "steps": 10, "examples_per_step": 30, "probes": Probes(average=0)}
    balancer = Balancer(Mixture.proportional(SIZES), model, loss, train=train, dev=dev, **options)
    update = balancer.step()
    drawn = [{name: b[:2] for name, b in given.items()} for given in (train, dev)]
    rewards = reference.rewards(model, loss, *drawn, dict.fromkeys(DEV, 1 / 3), stabilized=True)
    assert update.rewards == pytest.approx(rewards, abs=1e-9)
    rule = RelevancePlan().start(
        Training(Mixture.proportional(SIZES).probabilities, dict.fromkeys(DEV, 1 / 3), SIZES, 300.0)
    )
    assert balancer.start == pytest.approx(rule.mixture)
    halves = [
        {
            k: {
                i: reference.cosine(
                    *(reference.gradient(model, loss, g[n][j : j + m]) for g, n in ((drawn[1], k), (drawn[0], i)))
                )
                for i in NAMES
            }
            for k in DEV
        }
        for j, m in ((0, 1), (1, 1), (0, 2))
    ]
    relevance = {k: {i: (halves[2][k][i], abs(halves[0][k][i] - halves[1][k][i]) / 2) for i in NAMES} for k in DEV}
    evidence = Evidence(
        rewards=rewards,
        relevance=relevance,
        weights=dict.fromkeys(DEV, 1 / 3),
        passes={name: Mixture.proportional(SIZES)[name] for name in NAMES},
    )
    assert update.mixture == pytest.approx(rule.step(evidence), abs=0.02)  # sketches


@pytest.mark.claim("The method", DEFAULT_RULE)
def test_the_same_evidence_at_every_update_is_signal():
    train, dev = ({name: [b[0]] * 2 for name, b in given.items()} for given in (batches(NAMES), batches(DEV, seed=1)))
    balancer = balancer_of(None, train, dev, rule=RelevancePlan())
    updates = [balancer.step() for _ in range(20)]
    assert updates[-1].signal > 0.9
    assert updates[-1].drift == updates[-1].learned > 0.02  # the plan is the prior
    assert updates[-1].unlearned == 0
    distance = sum(abs(updates[-1].mixture[i] - SIZES[i] / 100) for i in NAMES) / 2
    assert updates[-1].drift == pytest.approx(distance)


def planning(**options):
    options = {
        "dev": batches(NAMES, 4, seed=1),
        "steps": 10,
        "examples_per_step": 30,
        "rule": RelevancePlan(),
        **options,
    }
    return balancer_of(**options)


def plan_by_names(**options):
    return Mixture.planned(SIZES, 300.0, **options).probabilities


@pytest.mark.claim("The method", DEFAULT_RULE)
def test_with_sizes_and_length_training_starts_with_the_plan_and_learns_from_there():
    balancer, plan = planning(), plan_by_names()
    assert balancer.mixture.probabilities == balancer.start == pytest.approx(plan)
    assert plan["a"] > 0.15  # of a dataset that is a tenth of all
    update = [balancer.step() for _ in range(3)][-1]
    assert update.learned > 0
    assert update.prior == Mixture.proportional(SIZES).probabilities
    assert update.unlearned == pytest.approx(sum(abs(plan[name] - update.prior[name]) for name in NAMES) / 2)
    assert planning(limits=Limits(bounds={"a": (0.0, 0.12)})).mixture["a"] == pytest.approx(0.12)


@pytest.mark.claim("The method", DEFAULT_RULE)
def test_the_plan_serves_the_dev_sets_as_their_priority_says():
    assert planning(priority={"a": 3, "b": 1, "c": 1}).mixture["a"] > plan_by_names()["a"]
    only = planning(priority={"a": 1})  # the others count nothing
    assert only.mixture.probabilities == planning(priority={"a": 1, "b": 0, "c": 0}).mixture.probabilities
    assert only.mixture.probabilities == pytest.approx(plan_by_names(weights={"a": 1, "b": 0, "c": 0}))


@pytest.mark.parametrize(
    "options",
    [
        {"steps": None},
        {"examples_per_step": None},
        {"mixture": Mixture(Mixture.proportional(SIZES).probabilities)},  # of unknown sizes
        {"rule": Scorer()},
    ],
)
def test_without_anything_to_plan_by_training_starts_at_the_prior(options):
    balancer = planning(**options)
    assert balancer.mixture.probabilities == pytest.approx(Mixture.proportional(SIZES).probabilities)
    assert balancer.step().unlearned == pytest.approx(0)


# ------------------------------------------------------------------------------------------ rules, limits, groups


class Winner:
    """A rule of a user: half of the prior, and half for the dataset of the highest reward so far."""

    needs_errors = False

    def start(self, training):
        return WinnerState(dict(training.prior))


class WinnerState:
    signal = math.nan

    def __init__(self, prior):
        self.mixture, self.best, self.evidence = prior, dict.fromkeys(prior, -math.inf), []

    def relevance(self):
        return None

    def step(self, evidence):
        self.evidence.append(evidence)
        self.best = {name: max(best, evidence.rewards[name]) for name, best in self.best.items()}
        winner = max(self.best, key=self.best.get)
        return {name: p / 2 + (name == winner) / 2 for name, p in self.mixture.items()}

    def notes(self, evidence):
        return (f"of {len(evidence.rewards)} rewards",)

    def state_dict(self):
        return {"best": self.best}

    def load_state_dict(self, state):
        self.best = dict(state["best"])


def test_a_rule_of_a_user_moves_the_mixture_and_resumes():
    balancer, other = planning(rule=Winner()), planning(rule=Winner())
    update = balancer.step()
    winner = max(update.rewards, key=update.rewards.get)
    prior = Mixture.proportional(SIZES).probabilities
    assert update.mixture == pytest.approx({name: p / 2 + (name == winner) / 2 for name, p in prior.items()})
    assert update.notes == ("of 3 rewards",)
    assert update.noise == {}
    other.load_state_dict(balancer.state_dict())
    assert other.step().mixture == balancer.step().mixture


@pytest.mark.parametrize("needs_errors", [False, True])
@pytest.mark.parametrize("groups", [None, {"a": "g", "b": "g"}])
def test_the_evidence_of_a_rule_has_what_was_measured(needs_errors, groups):
    rule, kept = Winner(), []
    rule.needs_errors = needs_errors
    rule.start = lambda training: kept.append(WinnerState(dict(training.prior))) or kept[-1]
    options = {"reward": StabilizedCosine(table="exact"), "groups": groups, "examples_per_step": 20}
    update = balancer_of(rule=rule, **options).step()
    (evidence,) = kept[0].evidence
    assert evidence.rewards == update.rewards
    assert set(evidence.errors) == (set(NAMES) if needs_errors or groups else set())
    assert (evidence.weights, evidence.train_losses) == (update.weights, update.train_losses)
    assert evidence.dev_losses == update.dev_losses
    assert evidence.passes == pytest.approx({name: update.before[name] * 20 / SIZES[name] for name in NAMES})
    if not needs_errors:
        assert evidence.relevance is None
        return
    cosines = update.alignment.cosines()
    for row, k in enumerate(DEV):
        for column, i in enumerate(NAMES):
            cosine, error = evidence.relevance[k][i]
            assert cosine == pytest.approx(cosines[row, column].item(), abs=0.02)
            assert error >= 0


@pytest.mark.parametrize("rule", [Scorer(), Scorer.authors(), RelevancePlan(), Winner()])
@pytest.mark.parametrize("reward", [StabilizedCosine(), MeanSlope(losses)])
def test_every_rule_learns_from_parts(rule, reward):
    balancer = many(rule=rule, reward=reward, every=Budget(0.4 if reward.losses is None else 4.0))
    for _ in range(4):
        update = balancer.update()
    assert update.skipped is None
    assert update.learned > 0
    assert math.fsum(update.mixture.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    "options", [{"reward": Cosine(ahead=0.1)}, {"reward": MovingAverage()}, {"probes": Probes(batches=1)}]
)
def test_the_default_rule_learns_from_rewards_if_relevance_is_not_measured(options):
    balancer = balancer_of(rule=RelevancePlan(), **options)
    for _ in range(4):
        update = balancer.step()
    assert update.learned > 0
    assert update.relevance is None
    first, *_, last = sorted(NAMES, key=lambda name: update.rewards[name])
    assert update.mixture[first] / update.prior[first] < update.mixture[last] / update.prior[last]


@pytest.mark.claim("The method", LIMITS)
@pytest.mark.parametrize("rule", [RelevancePlan(), Scorer(lr=5.0), Winner()])
def test_bounds_hold_for_every_rule(rule):
    balancer = balancer_of(limits=Limits(bounds={"c": (0.7, 0.75), "a": (0.0, 0.05)}), rule=rule)
    for _ in range(3):
        mixture = balancer.step().mixture
        assert 0.7 - 1e-9 <= mixture["c"] <= 0.75 + 1e-9
        assert mixture["a"] <= 0.05 + 1e-9


@pytest.mark.claim("The method", LIMITS)
@pytest.mark.parametrize("rule", [RelevancePlan(), Scorer(lr=5.0), Winner()])
def test_no_dataset_has_more_passes_than_allowed(rule):
    options = {"steps": 60, "examples_per_step": 10, "limits": Limits(max_passes={"a": 4.0}), "rule": rule}
    balancer = balancer_of(mixture=Mixture.uniform({"a": 10, "b": 300, "c": 600}), every=3, **options)
    drawn = 0.0
    for _ in range(60):
        drawn += balancer.mixture["a"] * 10
        balancer.step()
    assert 30 < drawn <= 40 + 1e-6


def test_the_share_of_a_group_can_be_bounded():
    groups = {name: "odd" if i % 2 else "even" for i, name in enumerate(MANY)}
    limits = Limits(bounds={"odd": (0.2, 0.2), "d00": (0.3, 1.0)})
    balancer = many(groups=groups, limits=limits, rule=RelevancePlan())
    for _ in range(3):
        mixture = balancer.update().mixture
    assert math.fsum(p for name, p in mixture.items() if groups[name] == "odd") == pytest.approx(0.2)
    assert mixture["d00"] >= 0.3 - 1e-12
    assert math.fsum(mixture.values()) == pytest.approx(1)


def test_groups_shrink_rewards_towards_each_other_though_all_are_probed():
    groups = {name: "odd" if i % 2 else "even" for i, name in enumerate(MANY[:6])}
    plain, grouped = (many(MANY[:6], every=1, steps=None, groups=g) for g in (None, groups))
    one, other = plain.step(), grouped.step()
    assert other.probed == MANY[:6]
    spreads = [max(update.rewards.values()) - min(update.rewards.values()) for update in (one, other)]
    assert spreads[1] < 0.9 * spreads[0]
    assert 0 <= other.signal <= 1


# ------------------------------------------------------------------------------------------ when and what


def test_an_update_comes_after_every_mth_step_the_prior_until_then():
    balancer = balancer_of(every=3)
    prior = balancer.mixture.probabilities
    assert [balancer.step() for _ in range(2)] == [None, None]
    assert (balancer.mixture.probabilities, balancer.steps_until_update) == (prior, 1)
    assert balancer.step().step == 3
    assert balancer.mixture.probabilities != prior
    assert [balancer.step() is None for _ in range(4)] == [True, True, False, True]
    assert balancer.update().step == 7  # now, and no step is counted
    assert balancer.steps_until_update == 2


def test_a_step_whose_update_raises_is_not_counted():
    broken = []

    def compute(model, b):
        if broken:
            raise OSError("no more memory")
        return loss(model, b)

    balancer = balancer_of(every=2, compute=compute)
    balancer.step()
    broken.append(1)
    with pytest.raises(OSError, match="no more memory"):
        balancer.step()
    broken.clear()
    assert balancer.step().step == 2


def test_a_frozen_balancer_counts_but_moves_nothing_any_more():
    balancer, other = balancer_of(), balancer_of()
    balancer.step()
    before = balancer.mixture.probabilities
    balancer.freeze()
    assert [balancer.step() for _ in range(3)] == [None] * 3
    assert balancer.mixture.probabilities == before
    other.load_state_dict(balancer.state_dict())
    assert other.step() is None
    assert other.steps_until_update > 10**9
    assert repr(other).startswith("Balancer(frozen at step 5, an update at every step; 3 datasets: c 6")


@pytest.mark.claim("The method", "a probe is invisible")
def test_updates_due_after_the_end_leave_training_as_it_is_without():
    def train(with_balancer):
        torch.manual_seed(0)
        model = Everything()
        mixture = Mixture.proportional(SIZES)
        data = {name: dataset(20, seed=i, dtype=torch.float32) for i, name in enumerate(NAMES)}
        loaders = {name: DataLoader(d, batch_size=5, shuffle=True) for name, d in data.items()}
        optimizer = torch.optim.Adam(p for p in model.parameters() if p.requires_grad)
        balancer = balancer_of(model, loaders, loaders, mixture, every=1000) if with_balancer else None
        for _, (_, b) in zip(range(12), interleave(loaders, mixture, seed=1), strict=False):
            loss(model, b).backward()
            optimizer.step()
            optimizer.zero_grad()
            if balancer is not None:
                balancer.step()
        return model.state_dict()

    plain, balanced = train(False), train(True)
    assert all(torch.equal(plain[key], balanced[key]) for key in plain)


def test_priority_and_validation_losses_may_change_between_updates():
    balancer = balancer_of(priority="low")
    balancer.dev_losses = {"x": 9.0, "y": 1.0, "z": 5.0}
    assert balancer.step().weights == {"x": 0.5, "y": 0.0, "z": 0.5}
    balancer.priority = "high"
    assert balancer.step().weights == {"x": 0.0, "y": 0.5, "z": 0.5}
    with pytest.raises(ValueError, match="dev_losses: 'z'"):
        balancer.dev_losses = {"x": 1.0, "y": 2.0}
    assert (balancer.priority, balancer.dev_losses["y"]) == ("high", 1.0)


def test_the_dev_sets_may_have_another_loss_than_training():
    def accuracy_lost(model, b):
        x, y = b
        return -model(x).softmax(-1).gather(1, y[:, None]).mean()

    model, train, dev = mlp(), batches(NAMES), batches(DEV, seed=1)
    update = balancer_of(model, train, dev, probes=Probes(dev_loss=accuracy_lost), priority="low").step()
    weights = reference.priority("low", model, loss, dev)  # ranked by the loss
    assert update.weights == pytest.approx(weights)
    for name in NAMES:
        t = reference.gradient(model, loss, train[name])
        cosines = {k: reference.cosine(reference.gradient(model, accuracy_lost, dev[k]), t) for k in DEV}
        assert update.rewards[name] == pytest.approx(sum(weights[k] * cosines[k] for k in DEV))
    assert update.dev_losses["x"] == pytest.approx(accuracy_lost(model, dev["x"][0]).item())


def test_only_the_given_parameters_count():
    model = mlp()
    part = balancer_of(model, probes=Probes(params=model[2].parameters())).step()
    model[0].requires_grad_(False)
    assert part.rewards == pytest.approx(balancer_of(model).step().rewards, abs=1e-12)


@pytest.mark.parametrize("where", ["train", "dev"])
@pytest.mark.parametrize("rule", [Scorer(optimizer=torch.optim.Adam), RelevancePlan()])
@pytest.mark.parametrize("groups", [None, {"a": "g"}])
def test_what_is_not_finite_never_reaches_the_mixture(where, rule, groups):
    train, dev = batches(NAMES), batches(DEV, seed=1)
    x, _ = (train if where == "train" else dev)[{"train": "b", "dev": "y"}[where]][0]
    balancer = balancer_of(None, train, dev, rule=rule, groups=groups)
    before = balancer.step().mixture
    state = balancer.state_dict()
    x[0, 0] = math.nan
    update = balancer.step()
    assert {"train": "dataset 'b'", "dev": "dev set 'y'"}[where] in update.skipped
    assert update.mixture == before == balancer.mixture.probabilities
    assert [balancer.state_dict()[key] == state[key] for key in ("rule", "memory", "mixture")] == [True] * 3
    x[0, 0] = 0.0
    assert balancer.step().skipped is None


def test_rewards_too_large_for_any_probabilities_are_skipped():
    def huge(alignment, weights):
        return torch.tensor([1e308, 1e308, 0.0], dtype=torch.float64)

    balancer = balancer_of(reward=FromTable(huge, sketch=16), rule=Scorer())
    update = balancer.step()
    assert "no finite probabilities" in update.skipped
    assert update.mixture == update.before


def test_a_constant_reward_is_the_control_experiment():
    def constant(alignment, weights):
        return torch.full((3,), 0.5)

    scorer = balancer_of(reward=FromTable(constant, sketch=16), rule=Scorer(lr=1))
    for _ in range(100):
        drifted = scorer.step()
    assert drifted.mixture == pytest.approx(dict.fromkeys(NAMES, 1 / 3), abs=1e-6)


def test_the_history_is_bounded_and_feeds_a_replay():
    balancer = balancer_of(every=2, reward=StabilizedCosine(table=16))
    for _ in range(240):
        balancer.step()
    assert 50 <= len(balancer.history) <= 100  # of 120, evenly, and always the first and the last
    assert balancer.history[0].step == 2
    assert balancer.history[-1].step == 240
    assert balancer.history[0].alignment.dev_train.shape == (3, 3)  # small enough to be kept
    mixture = Mixture.proportional(SIZES)
    replay = Replay(mixture, [(update.step, update.mixture) for update in balancer.history])
    for _ in range(240):
        replay.step()
    assert mixture.probabilities == balancer.mixture.probabilities
