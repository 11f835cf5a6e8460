import copy
import json
import logging
import math
import subprocess
import sys
import textwrap

import pytest
import reference
import torch
from assertions import assert_order_invariant, assert_resumes_exactly
from conftest import ROOT
from torch import nn
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from toys import Everything, batch, batches, dataset, loss, mlp

from multidds import Balancer, Mixture, batches_of, interleave, rewards
from multidds.mixture import Replay
from multidds.rules import Scorer

NAMES = ("a", "b", "c")
DEV = ("x", "y", "z")
SIZES = {"a": 1, "b": 3, "c": 6}


def balancer_of(train=None, dev=None, model=None, **kwargs):
    train = train if train is not None else batches(NAMES)
    dev = dev if dev is not None else batches(DEV, seed=1)
    mixture = kwargs.pop("mixture", None) or Mixture.proportional({name: SIZES.get(name, 1) for name in train})
    compute = kwargs.pop("loss", loss)
    if "reward" not in kwargs and "scorer" not in kwargs:
        kwargs["reward"] = "multidds-s"  # and with it the paper's rule; the default has tests of its own
    return Balancer(mixture, model or mlp(), compute, train=train, dev=dev, **{"every": 1, **kwargs})


# ------------------------------------------------------------------------------------------ the paper


@pytest.mark.claim(
    "The method",
    "the fast code equals Algorithm 1, MultiDDS-S and the moving average, to 1e-9, for every reward, "
    "priority, rule and step-ahead",
)
@pytest.mark.parametrize("reward", ["multidds", "multidds-s", "moving-average"])
@pytest.mark.parametrize("priority", ["regular", "low", "high", {"x": 3.0, "z": 1.0}])
@pytest.mark.parametrize("step_ahead", [None, 0.001, 0.3])
@pytest.mark.parametrize("rule", ["sum", "policy"])
def test_an_update_is_algorithm_1(reward, priority, step_ahead, rule):
    """Three updates with SGD steps between them, against the naive version, in float64."""
    model, train, dev = mlp(), batches(NAMES, 2), batches(DEV, 2, seed=1)
    balancer = balancer_of(
        train, dev, model, batches=2, reward=reward, priority=priority, step_ahead=step_ahead,
        scorer=Scorer(lr=0.7, rule=rule, floor=0),
    )  # fmt: skip
    naive = copy.deepcopy(model)
    psi = {i: math.log(balancer.mixture[i]) for i in NAMES}
    averages = None
    for number in range(3):
        weights = (
            reference.priority(priority, naive, loss, dev)
            if isinstance(priority, str)
            else {"x": 0.75, "y": 0.0, "z": 0.25}
        )
        if reward == "moving-average":  # never observed: over the probe gradients of successive updates
            fresh = {i: reference.gradient(naive, loss, train[i]) for i in NAMES}
            share = 0.1 / (1 - 0.9 ** (number + 1))  # the weights of an average sum to 1
            averages = {i: share * fresh[i] + ((1 - share) * averages[i] if averages else 0) for i in NAMES}
        expected = reference.rewards(naive, loss, train, dev, weights, reward == "multidds-s", step_ahead, averages)
        psi = reference.scorer_step(psi, expected, 0.7, weighted_by_p=rule == "policy")
        update = balancer.step()
        assert update.step == number + 1
        assert update.rewards == pytest.approx(expected, abs=1e-9)
        assert update.weights == pytest.approx(weights, abs=1e-12)
        assert update.mixture == pytest.approx(reference.softmax(psi), abs=1e-9)
        assert update.mixture == balancer.mixture.probabilities
        for m in (model, naive):  # train on
            loss(m, batch(50 + number)).backward()
            with torch.no_grad():
                for p in m.parameters():
                    p -= 0.5 * p.grad
                    p.grad = None


