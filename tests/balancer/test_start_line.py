"""The line about a training that begins: what is planned, what it costs, what cannot work and what to set."""

import logging
import re

import pytest
from torch.utils.data import DataLoader
from toy_balancers import NAMES, SIZES, balancer_of, many
from toys import batches, dataset, loss, mlp

from multidds import Balancer, Budget, Mixture, Probes, batches_of
from multidds.rules import RelevancePlan, Scorer

PLANNED = {"rule": RelevancePlan(), "every": Budget(), "steps": 2000, "examples_per_step": 4}


@pytest.fixture
def start(caplog):
    """balancer -> (level, line) of its start; nothing else is logged."""

    def line_of(balancer):
        caplog.clear()
        with caplog.at_level(logging.INFO, "multidds"):
            balancer.log_start()
        (record,) = caplog.records
        assert record.name == "multidds"
        assert "\n" not in record.getMessage()
        return record.levelname, record.getMessage()

    return line_of


def test_plan_passes_updates_cost_and_memory_are_in_one_line(start):
    level, line = start(balancer := balancer_of(dev=batches(NAMES, 4), **PLANNED))
    assert level == "INFO"
    shares = {name: f"{100 * share:.0f}%" for name, share in balancer.mixture.probabilities.items()}
    passes = {name: balancer.mixture[name] * 8000 / SIZES[name] for name in NAMES}
    assert (
        f"plan for 2,000 steps: c {shares['c']} ({passes['c']:.0f} passes), b {shares['b']} ({passes['b']:.0f})" in line
    )
    assert "a dev set for each dataset" in line
    assert f"; 11 updates, one every {balancer.every} steps, about 7% of the time; " in line
    assert "averaged over 40 steps (344 bytes)" in line
    assert "tables of 25.2 MB" in line  # 2 halves of 6 sets in 2**18 numbers of 8 bytes
    assert "multidds report" in line


def test_it_is_logged_once_when_training_begins(caplog):
    balancer = balancer_of(**PLANNED)
    with caplog.at_level(logging.INFO, "multidds"):
        assert caplog.text == ""
        balancer.step()
        assert caplog.text.count("plan for") == 1
        balancer.step()
        balancer.log_start()
    assert caplog.text.count("plan for") == 1


def test_a_resumed_training_says_where_it_is(start):
    first, second = (balancer_of(dev=batches(NAMES, 4), **PLANNED) for _ in range(2))
    for _ in range(first.every):
        first.step()
    second.load_state_dict(first.state_dict())
    _, line = start(second)
    name, share = max(first.mixture.probabilities.items(), key=lambda item: item[1])
    assert f"resumed after step {first.every}; mixture: {name} {100 * share:.0f}%," in line
    assert "plan for" not in line
    assert "; 10 updates, " in line  # eleven in all


def test_the_goals_of_a_priority_are_named(start):
    _, line = start(balancer_of(dev=batches(NAMES, 4), priority={"a": 3.0, "b": 1.0}, **PLANNED))
    assert "; by priority for a 75%, b 25%; " in line


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        (["examples_per_step"], "no plan: examples_per_step is needed"),
        (["steps"], "no plan: steps are needed"),
        (["sizes"], r"no plan: sizes .* are needed"),
        (["sizes", "examples_per_step"], r"no plan: sizes .* and examples_per_step are needed"),
    ],
)
def test_a_plan_that_is_not_made_is_a_warning_with_what_to_set(start, missing, words):
    mixture = Mixture.uniform(NAMES) if "sizes" in missing else None
    level, line = start(balancer_of(**PLANNED | dict.fromkeys(set(missing) - {"sizes"}), mixture=mixture))
    assert level == "WARNING"
    assert re.search(words, line)
    assert "plan for" not in line


@pytest.mark.parametrize("rule", [Scorer(), RelevancePlan(plan=False)])
def test_a_rule_that_makes_no_plan_misses_none(start, rule):
    level, line = start(balancer_of(rule=rule, every=7))
    assert level == "INFO"
    assert "mixture: c 60%, b 30%, a 10%; dev sets: x, y, z; an update every 7 steps" in line


