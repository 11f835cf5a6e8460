"""The table of mixtures before a training: numbers as plain dicts, and a readable text."""

import pytest

from multidds import Mixture
from multidds.mixture.mixture_table import table_of

SIZES = {"web": 12_000, "topics": 150}


def test_table_has_share_and_passes_of_every_mixture():
    weights = {"web": 0.0, "topics": 1.0}
    table = Mixture.table(SIZES, 6400, weights)
    expected = {
        "proportional": Mixture.proportional(SIZES),
        "temperature 3": Mixture.temperature(SIZES, 3),
        "temperature 5": Mixture.temperature(SIZES, 5),
        "uniform": Mixture.uniform(SIZES),
        "planned": Mixture.planned(SIZES, 6400, weights),
    }
    assert table.shares == {rule: mixture.probabilities for rule, mixture in expected.items()}
    assert (table.sizes, table.draws) == (SIZES, 6400)
    assert table.passes["uniform"] == {"web": 3200 / 12_000, "topics": 3200 / 150}
    assert table.shares["planned"] != Mixture.table(SIZES, 6400).shares["planned"]


def test_table_is_readable_text_with_a_row_for_each_dataset():
    names = {"web": 12_000, "\x1b[31mred": 150, "x" * 99: 3}
    title, heading, *rows = str(Mixture.table(names, 6400)).split("\n")
    assert "6,400" in title
    assert heading.split()[:3] == ["dataset", "examples", "proportional"]
    assert {len(line) for line in (heading, *rows)} == {len(heading)}
    assert [row.split()[0] for row in rows] == ["web", "?[31mred", "x" * 39 + "…"]
    assert rows[0].split()[1:4] == ["12,000", "99%", "(0.53)"]


@pytest.mark.parametrize(
    ("sizes", "draws", "weights", "message"),
    [
        ({}, 1, None, "Mixture.table"),
        ({"a": 0}, 1, None, "Mixture.table.*'a' is 0"),
        ({"a": "x"}, 1, None, "Mixture.table.*'a' is 'x'"),
        ({"a": 1}, 0, None, "draws.*0"),
        ({"a": 1}, float("inf"), None, "draws.*inf"),
        ({"a": 1}, 1, {"b": 1}, "weights.*'b'"),
    ],
)
def test_table_that_cannot_be_is_refused(sizes, draws, weights, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Mixture.table(sizes, draws, weights)


def test_words_of_a_command_line_make_the_same_table():
    table = table_of(["a=b=1e3", "c=20"], "40", "1_00")
    assert table == Mixture.table({"a=b": 1000, "c": 20}, 4000)
    assert table_of(["a=b=1e3", "c=20"], "40", "100", ["a=b"]) == Mixture.table(
        {"a=b": 1000, "c": 20}, 4000, {"a=b": 1}
    )
    goals = {"a=b": 2.5, "c": 1.0}
    assert table_of(["a=b=1e3", "c=20"], "40", "100", ["a=b=2.5", "c"]) == Mixture.table(table.sizes, 4000, goals)


def test_datasets_without_a_weight_do_not_count():
    assert Mixture.table(SIZES, 6400, {"topics": 1}) == Mixture.table(SIZES, 6400, {"web": 0, "topics": 1})


def test_a_training_that_is_far_too_long_for_its_data_is_said_once():
    few, many = (str(Mixture.table(SIZES, draws)).split("\n") for draws in (12_150 * 39, 12_150 * 800))
    assert len(many) == len(few) + 1
    assert "800 times" in many[-1]