def test_moving_averages_are_over_the_gradients_seen_in_training():
    model, train, dev = mlp(), batches(NAMES, 5), batches(DEV, seed=1)
    balancer = balancer_of(train, dev, model, reward="moving-average", decay=0.7, every=100)
    averages = {}
    for j in range(4):
        for name in ("a", "b"):  # "c" is never observed, so it is probed
            g = reference.gradient(model, loss, [train[name][j]])
            averages[name] = 0.3 * g + 0.7 * averages.get(name, 0)
            model.zero_grad()
            loss(model, train[name][j]).backward()
            balancer.observe(name)
    model.zero_grad()
    averages["c"] = reference.gradient(model, loss, train["c"][:1])
    weights = dict.fromkeys(DEV, 1 / 3)
    expected = reference.rewards(model, loss, train, dev, weights, stabilized=False, averages=averages)
    update = balancer.update()
    assert update.rewards == pytest.approx(expected, abs=1e-9)
    assert list(update.train_losses) == ["c"]


@pytest.mark.claim("The method", "gradients that training has computed are not computed again")
def test_datasets_observed_in_training_cost_no_passes():
    """decay=0 keeps the newest gradient: the reward is then that of the batches that training has just seen."""
    model, train, dev = mlp(), batches(NAMES), batches(DEV, seed=1)
    passes = []

    def counted(model, b):
        passes.append(b)
        return loss(model, b)

    balancer = balancer_of(train, dev, model, loss=counted, reward="moving-average", decay=0.0, every=100)
    for name in NAMES:
        model.zero_grad()
        loss(model, batch(7)).backward()
        balancer.observe(name)  # forgotten: the next is newer
        model.zero_grad()
        loss(model, train[name][0]).backward()
        balancer.observe(name)
    model.zero_grad()
    update = balancer.update()
    assert [id(b) for b in passes] == [id(dev[name][0]) for name in DEV]
    assert update.train_losses == {}
    expected = reference.rewards(model, loss, train, dev, dict.fromkeys(DEV, 1 / 3), stabilized=False)
    assert update.rewards == pytest.approx(expected, abs=1e-9)


def test_a_non_finite_gradient_does_not_poison_a_moving_average():
    model, train = mlp(), batches(NAMES)
    balancer = balancer_of(train, None, model, reward="moving-average")
    loss(model, train["a"][0]).backward()
    balancer.observe("a")
    before = [t.clone() for t in balancer.state_dict()["tensors"].values()]
    model[0].bias.grad[1] = math.nan
    balancer.observe("a")
    after = balancer.state_dict()["tensors"].values()
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    model.zero_grad()
    assert balancer.step().skipped is None


def test_a_moving_average_is_the_weighted_mean_of_the_gradients():
    model, train = mlp(), batches(NAMES, 5)
    balancer = balancer_of(train, None, model, reward="moving-average", decay=0.8)
    gradients = []
    for j in range(5):
        model.zero_grad()
        loss(model, train["a"][j]).backward()
        gradients.append(torch.cat([p.grad.reshape(-1) for p in model.parameters()]))
        balancer.observe("a")
    weights = torch.tensor([0.8 ** (4 - j) for j in range(5)], dtype=torch.float64)
    expected = (weights[:, None] * torch.stack(gradients)).sum(0) / weights.sum()
    got = torch.cat([t.reshape(-1) for t in balancer.state_dict()["tensors"].values()])
    assert torch.allclose(got, expected, atol=1e-14)


def test_the_memory_of_moving_averages_is_stated_at_construction(caplog):
    with caplog.at_level(logging.WARNING, logger="multidds"):
        balancer_of(reward="moving-average")
    assert "'moving-average' keeps 3 gradients in memory (1.03 kB)" in caplog.text


def test_observing_is_free_for_the_other_rewards_and_refuses_unknown_names():
    balancer = balancer_of()
    balancer.observe("a")
    with pytest.raises(ValueError, match="Balancer.observe: 'q' is unknown; there are 'a', 'b', 'c'"):
        balancer.observe("q")
    averaging = balancer_of(reward="moving-average")
    with pytest.raises(ValueError, match="there are no gradients; call it after backward"):
        averaging.observe("a")


