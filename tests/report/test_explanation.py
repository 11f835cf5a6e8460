"""Sentences about shares, from histories whose numbers are known."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from multidds import Update
from multidds.history import moments_of
from multidds.report import Run
from multidds.report.explanation import droppable, explained, unnamed_goal

SHARES = {"web": 0.6, "licences": 0.35, "turkish": 0.05}
BY_NAMES = {"web": 0.22, "licences": 1.0, "turkish": 0.22}


def run(rows, dev="licences", passes=None, **more):
    """A run with an update every 10 steps, whose relevance to the one dev set was these rows."""
    made = [
        Update(step=10 * i, mixture=SHARES, rewards=dict.fromkeys(SHARES, 0.3) | {"turkish": 0.01}, dev_losses={},
               train_losses={}, weights={dev: 1.0}, alignment=None, seconds=0.1, prior=SHARES,
               noise=dict.fromkeys(SHARES, 0.02), relevance={dev: {n: (v, 0.1) for n, v in row.items()}})
        for i, row in enumerate(rows, 1)
    ]  # fmt: skip
    moments = moments_of([*made[:-1], replace(made[-1], **more)])
    if passes:
        moments[-1].groups["passes"] = passes
    return Run("r", Path(), moments)


MEASURED = BY_NAMES | {"web": 0.6, "turkish": -0.4}


def test_a_share_is_explained_by_what_moved_it():
    passes = {"web": 0.4, "licences": 9.0, "turkish": 0.15}
    found = run([BY_NAMES, MEASURED, MEASURED], passes=passes, held={"licences": 16.0})
    assert explained(found) == [
        "Why these shares (r, step 30)?",
        "web 60%: 0.60 ± 0.10 of the best for licences, measured at step 20, within noise since; 0.4 passes so far",
        "licences 35%: the goal's own data, measured at step 20, within noise since, held at 16 passes; "
        "9 passes so far",
        "turkish 5%: less use to licences than the average dataset (-0.40 ± 0.10), measured at step 20, "
        "within noise since; 0.15 passes so far",
    ]


def test_a_row_counts_as_measured_at_the_updates_that_changed_it():
    other = MEASURED | {"web": 0.5}
    (_, *sentences) = explained(run([MEASURED, MEASURED, other], dev="dev"))
    assert sentences[0] == "web 60%: 0.50 ± 0.10 of the best for dev, measured at steps 10 to 30"
    assert sentences[1] == "licences 35%: the best for dev, measured at steps 10 to 30"
    (_, *sentences) = explained(run([BY_NAMES]))
    assert sentences[0] == "web 60%: nothing measured beyond noise yet"


def test_the_least_share_of_a_plan_is_its_floor():
    """The sizes are 600, 350 and 1,500 in a common unit, so that the least share of turkish is a third of a tenth."""
    passes = {"web": 1.0, "licences": 1.0, "turkish": 0.05 / 1.5}
    assert "at its floor" not in explained(run([MEASURED] * 2, passes=passes))[3]
    lowest = {"web": 0.6, "licences": 0.366, "turkish": 0.034}
    found = run([MEASURED] * 2, passes=passes | {"turkish": 0.034 / 1.5}, mixture=lowest)
    found.moments[0].groups["mixture"] = lowest
    assert ", at its floor; " in explained(found)[3]


@pytest.mark.parametrize(
    ("worth", "words"),
    [
        ((0.02, 0.05), "; has had enough: 9 passes, one more is worth 0.02 ± 0.05 of new text"),
        ((-0.3, 0.1), "; is harmed by more: one more pass is worth -0.30 ± 0.10 of new text"),
        ((0.6, 0.1), "; 9 passes so far"),
        ((0.02, math.nan), "; 9 passes so far"),
    ],
)
def test_a_dataset_that_has_had_enough_is_said_to(worth, words):
    found = run([BY_NAMES, MEASURED], passes={"licences": 9.0}, worth={"licences": worth})
    assert explained(found)[2].endswith(words)


@pytest.mark.parametrize(("worth", "warned"), [({}, True), ({"licences": (0.6, 0.1)}, False),
                                               ({"licences": (0.0, 0.05)}, True)])  # fmt: skip
def test_a_measured_worth_is_stronger_than_a_number_of_passes(worth, warned):
    found = run([BY_NAMES, MEASURED], passes={"web": 1.0, "licences": 40.0}, worth=worth)
    assert bool(found.warnings()) == warned


def test_a_run_that_only_watches_says_what_it_would_have_learned():
    found = run([BY_NAMES, MEASURED], proposed={"web": 0.2, "licences": 0.79, "turkish": 0.01})
    assert explained(found)[2].startswith("licences 35%: as given, and 79% if it were learned, the goal's own data")
    assert found.sentence().startswith("r: watched by 2 updates in 20 steps; it would have learned licences 35% → 79%")


def test_without_relevance_the_reward_explains_a_share():
    found = run([BY_NAMES, MEASURED])
    for moment in found.moments:
        moment.relevance.clear()
    assert explained(found)[1] == "web 60%: reward 0.30 ± 0.02"


# ------------------------------------------------------------------------------------------ which one to drop


def test_a_dataset_is_droppable_if_no_gradient_agrees_with_it():
    found = run([BY_NAMES, MEASURED])
    assert "turkish (relevance -0.40, mean cosine 0.01 ± 0.01)" in droppable(found)
    assert "web" not in droppable(found)
    assert droppable(run([BY_NAMES, MEASURED | {"turkish": 0.1}])).endswith("By the gradients, none.")
    helps = run([BY_NAMES, MEASURED], rewards=dict.fromkeys(SHARES, 0.3))  # less than the average, but it helps
    for moment in helps.moments:
        moment.groups["reward"]["turkish"] = 0.2
    assert droppable(helps).endswith("By the gradients, none.")
    for moment in found.moments:  # of use to another goal
        moment.relevance["other"] = dict.fromkeys(SHARES, (0.9, 0.1))
    assert droppable(found).endswith("By the gradients, none.")
    for moment in found.moments:  # whose weight is 0
        moment.groups["dev_weight"]["other"] = 0.0
    assert "turkish" in droppable(Run("r", Path(), found.moments))


def test_without_relevance_a_dataset_that_was_given_up_is_droppable():
    made = [
        Update(step=10 * i, mixture={"a": 1 - share, "b": share}, rewards={}, dev_losses={}, train_losses={},
               weights={}, alignment=None, seconds=0.1)
        for i, share in enumerate((0.4, 0.05, 0.3, 0.1, 0.05), 1)
    ]  # fmt: skip
    found = droppable(Run("r", Path(), moments_of(made)))
    assert "b (next to nothing is drawn from it from step 40 on)" in found
    assert droppable(Run("r", Path(), moments_of(made[:1]))).endswith("none.")
    assert droppable(Run("r", Path(), [])) == ""


# ------------------------------------------------------------------------------------------ names of goals


def test_a_goal_without_a_dataset_of_its_name_is_told_how_to_name_it():
    sentence = unnamed_goal(run([MEASURED], dev="dev"))
    assert "'dev'" in sentence
    assert 'eval_dataset={"licences": dev}' in sentence
    assert unnamed_goal(run([MEASURED])) == ""
