"""The balancer: Algorithm 1, the default rule with its plan, rules of users, limits, and when updates come."""

import copy
import math
from dataclasses import dataclass, replace

import pytest
import torch
from assertions import assert_equal, assert_order_invariant
from torch import nn
from torch.utils.data import DataLoader
from toy_balancers import DEV, MANY, MANY_DEV, NAMES, SIZES, balancer_of, many
from toys import Everything, batches, dataset, loss, mlp, train_step

from multidds import Balancer, Budget, Limits, Mixture, Probes, batches_of, interleave, reference
from multidds.mixture import Replay
from multidds.probes import Round
from multidds.probes.rotation import inclusion
from multidds.probes.table import table_of_parts
from multidds.rules import (
    Cosine,
    Findings,
    MovingAverage,
    RelevancePlan,
    Rule,
    Scorer,
    StabilizedCosine,
    State,
    Training,
    paper,
)

DEFAULT_RULE = "the default rule starts from its plan and follows what its probes measure, by the documented formula"
LIMITS = "bounds of shares and of passes hold for every rule"


# ------------------------------------------------------------------------------------------ the paper


@pytest.mark.claim(
    "The method",
    "the fast code equals Algorithm 1, MultiDDS-S and the moving average, to 1e-9, for every reward, "
    "priority, rule and step-ahead",
)
@pytest.mark.parametrize(
    "reward",
    [*(kind(ahead) for kind in (Cosine, StabilizedCosine) for ahead in (None, 0.001, 0.3)), MovingAverage()],
    ids=repr,
)
@pytest.mark.parametrize("priority", ["regular", "low", "high", {"x": 3.0, "z": 1.0}])
@pytest.mark.parametrize("rule", ["sum", "policy"])
def test_an_update_is_algorithm_1(reward, priority, rule):
    """Three updates with SGD steps between them, against the naive version, in float64."""
    model, train, dev = mlp(), batches(NAMES, 2), batches(DEV, 2, seed=1)
    stabilized, ahead = isinstance(reward, StabilizedCosine), getattr(reward, "ahead", None)
    options = {"priority": priority, "rule": Scorer(reward, lr=0.7, rule=rule, floor=0), "probes": Probes(batches=2)}
    balancer = balancer_of(model, train, dev, **options)
    naive = copy.deepcopy(model)
    psi = {i: math.log(balancer.mixture[i]) for i in NAMES}
    averages = None
    for number in range(3):
        weights = {"x": 0.75, "y": 0.0, "z": 0.25}
        if isinstance(priority, str):
            weights = reference.priority(priority, naive, loss, dev)
        if isinstance(reward, MovingAverage):  # never observed: over the probe gradients of successive updates
            fresh = {i: reference.gradient(naive, loss, train[i]) for i in NAMES}
            share = 0.1 / (1 - 0.9 ** (number + 1))  # the weights of an average sum to 1
            averages = {i: share * fresh[i] + ((1 - share) * averages[i] if averages else 0) for i in NAMES}
        expected = reference.rewards(naive, loss, train, dev, weights, stabilized, ahead, averages)
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
def test_many_datasets_in_another_order_give_the_same_mixture():
    def updates(names):
        balancer = many(names, MANY_DEV if names == list(MANY) else MANY_DEV[::-1])
        done = [balancer.update() for _ in range(3)]
        return [(sorted(update.probed), update.rewards, update.noise, update.mixture) for update in done]

    assert_order_invariant(updates, MANY)


# ------------------------------------------------------------------------------------------ the default rule


class Measured:
    """A probe whose table is given."""

    def __init__(self, table):
        self._table = table

    def table(self, round_):
        return self._table