@pytest.mark.claim("The method", "scaling losses; K = 1")
def test_the_scale_of_losses_does_not_change_rewards():
    def scaled(factor, only=None):
        marked = batches(DEV, seed=1)["y"][0][0]

        def compute(model, b):
            mine = only is None or (b[0].shape == marked.shape and torch.equal(b[0], marked))
            return loss(model, b) * (factor if mine else 1.0)

        return compute

    for reward in ("multidds", "multidds-s"):
        plain = balancer_of(reward=reward).step().rewards
        assert balancer_of(reward=reward, loss=scaled(8.0)).step().rewards == pytest.approx(plain, abs=1e-12)
        one = balancer_of(reward=reward, loss=scaled(8.0, only="y")).step().rewards
        assert (one == pytest.approx(plain, abs=1e-12)) == (reward == "multidds-s")


@pytest.mark.claim("The method", "scaling losses; K = 1")
def test_with_one_dev_set_multidds_equals_multidds_s():
    dev = batches(["x"], seed=1)
    first, second = (balancer_of(None, dev, reward=reward).step() for reward in ("multidds", "multidds-s"))
    assert first.rewards == pytest.approx(second.rewards, abs=1e-12)


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
            {name: DataLoader(data[name], batch_size=6, shuffle=True) for name in names},
            {name: batches_of(data[name], 6) for name in reversed(names)},
            model,
            mixture=Mixture.proportional({name: sizes[name] for name in names}),
            batches=2,
        )
        return [(update.rewards, update.mixture) for update in (balancer.step() for _ in range(3))]

    assert_order_invariant(updates, "abcd", tolerance=1e-12)


# ------------------------------------------------------------------------------------------ when and what


def test_an_update_comes_after_every_mth_step_the_prior_until_then():
    balancer = balancer_of(every=3)
    prior = balancer.mixture.probabilities
    assert [balancer.step() for _ in range(2)] == [None, None]
    assert balancer.mixture.probabilities == prior
    assert balancer.step().step == 3
    assert balancer.mixture.probabilities != prior
    assert [balancer.step() is None for _ in range(4)] == [True, True, False, True]


@pytest.mark.claim("The method", "a probe is invisible")
def test_updates_due_after_the_end_leave_training_as_it_is_without():
    def train(with_balancer):
        torch.manual_seed(0)
        model = Everything()
        mixture = Mixture.proportional(SIZES)
        data = {name: dataset(20, seed=i, dtype=torch.float32) for i, name in enumerate(NAMES)}
        loaders = {name: DataLoader(d, batch_size=5, shuffle=True) for name, d in data.items()}
        optimizer = torch.optim.Adam(p for p in model.parameters() if p.requires_grad)
        if with_balancer:
            balancer = Balancer(mixture, model, loss, train=loaders, dev=loaders, every=1000)
        for _, (_, b) in zip(range(12), interleave(loaders, mixture, seed=1), strict=False):
            loss(model, b).backward()
            optimizer.step()
            optimizer.zero_grad()
            if with_balancer:
                balancer.step()
        return model.state_dict()

    plain, balanced = train(False), train(True)
    assert all(torch.equal(plain[key], balanced[key]) for key in plain)


def test_low_and_high_rank_by_the_last_validation_when_there_was_one():
    balancer = balancer_of(priority="low")
    balancer.dev_losses = {"x": 9.0, "y": 1.0, "z": 5.0}
    assert balancer.step().weights == {"x": 0.5, "y": 0.0, "z": 0.5}
    balancer.priority = "high"
    update = balancer.step()
    assert update.weights == {"x": 0.0, "y": 0.5, "z": 0.5}
    assert set(update.dev_losses) == {"y", "z"}  # a dev set of weight 0 is not probed
    with pytest.raises(ValueError, match="Balancer.dev_losses: 'z' is missing"):
        balancer.dev_losses = {"x": 1.0, "y": 2.0}
    with pytest.raises(ValueError, match="must be finite, but 'y' is nan"):
        balancer.dev_losses = {"x": 1.0, "y": math.nan, "z": 1.0}


def test_with_a_table_dev_sets_of_weight_zero_are_probed_too():
    update = balancer_of(priority={"x": 1.0}, sketch="exact").step()
    assert update.alignment.dev_train.shape == (3, 3)
    assert set(update.dev_losses) == set(DEV)
    assert update.rewards == pytest.approx(balancer_of(priority={"x": 1.0}).step().rewards, abs=1e-12)


