"""States of a balancer: exact resume, and states that do not fit, which change nothing."""

import copy
import inspect
import json
import subprocess
import sys
import textwrap

import pytest
import torch
from assertions import assert_equal, assert_resumes_exactly
from conftest import ROOT
from torch import nn
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from toy_balancers import DEV, MANY, NAMES, SIZES, balancer_of, many
from toys import batches, dataset, loss, mlp, train_step

from multidds import Balancer, Limits, Mixture, Probes, batches_of
from multidds.rules import MovingAverage, RelevancePlan, Scorer, paper

KINDS = {
    "function": lambda d: batches_of(d, 4),
    "loader": lambda d: DataLoader(d, batch_size=4, shuffle=True),
    "stateful": lambda d: StatefulDataLoader(d, batch_size=4, shuffle=True),
    "list": lambda d: list(DataLoader(d, batch_size=4)),
}
AVERAGES = Scorer(MovingAverage())
FOUND = ("step", "mixture", "rewards", "noise", "weights", "dev_losses", "probed", "learned", "relevance", "skipped")


def numbers(update):
    return None if update is None else {key: getattr(update, key) for key in FOUND}


def training(kind="list", **options):
    """(parts, step) of a training whose model has dropout; the priority changes on the way."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 3)).double()
    train, dev = (
        {name: KINDS[kind](dataset(13, seed=seed + i)) for i, name in enumerate(names)}
        for seed, names in ((0, NAMES), (10, DEV))
    )
    options = {"every": 2, "probes": Probes(batches=2), **options}
    balancer = balancer_of(model, train, dev, **options)

    def step(i):
        torch.manual_seed(i)
        loss(model, dataset(7, seed=i).tensors).backward()
        balancer.observe(NAMES[i % 2])
        model.zero_grad()
        train_step(model, i, lr=0.1)
        if i == 5:
            balancer.priority = {"x": 2.0, "y": 1.0}
        return numbers(balancer.step())

    return {"model": model, "balancer": balancer}, step


@pytest.mark.claim("The method", "resume is exact, also in a new process")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "rule",
    [
        paper(),
        Scorer(optimizer=torch.optim.Adam, inner_steps=3),
        Scorer(MovingAverage(), optimizer=torch.optim.Adam, inner_steps=3),
        RelevancePlan(),
    ],
)
def test_resume_is_exact(kind, rule):
    options = {"rule": rule}
    again = {**options, "seed": 99}  # the seed is that of the state
    assert_resumes_exactly(lambda: training(kind, **options), 14, (3, 8), again=lambda: training(kind, **again))


@pytest.mark.claim("The method", "an update that raises leaves everything as it was; made again, it is the same")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("calls", [1, 4, 9])  # of the loss, which fails in the middle of dev sets and datasets
def test_an_update_that_raised_is_the_same_when_it_is_made_again(kind, calls):
    found = []
    for raises in (False, True):
        left = [10**9]

        def compute(model, batch, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise OSError("no more memory")
            return loss(model, batch)

        parts, step = training(kind, compute=compute)
        updates = [step(i) for i in range(3)]
        state = copy.deepcopy(parts["balancer"].state_dict())
        if raises:
            left[0] = calls
            with pytest.raises(OSError, match="no more memory"):
                step(3)
            left[0] = 10**9
            assert_equal(parts["balancer"].state_dict()["probe"], state["probe"])
            updates.append(numbers(parts["balancer"].step()))
        else:
            updates.append(step(3))
        found.append(updates + [step(i) for i in range(4, 10)])
    assert found[0][3] is not None
    assert found[1] == found[0]


def test_a_step_whose_update_raised_counts_once_in_the_averaged_parameters():
    averages = []
    for raises in (False, True):
        parts, step = training(rule=RelevancePlan(), every=4)
        for i in range(3):
            step(i)
        train_step(parts["model"], 3)
        if raises:
            parts["balancer"].priority = lambda losses: 1 / 0
            with pytest.raises(ZeroDivisionError):
                parts["balancer"].step()
            parts["balancer"].priority = "regular"
            states = copy.deepcopy({name: part.state_dict() for name, part in parts.items()})
            parts, _ = training(rule=RelevancePlan(), every=4)
            for name, part in parts.items():
                part.load_state_dict(states[name])
        parts["balancer"].step()
        averages.append(parts["balancer"].state_dict()["tensors"])
    assert averages[0]
    assert_equal(averages[1], averages[0])


@pytest.mark.claim("The method", "resume is exact, also in a new process")
@pytest.mark.parametrize("rule", [RelevancePlan(), RelevancePlan(move=False), paper()])
def test_resume_with_a_plan_and_limits_is_exact(rule):
    limits = Limits(bounds={"g": (0.1, 0.8)}, max_passes=5.0, groups={"a": "g", "b": "g"})
    options = {"rule": rule, "steps": 40, "examples_per_step": 5, "limits": limits}
    assert_resumes_exactly(lambda: training(**options), 12, (5,), again=lambda: training(**options, seed=9))


@pytest.mark.claim(
    "The method",
    "an update that looks at a part: its rewards; every set within a bound; exactly unbiased over the "
    "places of the points; order; mid-rotation resume; two processes",
)
@pytest.mark.parametrize("options", [{}, {"priority": "low"}])
def test_resume_in_the_middle_of_a_rotation_is_exact(options):
    def make(seed=0):
        balancer = many(seed=seed, **options)
        return {"balancer": balancer}, lambda _: numbers(balancer.update())

    assert_resumes_exactly(make, 5, stops=(2,), again=lambda: make(seed=5), as_json=True)


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
    assert_equal(halves, whole)


def test_loading_moves_the_shared_mixture_object():
    (parts, step), (others, _) = training(), training()
    for i in range(6):
        step(i)
    held = others["balancer"].mixture
    others["balancer"].load_state_dict(parts["balancer"].state_dict())
    assert others["balancer"].mixture is held
    assert held.probabilities == parts["balancer"].mixture.probabilities != Mixture.proportional(SIZES).probabilities


def test_a_state_fits_whatever_order_the_datasets_are_given_in():
    train, order = batches(NAMES, 2), ("c", "a", "b")
    for options in ({"rule": Scorer(lr=1.0)}, {"rule": RelevancePlan()}):
        first = balancer_of(None, train, **options)
        other = balancer_of(None, {name: train[name] for name in order}, **options)
        first.step()
        other.load_state_dict(first.state_dict())
        for _ in range(2):
            assert other.step().mixture == pytest.approx(first.step().mixture, abs=1e-12)


# ------------------------------------------------------------------------------------------ states that do not fit


def saved(balancer, updates=1):
    for _ in range(updates):
        balancer.update()
    return balancer.state_dict()


def stepped(balancer):
    balancer.step()
    return balancer.state_dict()


def assert_refused(balancer, state, message):
    """Asserts that a state is refused with a ValueError, and that the balancer is then exactly as it was."""
    before = copy.deepcopy(balancer.state_dict())
    twin = copy.deepcopy(balancer)
    with pytest.raises(ValueError, match=message):
        balancer.load_state_dict(state)
    assert_equal(balancer.state_dict(), before)
    assert_equal(numbers(balancer.update()), numbers(twin.update()))


@pytest.mark.parametrize(
    ("of", "into", "message"),
    [
        ({"train": batches("ab")}, {}, "'c' is missing"),
        ({"train": batches("abcd")}, {}, "'d' is unknown"),
        ({"dev": batches("xy")}, {}, "'z' is missing"),
        ({"dev": batches("wxyz")}, {}, "'w' is unknown"),
        ({"mixture": Mixture.proportional(SIZES | {"b": 31})}, {}, "31 .*'b'.*30"),
        ({"rule": RelevancePlan()}, {}, "'PlanState'"),
        ({}, {"rule": RelevancePlan()}, "'Logits'"),
        ({"rule": Scorer.authors()}, {}, "Adam.*SGD"),
        ({"rule": AVERAGES}, {}, "reward"),
        ({}, {"rule": AVERAGES}, "reward"),
        (
            {"rule": AVERAGES, "model": mlp(width=6)},
            {"rule": AVERAGES},
            "average.0.0.weight",
        ),
        ({"rule": RelevancePlan(), "model": mlp(width=6)}, {"rule": RelevancePlan()}, "0.weight"),
        ({"rule": RelevancePlan(), "dev": batches("xy", 4)}, {"rule": RelevancePlan()}, "shape"),
    ],
)
def test_a_state_of_another_balancer_is_refused_and_changes_nothing(of, into, message):
    assert_refused(balancer_of(**into), stepped(balancer_of(**of)), message)


def weights_by_loss(losses):
    return losses


@pytest.mark.parametrize("new", ["low", {"x": 1.0}, weights_by_loss])
def test_another_priority_at_a_resume_counts_and_a_line_says_so(new, caplog):
    first = balancer_of()
    first.priority = "high"
    again = balancer_of(priority=new)
    again.load_state_dict(saved(first))
    assert again.priority == new
    assert "regular" in caplog.messages[-1]
    assert again.update().weights != first.update().weights


def test_a_priority_that_was_assigned_is_resumed_without_a_word(caplog):
    first, again = balancer_of(priority="low"), balancer_of(priority="low")
    first.priority = {"x": 1.0}
    again.load_state_dict(saved(first))
    assert again.priority == {"x": 1.0}
    assert not caplog.messages


def test_another_seed_at_a_resume_does_not_count_and_a_line_says_so(caplog):
    again = balancer_of(seed=99)
    again.load_state_dict(saved(balancer_of(seed=7)))
    assert "7" in caplog.messages[-1]
    assert "99" in caplog.messages[-1]
    assert again.state_dict()["probe"]["seed"] == 7


LENGTH = {"rule": RelevancePlan(), "steps": 40, "examples_per_step": 5}
COUNT_ANEW = {
    "loss": {"compute": lambda model, batch: loss(model, batch) + model[0].weight.square().sum()},
    "train": {"train": batches("abc", 4, seed=5)},
    "dev": {"dev": batches("xyz", 4, seed=6)},
    "steps": {"steps": 400},
    "examples_per_step": {"examples_per_step": 50},
    "every": {"every": 2},
    "rule": {"rule": RelevancePlan(repetition=2.0)},
    "priority": {"priority": {"x": 1.0}},
    "limits": {"limits": Limits(bounds={"c": (0.0, 0.2)})},
    "probes": {"probes": Probes(batches=3)},
}


@pytest.mark.parametrize("argument", inspect.signature(Balancer).parameters)
def test_another_argument_at_a_resume_counts_or_the_state_says_what_does(argument):
    first = balancer_of(**LENGTH)
    for _ in range(2):
        first.step()
    state = first.state_dict()

    def resumed(**options):
        balancer = balancer_of(**LENGTH | options)
        balancer.load_state_dict(state)
        return numbers(balancer.step())

    if argument in COUNT_ANEW:
        assert resumed(**COUNT_ANEW[argument]) != numbers(first.step())
    elif argument == "model":
        with pytest.raises(ValueError, match="averaged.0.weight"):
            resumed(model=mlp(width=6))
    else:
        of_the_state = {"mixture": Mixture({"a": 0.2, "b": 0.3, "c": 0.5}, SIZES), "seed": 3}
        assert resumed(**{argument: of_the_state[argument]}) == numbers(first.step())


def test_other_settings_of_the_rule_count_at_a_resume():
    """The floor is a share of the first prior, not of the mixture that was learned."""
    first = balancer_of(rule=Scorer(lr=50.0, floor=0.1))
    while not (update := first.update()).drift > 0.1:
        pass
    again = balancer_of(mixture=Mixture(update.mixture), rule=Scorer(lr=50.0, floor=0.5))
    again.load_state_dict(saved(first))
    assert again.update().mixture != first.update().mixture
    assert min(again.mixture.probabilities.values()) == pytest.approx(
        0.5 * 0.1
    )  # the smallest share of the first prior


def test_a_state_of_a_part_continues_in_a_balancer_of_everything():
    part, everything = many(), many(every=3)
    everything.load_state_dict(saved(part))
    assert len(everything.update().probed) == len(MANY)
    part.load_state_dict(saved(everything))
    assert len(part.update().probed) == 16


@pytest.mark.parametrize("kind", ["loader", "list", "stateful"])
def test_a_state_of_other_data_is_refused_and_changes_nothing(kind):
    train = {name: KINDS[kind](dataset(13, seed=i)) for i, name in enumerate(NAMES)}
    dev = {name: KINDS["list"](dataset(13, seed=10)) for name in DEV}
    state = saved(balancer_of(None, copy.deepcopy(train), dev))
    state["probe"]["sources"]["dev"]["z"]["place"] = 99
    assert_refused(balancer_of(None, train, dev), state, "dev 'z'.* 99")


OF_ALL = ["steps", "frozen", "mixture", "prior", "plan", "drawn", "drawn_steps", "rule", "averaged", "probe", "tensors"]
OF_ALL += ["version", "mixture/probabilities", "prior/a", "drawn/a"]
OF_ALL += [
    f"probe/{key}" for key in ("seed", "rounds", "given_priority", "priority", "dev_losses", "last_losses", "sources")
]
OF_ALL += ["probe/sources/dev", "probe/sources/dev/x", "probe/sources/dev/x/place"]
CASES = [(paper(), keys) for keys in OF_ALL]
for rule, of_rule in (
    (RelevancePlan(), ("rule", "memory", "memory/totals", "weights", "gaps", "mixture/a")),
    (AVERAGES, ("rule", "logits", "optimizer", "averages", "averages/counts")),
):
    CASES += [(rule, keys) for keys in (*(f"rule/{key}" for key in of_rule), "rule", "averaged", "tensors")]


@pytest.mark.parametrize(("rule", "keys"), CASES, ids=[f"{type(rule).__name__}-{keys}" for rule, keys in CASES])
def test_a_state_without_a_key_is_refused_and_changes_nothing(rule, keys):
    balancer = balancer_of(rule=rule)
    state = copy.deepcopy(saved(balancer_of(rule=rule)))
    *path, last = keys.split("/")
    inner = state
    for key in path:
        inner = inner[key]
    del inner[last]
    assert_refused(balancer, state, last if last != "version" else "version None")


@pytest.mark.parametrize("rule", [RelevancePlan(), AVERAGES])
def test_a_state_without_a_tensor_is_refused_and_changes_nothing(rule):
    state = stepped(balancer_of(rule=rule))
    key = next(iter(state["tensors"]))
    del state["tensors"][key]
    assert_refused(balancer_of(rule=rule), state, key)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 1}, "version 1"),
        ({"mixture": {"version": 4, "probabilities": {"a": 0.5, "b": 0.2, "c": 0.2}, "sizes": None}}, r"sum to 0\.9"),
        ({"prior": {"a": 1.0}}, "prior.*'b', 'c'"),
        ({"plan": {"a": 1.0, "b": 0.0, "c": 0.0, "d": 0.0}}, "plan.*'d'"),
        ({"steps": 2.5}, "steps.*2.5"),
        ({"drawn": {"a": "1", "b": 0.0, "c": 0.0}}, "drawn.*'a'.*'1'"),
    ],
)
def test_a_state_with_another_version_or_wrong_shares_is_refused(change, message):
    assert_refused(balancer_of(), saved(balancer_of()) | change, message)


@pytest.mark.parametrize("state", [None, [], "state"])
def test_what_is_no_state_is_refused(state):
    assert_refused(balancer_of(), state, f"dict.*{type(state).__name__}")


def test_the_state_is_json_but_for_the_tensors():
    state = saved(balancer_of(rule=Scorer(MovingAverage(), optimizer=torch.optim.Adam)))
    tensors = state.pop("tensors")
    assert json.loads(json.dumps(state)) == state
    assert all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())
    assert saved(balancer_of())["tensors"] == {}
    state = stepped(balancer_of(rule=RelevancePlan()))
    assert state.pop("tensors").keys() == {f"averaged.{name}" for name, _ in mlp().named_parameters()}
    assert json.loads(json.dumps(state)) == state
