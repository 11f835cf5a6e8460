"""The line about a training that begins or is resumed, warnings with what to set, and details on demand."""

import logging
import re

import pytest
from torch.utils.data import DataLoader
from toy_balancers import NAMES, SIZES, balancer_of, many
from toys import batches, dataset, loss, mlp

from multidds import Balancer, Budget, Limits, Mixture, batches_of
from multidds.rules import RelevancePlan, Scorer, paper

PLANNED = {"rule": RelevancePlan(), "every": Budget(), "steps": 2000, "examples_per_step": 4}


@pytest.fixture
def start(caplog):
    """balancer -> (line of its start, warnings before it); nothing else is logged."""

    def of(balancer):
        caplog.clear()
        with caplog.at_level(logging.INFO, "multidds"):
            balancer.log_start()
        *warnings, line = caplog.records
        assert line.levelname == "INFO"
        assert {record.levelname for record in warnings} <= {"WARNING"}
        for record in caplog.records:
            assert record.name == "multidds"
            assert record.getMessage().isprintable()
        return line.getMessage(), "; ".join(record.getMessage() for record in warnings)

    return of


def test_shares_passes_updates_and_cost_are_in_one_short_line(start):
    line, warned = start(balancer := balancer_of(dev=batches(NAMES, 4), **PLANNED))
    mixture = balancer.mixture
    assert line == (
        f"Balancer: plan: c {100 * mixture['c']:.0f}% ({mixture['c'] * 8000 / SIZES['c']:.0f} passes), "
        f"b {100 * mixture['b']:.0f}%, a {100 * mixture['a']:.0f}%"
        " · 7 updates, about 15% of the time · updates are in balancer.history."
    )
    assert warned == ""


def test_the_rest_is_printed_on_demand_and_logged_in_detail(caplog):
    balancer = balancer_of(dev=batches(NAMES, 4), priority={"a": 3.0, "b": 1.0}, **PLANNED)
    text = str(balancer)
    assert text.startswith(repr(balancer))
    for name in NAMES:
        assert f"  {name} {100 * balancer.mixture[name]:.0f}%, " in text
    assert "dev sets:\n  a 75%\n  b 25%\n  c 0%\n" in text
    assert "\n7 updates at growing distances, the first at step 140: 7 probe batches of each set, about 15% of" in text
    assert "344 bytes for averaged parameters" in text
    assert "50.3 MB for tables" in text  # 4 parts of 6 sets in 2**18 numbers of 8 bytes
    with caplog.at_level(logging.DEBUG, "multidds"):
        balancer.log_start()
    assert caplog.records[-1].levelname == "DEBUG"
    assert "probe batches of each set" in caplog.records[-1].getMessage()
    without = str(balancer_of(rule=paper()))
    assert "averaged parameters" not in without
    assert "tables" not in without


def test_it_is_logged_once_when_training_begins(caplog):
    balancer = balancer_of(**PLANNED)
    with caplog.at_level(logging.INFO, "multidds"):
        assert caplog.text == ""
        balancer.step()
        assert caplog.text.count("plan: ") == 1
        balancer.step()
        balancer.log_start()
    assert caplog.text.count("plan: ") == 1


@pytest.mark.parametrize("rule", [RelevancePlan(), paper()])
def test_a_resumed_training_says_where_it_is(start, rule):
    first, second = (balancer_of(dev=batches(NAMES, 4), **PLANNED | {"rule": rule}) for _ in range(2))
    while first.step() is None:
        pass
    done = first.history[0].step
    second.load_state_dict(first.state_dict())
    line, warned = start(second)
    name, share = max(first.mixture.probabilities.items(), key=lambda item: item[1])
    assert line.startswith(f"Balancer: resumed at step {done:,}; {name} {100 * share:.0f}%, ")
    assert line.endswith("; 6 updates to come.")
    assert warned == ""  # which were given when it began


def test_a_resumed_training_of_unknown_length_counts_no_updates(start):
    first, second = (balancer_of(every=7) for _ in range(2))
    first.step()
    second.load_state_dict(first.state_dict())
    assert start(second)[0] == "Balancer: resumed at step 1; c 60%, b 30%, a 10%."


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        (["examples_per_step"], "no plan, because examples_per_step is not known"),
        (["steps"], "no plan, because steps are not known"),
        (["sizes"], "no plan, because sizes .* are not known"),
        (["sizes", "examples_per_step"], "no plan, because sizes .* and examples_per_step are not known"),
    ],
)
def test_a_plan_that_is_not_made_is_a_warning_with_what_to_set(start, missing, words):
    mixture = Mixture.uniform(NAMES) if "sizes" in missing else None
    line, warned = start(balancer_of(**PLANNED | dict.fromkeys(set(missing) - {"sizes"}), mixture=mixture))
    assert re.search(words, warned)
    assert line.startswith("Balancer: mixture: ")


@pytest.mark.parametrize("rule", [Scorer(), RelevancePlan(plan=False), RelevancePlan(move=False)])
def test_a_rule_that_makes_no_plan_misses_none(start, rule):
    line, warned = start(balancer_of(rule=rule, every=7))
    assert line.startswith("Balancer: mixture: c 60%, b 30%, a 10% · an update every 7 steps, ")
    assert warned == ""