@pytest.mark.parametrize("step_ahead", [None, 0.1])
@pytest.mark.parametrize("sketch", ["exact", 2**12])
def test_a_reward_function_gets_the_table(step_ahead, sketch):
    dev = batches(DEV, seed=1)
    built_in = balancer_of(None, dev, step_ahead=step_ahead, reward="multidds-s").step()
    own = balancer_of(None, dev, step_ahead=step_ahead, sketch=sketch, reward=rewards.multidds_s).step()
    assert own.rewards == pytest.approx(built_in.rewards, abs=1e-9 if sketch == "exact" else 0.1)
    table = balancer_of(None, dev, step_ahead=step_ahead, sketch=sketch, reward="multidds-s").step()
    assert table.rewards == pytest.approx(built_in.rewards, abs=1e-12)  # exact, whatever the table is made of
    assert torch.equal(table.alignment.dev_train, own.alignment.dev_train)


def test_a_constant_reward_function_is_the_control_experiment():
    balancer = balancer_of(reward=lambda alignment, weights: torch.full((3,), 0.5), sketch=16, scorer=Scorer(lr=1))
    for _ in range(100):
        update = balancer.step()
    assert update.mixture == pytest.approx(dict.fromkeys(NAMES, 1 / 3), abs=1e-6)


def test_rewards_in_the_metric_of_adam_divide_the_training_gradient():
    model, train, dev = mlp(), batches(NAMES), batches(DEV, seed=1)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.8), eps=1e-3)
    for j in range(3):
        model.zero_grad()
        loss(model, batch(70 + j)).backward()
        optimizer.step()
    model.zero_grad()
    update = balancer_of(train, dev, model, optimizer=optimizer, sketch="exact").step()
    moment = torch.cat([optimizer.state[p]["exp_avg_sq"].reshape(-1) for p in model.parameters()])
    for column, i in enumerate(NAMES):
        t = reference.gradient(model, loss, train[i])  # as the fourth gradient that Adam sees
        t = t / (((0.8 * moment + 0.2 * t**2) / (1 - 0.8**4)).sqrt() + 1e-3)
        d = [reference.gradient(model, loss, dev[k]) for k in DEV]
        assert update.rewards[i] == pytest.approx(sum(reference.cosine(x, t) for x in d) / 3, abs=1e-9)
        assert update.alignment.train_norms[column] == pytest.approx(float(t.norm()))
    with pytest.raises(TypeError, match="needs Adam's second moment, which SGD does not have"):
        balancer_of(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1))
    with pytest.raises(ValueError, match=r"the optimizer does not have the parameter '0\.weight'"):
        balancer_of(model=model, optimizer=torch.optim.Adam(model[2].parameters()))


def test_the_history_is_bounded_and_feeds_a_replay():
    balancer = balancer_of(every=2, sketch=16)
    for _ in range(240):
        balancer.step()
    assert 50 <= len(balancer.history) <= 100  # of 120, evenly, and always the first and the last
    assert balancer.history[0].step == 2
    assert balancer.history[-1].step == 240
    assert balancer.history[0].alignment.dev_train.shape == (3, len(SIZES))  # small enough to be kept
    mixture = Mixture.proportional(SIZES)
    replay = Replay(mixture, [(update.step, update.mixture) for update in balancer.history])
    for _ in range(240):
        replay.step()
    assert mixture.probabilities == balancer.mixture.probabilities


# ------------------------------------------------------------------------------------------ trouble