@pytest.mark.parametrize(
    ("every", "steps", "numbers"),
    [
        (500, 500, "500 steps have 1 update .*last step.*every=500; set every=25 for 20"),
        (300, 1000, "1,000 steps have 3 updates with every=300; set every=50 for 20"),
        (Budget(), 2000, None),
        (Budget(at_most=0.02), 2000, r"2,000 steps have 3 updates within Budget\(.*\); 10 need .*at_most=0.066"),
        (Budget(), 100, r"100 steps have 1 update .*at_most=1\.3"),
        (Budget(), 50, r"nothing is learned: 50 steps have 0 updates .*at_most=2\.6"),
        (Budget(), 200_000, None),
    ],
)
def test_too_few_updates_are_said_with_what_to_set(start, every, steps, numbers):
    balancer = balancer_of(**PLANNED | {"every": every, "steps": steps})
    level, line = start(balancer)
    assert level == ("WARNING" if numbers and isinstance(every, Budget) else "INFO")  # a number is the user's choice
    assert re.search(numbers, line) if numbers else "steps have" not in line
    if steps == 50:
        assert not any(balancer.step() for _ in range(steps))


def test_of_many_datasets_the_largest_are_named(start):
    _, line = start(many())
    assert "d05 2%, and 34 more; dev sets: k00" in line
    assert "k05, and 24 more" in line
    assert "12 updates, one every 160 steps, of 16 datasets and 16 dev sets at a time, about 40% of the time" in line
    assert len(line) < 700


def test_a_dev_set_that_is_a_training_set_is_said(start):
    data = dataset(20)
    for train, dev in ((batches_of(data, 4), DataLoader(data, 2)), (shared := batches("b", 4)["b"], shared)):
        level, line = start(
            balancer_of(train=batches(NAMES, 4) | {"b": train}, dev={"goal": dev, "a": batches("a", 4)["a"]})
        )
        assert level == "WARNING"
        assert "goal (the same data as the dataset b), a (a dataset has that name);" in line


def test_names_are_printable(start):
    _, line = start(balancer_of(train=batches(["a\nb", "\x1b[31m"], 4), dev=batches(["\u2028"], 4)))
    assert "a?b 50%" in line
    assert line.isprintable()


def test_without_averages_and_tables_no_memory_is_said(start):
    _, line = start(balancer_of(probes=Probes(average=0)))
    assert "averaged" not in line
    assert "tables" not in line


def test_a_trainer_writes_it_unless_logging_shows_it(caplog):
    lines = []
    balancer_of(**PLANNED).log_start("look", lines.append, cost=0.5)
    assert re.search("^plan for 2,000 steps: .* about 50% of the time; .*; look$", lines.pop())
    assert caplog.text == ""
    with caplog.at_level(logging.INFO, "multidds"):
        balancer_of(**PLANNED).log_start("look", lines.append)
    assert "plan for" in caplog.text
    caplog.clear()
    balancer_of(**PLANNED | {"steps": 50}).log_start("look", lines.append)
    assert "nothing is learned" in caplog.text
    assert lines == []


def test_one_dev_set_needs_no_name(start):
    given = DataLoader(dataset(20), 4)
    balancer = balancer_of(dev=given, **PLANNED)
    assert "dev sets: dev;" in start(balancer)[1]
    assert list(balancer.update().dev_losses) == ["dev"]
    named = balancer_of(dev={"dev": given}, **PLANNED)
    assert named.update().mixture == balancer.history[-1].mixture


@pytest.mark.parametrize("dev", [None, [DataLoader(dataset(20), 4)]])
def test_dev_sets_without_names_are_refused(dev):
    with pytest.raises(TypeError, match=r"dev must be \{name: dev set\}"):
        Balancer(Mixture.uniform(NAMES), mlp(), loss, train=batches(NAMES), dev=dev)