@pytest.mark.claim("The method", DEFAULT_RULE)
def test_the_default_follows_what_its_probes_measure():
    """Rewards and relevance of an update are those of the naive reference, and the mixture is the plan by them."""
    model, train, dev = mlp(), batches(NAMES, 4), batches(DEV, 4, seed=1)
    prior, weights = Mixture.proportional(SIZES).probabilities, dict.fromkeys(DEV, 1 / 3)
    options = {"every": 1, "steps": 10, "examples_per_step": 30, "probes": Probes(average=0)}
    balancer = Balancer(Mixture(prior, SIZES), model, loss, train=train, dev=dev, **options)
    state = RelevancePlan().start(Training(prior, weights, SIZES, 300.0))
    assert balancer.start == pytest.approx(state.mixture)

    drawn = [{name: b[:2] for name, b in given.items()} for given in (train, dev)]
    halves = [
        {name: [reference.gradient(model, loss, [b]) / 2 for b in two] for name, two in given.items()}
        for given in reversed(drawn)
    ]
    losses = [{name: sum(loss(model, b).item() for b in two) / 2 for name, two in given.items()} for given in drawn]
    table = replace(table_of_parts(*halves, shares=[0.5, 0.5]), train_losses=losses[0], dev_losses=losses[1])
    passes = {name: balancer.start[name] * 30 / SIZES[name] for name in NAMES}
    state.update(Measured(table), Round(0, 1, NAMES, weights, weights, passes))

    update = balancer.step()
    assert update.rewards == pytest.approx(reference.rewards(model, loss, *drawn, weights, stabilized=True), abs=1e-9)
    assert (update.train_losses, update.dev_losses) == (pytest.approx(losses[0]), pytest.approx(losses[1]))
    assert update.mixture == pytest.approx(state.mixture, abs=1e-6)
    assert_equal(update.relevance, state.relevance(), 1e-6)


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


# ------------------------------------------------------------------------------------------ rules and limits


@dataclass(frozen=True)
class Winner(Rule):
    """A rule of a user: half of the prior, and half for the dataset of the highest reward so far."""

    subsets = True

    def start(self, training):
        return WinnerState(dict(training.prior))


class WinnerState(State):
    def __init__(self, prior):
        self._rounds, self.mixture, self.best = [], prior, dict.fromkeys(prior, -1.0)

    def update(self, probe, round_):
        self._rounds.append(round_)
        rewards, _ = probe.table(round_).mean_cosines(round_.dev_sets)
        self.best = {name: max(best, rewards.get(name, -1.0)) for name, best in self.best.items()}
        winner = max(self.best, key=self.best.get)
        self.mixture = {name: p / 2 + (name == winner) / 2 for name, p in self.mixture.items()}
        return Findings(rewards, notes=(f"of {len(rewards)} rewards",))


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


def started(balancer):
    """The state of a balancer's rule."""
    return balancer._state


@pytest.mark.parametrize("options", [{}, {"examples_per_step": 20}])
def test_a_rule_is_given_the_round_with_weights_and_passes(options):
    balancer = balancer_of(rule=Winner(), every=3, priority={"x": 3.0, "z": 1.0}, **options)
    updates = [balancer.step() for _ in range(6)]
    first, second = started(balancer)._rounds
    assert [(each.number, each.step) for each in (first, second)] == [(0, 3), (1, 6)]
    assert first.datasets == NAMES
    assert first.weights == first.dev_sets == {"x": 0.75, "y": 0.0, "z": 0.25} == updates[2].weights
    if not options:
        assert first.passes == second.passes == {}
        return
    shares = [updates[i].before for i in (2, 5)]
    assert first.passes == pytest.approx({name: shares[0][name] * 60 / SIZES[name] for name in NAMES})
    assert second.passes == pytest.approx(
        {name: (shares[0][name] + shares[1][name]) * 60 / SIZES[name] for name in NAMES}
    )


@pytest.mark.claim(
    "The method",
    "an update that looks at a part: its rewards; every set within a bound; exactly unbiased over the "
    "places of the points; order; mid-rotation resume; two processes",
)
def test_the_weights_of_dev_sets_in_rotation_count_as_the_priority_says():
    weights = {name: 1.0 + 2 * (i % 2) for i, name in enumerate(MANY_DEV)}
    balancer = many(rule=Winner(), priority=weights)
    for _ in range(3):
        balancer.update()
    for round_ in started(balancer)._rounds:
        assert len(round_.datasets) == len(round_.dev_sets) == 16
        probabilities = inclusion(weights, 16)
        assert round_.dev_sets == pytest.approx({k: round_.weights[k] / probabilities[k] for k in round_.dev_sets})


@pytest.mark.parametrize(
    ("rule", "probed"), [(paper(), 40), (Scorer.authors(), 40), (RelevancePlan(), 16), (Winner(), 16)]
)
def test_every_rule_learns_from_many_datasets(rule, probed):
    balancer = many(rule=rule, every=Budget(0.4 if probed == 16 else 4.0))
    for _ in range(4):
        update = balancer.update()
    assert update.skipped is None
    assert len(update.probed) == len(update.rewards) == probed
    assert update.learned > 0
    assert math.fsum(update.mixture.values()) == pytest.approx(1)