@pytest.mark.parametrize("where", ["train", "dev"])
@pytest.mark.parametrize("what", [math.nan, math.inf])
@pytest.mark.parametrize("priority", ["regular", "low"])
def test_what_is_not_finite_never_reaches_the_mixture(where, what, priority):
    train, dev = batches(NAMES), batches(DEV, seed=1)
    x, _y = (train if where == "train" else dev)[{"train": "b", "dev": "y"}[where]][0]
    balancer = balancer_of(train, dev, priority=priority, scorer=Scorer(optimizer=torch.optim.Adam))
    before = balancer.step().mixture
    scorer = json.dumps(balancer.state_dict()["rule"])
    x[0, 0] = what
    update = balancer.step()
    assert "is not finite" in update.skipped
    assert {"train": "dataset 'b'", "dev": "dev set 'y'"}[where] in update.skipped
    ahead = balancer_of(train, dev, priority=priority, step_ahead=0.1).step()
    assert {"train": "dataset 'b'", "dev": "dev set 'y'"}[where] in ahead.skipped
    assert update.mixture == before == balancer.mixture.probabilities
    assert json.dumps(balancer.state_dict()["rule"]) == scorer
    x[0, 0] = 0.0
    assert balancer.step().skipped is None


def test_a_non_finite_custom_reward_is_skipped_a_wrong_shape_an_error():
    update = balancer_of(reward=lambda a, w: torch.tensor([0.0, math.nan, 1.0]), sketch=16).step()
    assert update.skipped == "the reward of dataset 'b' is not finite"
    with pytest.raises(ValueError, match=r"one number for each of the 3 datasets, but the shape is \(2,\)"):
        balancer_of(reward=lambda a, w: torch.zeros(2), sketch=16).step()
    update = balancer_of(reward=lambda a, w: torch.tensor([1e308, 1e308, 0.0], dtype=torch.float64), sketch=16).step()
    assert update.skipped == "the rewards gave no finite probabilities"


def test_zero_gradients_and_rewards_that_sum_to_nothing_are_named():
    def compute(model, b):
        return loss(model, b) * b[0].abs().max().clamp(max=1)

    train, dev = batches(NAMES), batches(DEV, seed=1)
    train["b"][0][0].zero_()
    update = balancer_of(train, dev, loss=compute).step()
    assert update.rewards["b"] == 0
    assert update.notes == ("the gradient of dataset 'b' is zero: its cosine counts as 0",)
    for k in DEV:
        dev[k][0][0].zero_()
    for reward in ("multidds", "multidds-s"):
        update = balancer_of(train, dev, loss=compute, reward=reward).step()
        assert set(update.rewards.values()) == {0.0}
        assert "the gradient of dev set 'x' is zero: its cosine counts as 0" in update.notes
        assert "the gradients of the dev sets sum to zero: rewards count as 0" in update.notes
        assert "the rewards sum to 0, not above 0" in update.notes[-1]
        assert update.skipped is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": batches("ab")}, "Balancer: train: 'c' is missing."),
        ({"train": batches("abcd")}, "Balancer: train: 'd' is unknown"),
        ({"train": {**batches("ab"), "c": []}}, "Balancer: train 'c': there are no batches."),
        ({"dev": {}}, "there must be at least one dev set"),
        ({"dev": {"x": DataLoader([])}}, "Balancer: dev 'x': there are no batches."),
        ({"dev": {"x": iter([1])}}, "Balancer: dev 'x': an iterator can be gone through only once"),
        ({"model": nn.ReLU()}, "Balancer: the model has no trainable parameters."),
        ({"model": mlp().requires_grad_(False)}, "Balancer: the model has no trainable parameters."),
        ({"mixture": Mixture({"a": 0.5, "b": 0.5, "c": 0.0})}, "the prior of 'c' is 0, which no update can change"),
        ({"every": 0}, "every must be a whole number of at least 1, but it is 0"),
        ({"every": 2.5}, "every must be a whole number of at least 1, but it is 2.5"),
        ({"batches": 0}, "batches must be a whole number of at least 1"),
        ({"step_ahead": 0.0}, "step_ahead must be a positive step size, but it is 0.0"),
        ({"sketch": "big"}, "sketch must be None, 'exact' or a number of buckets, but it is 'big'"),
        ({"sketch": 0}, "sketch must be None, 'exact' or a number of buckets, but it is 0"),
        ({"reward": "cosine"}, "reward must be one of 'multidds', 'multidds-s', 'moving-average' or a function"),
        ({"reward": rewards.multidds}, r"needs the table .* sketch='exact', which keeps 4 gradients \(1.38 kB\)"),
        ({"priority": "lowest"}, "priority: expected 'regular', 'low', 'high'"),
        ({"priority": {"q": 1.0}}, "there is no dev set 'q'"),
        ({"reward": "moving-average", "decay": 1.0}, "decay must be at least 0 and below 1, but it is 1.0"),
        ({"scorer": Scorer(floor=9.0)}, "the floor 9.0 of the smallest prior 0.1 is 0.9"),
        ({"mode": "both"}, "mode must be 'train' or 'eval', but it is 'both'"),
    ],
)
def test_what_a_balancer_cannot_do_is_refused_at_construction(change, message):
    with pytest.raises(ValueError, match=message):
        balancer_of(**change) if "train" not in change else balancer_of(mixture=Mixture.proportional(SIZES), **change)