@pytest.mark.parametrize(
    ("every", "steps", "words"),
    [
        (500, 500, "500 steps have 1 update, .*Set every=62 for 8"),
        (300, 1000, "1,000 steps have 3 updates, .*Set every=125 for 8"),
        (Budget(), 2000, None),
        (Budget(at_most=0.02), 2000, r"2,000 steps have 3 updates, .*at_most=0\.05\) for 7"),
        (Budget(), 100, "100 steps have 1 update, .*7 would take 100% of the time"),
        (Budget(), 50, "50 steps have 0 updates, .*7 would take 200% of the time"),
        (Budget(), 200_000, None),
    ],
)
def test_too_few_updates_are_said_with_what_to_set(start, every, steps, words):
    balancer = balancer_of(**PLANNED | {"every": every, "steps": steps})
    line, warned = start(balancer)
    assert re.search(words, warned) if words else warned == ""
    assert ("no update, so nothing is learned" in line) == (steps == 50)
    if steps == 50:
        assert not any(balancer.step() for _ in range(steps))


def test_limits_that_no_mixture_can_keep_are_said_with_what_to_set(start):
    passes = PLANNED["steps"] * 4 / sum(SIZES.values())  # over every dataset, in a proportional mixture
    warned = [start(balancer_of(**PLANNED, limits=Limits(max_passes=passes * part)))[1] for part in (0.1, 0.9, 1.01)]
    assert ["Train for 200 steps" in warned[0], "Train for 1,800 steps" in warned[1]] == [True, True]
    assert warned[2] == ""
    some = Limits(max_passes={"a": 0.1})
    assert start(balancer_of(**PLANNED, limits=some))[1] == ""


def test_a_training_that_goes_on_after_its_steps_says_so_once(caplog):
    balancer = balancer_of(every=1000, steps=40)
    for _ in range(42):
        balancer.step()
    assert "goes on" not in caplog.text
    for _ in range(60):
        balancer.step()
    assert caplog.text.count("goes on after its 40 steps") == 1


@pytest.mark.parametrize(("every", "steps"), [(500, 500), (Budget(at_most=0.02), 2000)])
def test_what_a_warning_says_to_set_ends_it(start, every, steps):
    _, warned = start(balancer_of(**PLANNED | {"every": every, "steps": steps}))
    setting = re.search(r"Set every=(.*) for (\d+)", warned)
    line, warned = start(balancer_of(**PLANNED | {"every": eval(setting[1]), "steps": steps}))
    assert int(re.search(r"(\d+) updates", line)[1]) >= int(setting[2])
    assert warned == ""


def test_of_many_datasets_the_largest_are_named(start):
    line, _ = start(balancer := many())
    assert "d02 2%, 37 more · 12 updates, about 40% of the time" in line
    assert len(line) < 160
    part = "an update every 160 steps, of 16 datasets and 16 dev sets at a time: 2 probe batches of each set"
    assert part in str(balancer)


def test_a_dev_set_that_is_a_training_set_is_a_warning(start):
    data = dataset(20)
    for train, dev in ((batches_of(data, 4), DataLoader(data, 2)), (shared := batches("b", 4)["b"], shared)):
        _, warned = start(
            balancer_of(train=batches(NAMES, 4) | {"b": train}, dev={"goal": dev, "a": batches("a", 4)["a"]})
        )
        assert "dev set 'goal' and the dataset 'b' are the same data" in warned
        assert "'a'" not in warned


def test_names_are_printable(start):
    line, _ = start(balancer_of(train=batches(["a\nb", "\x1b[31m"], 4), dev=batches(["\u2028"], 4)))
    assert "a?b 50%" in line


def test_a_trainer_writes_it_unless_logging_shows_it(caplog):
    lines = []
    balancer_of(**PLANNED).log_start("look", lines.append)
    assert re.search("^plan: .* about 15% of the time · look$", lines.pop())
    assert caplog.text == ""
    with caplog.at_level(logging.INFO, "multidds"):
        balancer_of(**PLANNED).log_start("look", lines.append)
    assert "plan: " in caplog.text
    assert lines == []
    caplog.clear()
    balancer_of(**PLANNED | {"steps": 50}).log_start("look", lines.append)
    assert "too few to learn from" in caplog.text  # a warning is logged in any case
    assert "nothing is learned" in lines.pop()


def test_one_dev_set_needs_no_name():
    given = DataLoader(dataset(20), 4)
    balancer = balancer_of(dev=given, **PLANNED)
    assert list(balancer.update().dev_losses) == ["dev"]
    named = balancer_of(dev={"dev": given}, **PLANNED)
    assert named.update().mixture == balancer.history[-1].mixture


@pytest.mark.parametrize("dev", [None, [DataLoader(dataset(20), 4)]])
def test_dev_sets_without_names_are_refused(dev):
    with pytest.raises(TypeError, match=r"dev must be \{name: dev set\}"):
        Balancer(Mixture.uniform(NAMES), mlp(), loss, train=batches(NAMES), dev=dev)