@pytest.mark.parametrize("rule", [RelevancePlan(move=False), RelevancePlan(plan=False, move=False)])
def test_a_rule_that_only_watches_moves_nothing_and_proposes(rule):
    balancer = planning(rule=rule)
    moving = planning(rule=replace(rule, move=True))
    prior = Mixture.proportional(SIZES).probabilities
    assert balancer.mixture.probabilities == prior
    for _ in range(2):
        update, moved = balancer.step(), moving.step()
    assert update.mixture == balancer.mixture.probabilities == prior
    assert update.drift == update.learned == update.unlearned == 0
    assert update.proposed != prior
    assert moved.proposed == {}
    assert update.proposed.keys() == moved.mixture.keys()
    assert "would be" in str(update)


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
    limits = Limits(bounds={"odd": (0.2, 0.2), "d00": (0.3, 1.0)}, groups=groups)
    balancer = many(limits=limits)
    for _ in range(3):
        mixture = balancer.update().mixture
    assert math.fsum(p for name, p in mixture.items() if groups[name] == "odd") == pytest.approx(0.2)
    assert mixture["d00"] >= 0.3 - 1e-12
    assert math.fsum(mixture.values()) == pytest.approx(1)


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
def test_what_is_not_finite_never_reaches_the_mixture(where, rule):
    train, dev = batches(NAMES), batches(DEV, seed=1)
    x, _ = (train if where == "train" else dev)[{"train": "b", "dev": "y"}[where]][0]
    balancer = balancer_of(None, train, dev, rule=rule)
    before = balancer.step().mixture
    state = balancer.state_dict()
    x[0, 0] = math.nan
    update = balancer.step()
    assert {"train": "dataset 'b'", "dev": "dev set 'y'"}[where] in update.skipped
    assert update.mixture == before == balancer.mixture.probabilities
    assert [balancer.state_dict()[key] == state[key] for key in ("rule", "mixture")] == [True] * 2
    x[0, 0] = 0.0
    assert balancer.step().skipped is None


def test_rewards_too_large_for_any_probabilities_are_skipped():
    balancer = balancer_of(rule=Scorer(lambda probe, round_: {"a": 1e308, "b": 1e308, "c": 0.0}))
    update = balancer.step()
    assert "no finite probabilities" in update.skipped
    assert update.mixture == update.before


def test_a_constant_reward_is_the_control_experiment():
    scorer = balancer_of(rule=Scorer(lambda probe, round_: dict.fromkeys(round_.datasets, 0.5), lr=1))
    for _ in range(100):
        drifted = scorer.step()
    assert drifted.mixture == pytest.approx(dict.fromkeys(NAMES, 1 / 3), abs=1e-6)


def test_the_history_is_bounded_and_feeds_a_replay():
    balancer = balancer_of(every=2, rule=Scorer(table=16))
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


@pytest.mark.parametrize(
    "rule", [RelevancePlan(), Scorer(), Scorer(Cosine()), Scorer(Cosine(ahead=0.1)), Scorer(MovingAverage())]
)
def test_sparse_gradients_move_a_mixture_as_dense_ones_do(rule):
    found = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = nn.Embedding(10, 3, sparse=sparse).double()
        ids = {name: [torch.tensor([i, 2 * i, 5]), torch.tensor([i, 7])] for i, name in enumerate(NAMES)}
        balancer = balancer_of(model, ids, ids, compute=lambda model, batch: model(batch).square().mean(), rule=rule)
        found.append([balancer.step().mixture for _ in range(3)])
    assert_equal(found[1], found[0], 1e-12)


def test_complex_parameters_are_refused_by_name():
    class Rotated(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp()
            self.phase = nn.Parameter(torch.ones(3, dtype=torch.complex128))

        def forward(self, x):
            return (self.inner(x) * self.phase).real

    model = Rotated()
    with pytest.raises(ValueError, match="'phase'.*complex"):
        balancer_of(model)
    assert balancer_of(model, probes=Probes(params=list(model.inner.parameters()))).step().skipped is None


@pytest.mark.parametrize("rule", [RelevancePlan(), Scorer(table=16), Scorer(MovingAverage())])
def test_a_compiled_model_and_its_plain_twin_have_one_state(rule):
    plain, compiled = mlp(), mlp()
    compiled[0] = torch.compile(compiled[0], backend="eager")
    one, other = balancer_of(plain, rule=rule), balancer_of(torch.compile(compiled, backend="eager"), rule=rule)
    for balancer in (one, other):
        balancer.step()
    assert_equal(other.state_dict(), one.state_dict())
    other.load_state_dict(one.state_dict())
    assert_equal(other.step().mixture, one.step().mixture)