def test_a_source_that_is_nothing_of_the_kind_is_refused():
    with pytest.raises(TypeError, match="dev 'x': expected a DataLoader, an iterable or a function, got int"):
        balancer_of(dev={"x": 3})
    with pytest.raises(ValueError, match="dev 'x': a DataLoader with persistent_workers=True cannot be shared"):
        balancer_of(dev={"x": DataLoader(dataset(), num_workers=1, persistent_workers=True)})


# ------------------------------------------------------------------------------------------ save and resume


def sources(kind, names, seed):
    data = {name: dataset(13, seed=seed + i) for i, name in enumerate(names)}
    make = {
        "function": lambda d: batches_of(d, 4),
        "loader": lambda d: DataLoader(d, batch_size=4, shuffle=True),
        "stateful": lambda d: StatefulDataLoader(d, batch_size=4, shuffle=True),
        "list": lambda d: list(DataLoader(d, batch_size=4)),
    }[kind]
    return {name: make(d) for name, d in data.items()}


def fresh(kind, **kwargs):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 3)).double()
    return model, balancer_of(sources(kind, NAMES, 0), sources(kind, DEV, 10), model, batches=2, every=2, **kwargs)


def run(model, balancer, first, last):
    out = []
    for step in range(first, last):
        torch.manual_seed(step)  # the dropout of training is the user's to resume
        loss(model, batch(step)).backward()
        balancer.observe(NAMES[step % 2])
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None
        if step == 5:
            balancer.priority = {"x": 2.0, "y": 1.0}
        if update := balancer.step():
            out.append((update.step, update.mixture, update.rewards, update.weights))
    return out


@pytest.mark.claim("The method", "resume is exact, also in a new process")
@pytest.mark.parametrize("kind", ["function", "loader", "stateful", "list"])
@pytest.mark.parametrize("reward", ["multidds-s", "moving-average"])
def test_resume_is_exact(kind, reward):
    def make(**options):
        model, balancer = fresh(
            kind, reward=reward, scorer=Scorer(optimizer=torch.optim.Adam, inner_steps=3), **options
        )
        return {"model": model, "balancer": balancer}, lambda step: run(model, balancer, step, step + 1)

    assert_resumes_exactly(make, 14, stops=(3, 8), again=lambda: make(seed=99, priority="low"))


def test_the_state_is_json_unless_it_holds_moving_averages():
    for kind in ("function", "loader", "list"):
        model, balancer = fresh(kind)
        run(model, balancer, 0, 5)
        other_model, other = fresh(kind)
        other_model.load_state_dict(model.state_dict())
        other.load_state_dict(json.loads(json.dumps(balancer.state_dict())))
        assert run(other_model, other, 5, 9) == run(model, balancer, 5, 9)


@pytest.mark.claim("The method", "resume is exact, also in a new process")
@pytest.mark.slow
def test_ten_steps_and_ten_in_a_new_process_equal_twenty(tmp_path):
    script = textwrap.dedent("""
        import sys, torch
        from torch import nn
        from torch.utils.data import DataLoader
        from multidds import Balancer, Mixture, MixtureSampler
        from toys import dataset, loss
        torch.set_num_threads(1)
        first, last, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
        torch.manual_seed(0)
        sizes = {"a": 15, "b": 40, "c": 8}
        data = {name: dataset(size, seed=size) for name, size in sizes.items()}
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3)).double()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        mixture = Mixture.proportional(sizes)
        sampler = MixtureSampler(sizes, mixture, batch_size=6, seed=3)
        loaders = {name: DataLoader(d, batch_size=5, shuffle=True) for name, d in data.items()}
        balancer = Balancer(mixture, model, loss, train=loaders, dev=loaders, every=3, seed=4)
        parts = {"model": model, "optimizer": optimizer, "sampler": sampler, "balancer": balancer}
        if first:
            saved = torch.load(file, weights_only=True)
            for name, part in parts.items():
                part.load_state_dict(saved[name])
        batches = iter(DataLoader(torch.utils.data.ConcatDataset(data.values()), batch_sampler=sampler))
        if first:  # behind iter(): it draws a seed for workers
            torch.set_rng_state(saved["random"])
        for step in range(first, last):
            loss(model, next(batches)).backward()
            optimizer.step(); optimizer.zero_grad(); balancer.step()
        saved = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**saved, "random": torch.get_rng_state()}, file)
    """)
    for first, last, file in ((0, 20, "whole"), (0, 10, "halves"), (10, 20, "halves")):
        command = [sys.executable, "-c", script, str(first), str(last), str(tmp_path / file)]
        subprocess.run(command, check=True, cwd=ROOT / "tests" / "support")
    whole, halves = (torch.load(tmp_path / file, weights_only=True) for file in ("whole", "halves"))
    assert whole["balancer"] == halves["balancer"]
    assert whole["sampler"] == halves["sampler"]
    assert torch.equal(whole["random"], halves["random"])
    for key in whole["model"]:
        assert torch.equal(whole["model"][key], halves["model"][key])


def test_loading_moves_the_shared_mixture_object():
    model, balancer = fresh("list")
    run(model, balancer, 0, 6)
    _, other = fresh("list")
    held = other.mixture
    other.load_state_dict(balancer.state_dict())
    assert held.probabilities == balancer.mixture.probabilities
    assert other.mixture is held


def test_a_state_fits_whatever_order_the_datasets_are_given_in():
    train, sizes = batches(NAMES), {"a": 1, "b": 3, "c": 6}
    first = balancer_of(train)
    first.step()
    state, expected = first.state_dict(), first.step()
    names = ("c", "a", "b")
    other = balancer_of({n: train[n] for n in names}, mixture=Mixture.proportional({n: sizes[n] for n in names}))
    other.load_state_dict(state)
    assert other.step().mixture == pytest.approx(expected.mixture, abs=1e-12)


@pytest.mark.parametrize(
    "change",
    [
        {"priority": "lowest"},
        {"dev_losses": {"x": 1.0}},
        {"mixture": {"probabilities": {"a": 0.5, "b": 0.2, "c": 0.2}}},
        {"mixture": {"probabilities": {"a": 0.5, "b": 0.5}}},
        {"rule": Scorer.authors},
    ],
)
def test_a_refused_state_changes_nothing(change):
    _, balancer = fresh("list")
    if "rule" in change:
        change = {"rule": change["rule"]().started([0.1, 0.3, 0.6]).state_dict()}
    before = json.dumps(balancer.state_dict())
    model, trained = fresh("list")
    run(model, trained, 0, 5)
    with pytest.raises(ValueError, match="."):
        balancer.load_state_dict({**trained.state_dict(), **change})
    assert json.dumps(balancer.state_dict()) == before


def test_what_is_not_of_the_right_kind_is_refused():
    for change, message in (
        ({"mixture": {"a": 1.0}}, "the mixture must be a Mixture, got dict"),
        ({"loss": 3}, "loss must be a function"),
        ({"scorer": "adam"}, "scorer must be one of Scorer, Anchored, Exponentiated, Exp3, got str"),
        ({"seed": "x"}, "seed must be a whole number, got 'x'"),
    ):
        with pytest.raises(TypeError, match=message):
            balancer_of(**change)
    with pytest.raises(TypeError, match="the reward function must return a tensor, got NoneType"):
        balancer_of(reward=lambda a, w: None, sketch=16).step()


def test_the_optimizer_of_the_metric_is_only_read():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    balancer_of(model=model, optimizer=optimizer).step()
    assert len(optimizer.state) == 0


def test_a_stateful_iterator_is_a_source():
    class Places:
        def __init__(self):
            self.place = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.place += 1
            return batch(self.place)

        def state_dict(self):
            return {"place": self.place}

        def load_state_dict(self, state):
            self.place = state["place"]

    first = balancer_of(dev={"x": Places()})
    first.step()
    second = balancer_of(dev={"x": Places()})
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.step().rewards == first.step().rewards


def test_updates_in_inference_mode_do_not_hurt_later_ones():
    balancer = balancer_of(scorer=Scorer(optimizer=torch.optim.Adam), sketch=64, reward="moving-average")
    with torch.inference_mode():
        balancer.step()
    assert balancer.step().skipped is None


def test_the_default_device_does_not_matter():
    balancer = balancer_of(dev={"x": batches_of(dataset(), 4)}, sketch=64)
    torch.set_default_device("meta")  # nothing of ours may be created there
    try:
        assert balancer.step().skipped is None
        assert Scorer().floor == 0.1
    finally:
        torch.set_default_device(None)


def test_a_loss_that_ranks_the_dev_sets_must_be_finite_too():
    marked = batches(DEV, seed=1)["y"][0][0]

    def compute(model, b):
        return loss(model, b) + (math.inf if torch.equal(b[0], marked) else 0.0)

    update = balancer_of(priority="high", loss=compute).step()  # "y" is ranked last and would not be probed
    assert update.skipped == "the loss of dev set 'y' is not finite"


def test_a_state_that_does_not_fit_is_refused():
    _, balancer = fresh("list")
    state = balancer.state_dict()
    with pytest.raises(ValueError, match="Balancer: state: 'd' is missing"):
        balancer_of(batches("abcd")).load_state_dict(state)
    with pytest.raises(ValueError, match="Balancer: state: 'w' is missing"):
        balancer_of(dev=batches("xyzw")).load_state_dict(state)
    with pytest.raises(ValueError, match="saved with another reward"):
        balancer_of(reward="moving-average").load_state_dict(state)
    balancer.priority = lambda losses: losses
    with pytest.raises(ValueError, match="the priority of the state was a function"):
        balancer_of().load_state_dict(balancer.state_dict())


def test_a_source_without_a_state_is_named_when_the_state_is_asked_for():
    class Endless:
        def __iter__(self):
            while True:
                yield batch(0)

    balancer = balancer_of(dev={"x": Endless()})
    assert balancer.step().skipped is None
    with pytest.raises(ValueError, match="Balancer: dev 'x': 'Endless' cannot be resumed exactly"):
        balancer.state_dict()


def test_the_floor_is_that_of_the_first_prior_also_after_a_resume():
    def start(mixture):
        return balancer_of(
            mixture=mixture, sketch=16, scorer=Scorer(lr=50.0, floor=0.1),
            reward=lambda alignment, weights: torch.tensor([-1.0, 1.0, 1.0]),
        )  # fmt: skip

    first = start(Mixture({"a": 0.2, "b": 0.3, "c": 0.5}))
    first.step()
    state = json.loads(json.dumps(first.state_dict()))
    second = start(Mixture(state["mixture"]["probabilities"]))  # the natural way, and its smallest is the floor itself
    second.load_state_dict(state)
    assert second.step().mixture == first.step().mixture
    assert min(second.mixture.probabilities.values()) == pytest.approx(0.02)


def test_one_stateful_object_under_two_names_is_refused():
    loader = StatefulDataLoader(dataset(), batch_size=4)
    with pytest.raises(ValueError, match="Balancer: one StatefulDataLoader was given twice, but it keeps only one"):
        balancer_of(train={"a": loader}, dev={"x": loader})
    with pytest.raises(ValueError, match="interleave: one StatefulDataLoader was given twice"):
        interleave({"a": loader, "b": loader}, Mixture.uniform("ab"))
