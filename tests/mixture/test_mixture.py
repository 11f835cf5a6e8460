import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multidds import Mixture

pytestmark = [pytest.mark.claim("The method", "temperature, UniMax")]

SIZES = st.dictionaries(st.text(min_size=1, max_size=8), st.integers(1, 10**9), min_size=1, max_size=30)


@given(SIZES, st.floats(0.05, 1e6))
def test_temperature_gives_probabilities_in_the_order_of_the_sizes(sizes, tau):
    mixture = Mixture.temperature(sizes, tau)
    assert mixture.names == tuple(sizes)
    assert math.isclose(math.fsum(mixture.probabilities.values()), 1.0, rel_tol=1e-12)
    for a in sizes:
        for b in sizes:
            if sizes[a] <= sizes[b]:
                assert mixture[a] <= mixture[b] * (1 + 1e-12)


@given(SIZES)
def test_temperature_one_is_proportional_and_infinity_is_uniform(sizes):
    total = sum(sizes.values())
    assert Mixture.proportional(sizes).probabilities == Mixture.temperature(sizes, tau=1).probabilities
    for name, p in Mixture.proportional(sizes).probabilities.items():
        assert math.isclose(p, sizes[name] / total, rel_tol=1e-12)
    for p in Mixture.temperature(sizes, tau=math.inf).probabilities.values():
        assert math.isclose(p, 1 / len(sizes), rel_tol=1e-12)


@given(SIZES, st.floats(1, 1e12), st.floats(0.1, 100))
def test_unimax_never_goes_over_its_passes_and_is_uniform_among_the_rest(sizes, budget, max_passes):
    mixture = Mixture.unimax(sizes, budget, max_passes)
    spendable = min(budget, max_passes * sum(sizes.values()))
    shares = {name: p * spendable for name, p in mixture.probabilities.items()}
    limited = {name for name in sizes if shares[name] >= max_passes * sizes[name] * (1 - 1e-6)}
    for name in sizes:
        assert shares[name] <= max_passes * sizes[name] * (1 + 1e-6)
    free = [shares[name] for name in sizes if name not in limited]
    if free:
        assert max(free) <= min(free) * (1 + 1e-6)
        assert all(shares[name] <= min(free) * (1 + 1e-6) for name in limited)


def test_the_rules_by_hand():
    assert Mixture.temperature({"a": 1, "b": 9}, tau=2).probabilities == {"a": 0.25, "b": 0.75}
    # 100 to spend: "a" may have at most 4 * 5 = 20, the other two share the 80 that are left.
    unimax = Mixture.unimax({"a": 5, "b": 50, "c": 1000}, budget=100, max_passes=4)
    assert unimax.probabilities == {"a": 0.2, "b": 0.4, "c": 0.4}


@pytest.mark.claim("The method", "the order of datasets does not matter")
@given(SIZES, st.floats(0, 1, exclude_max=True))
def test_a_point_falls_on_the_dataset_whose_part_covers_it_in_any_order(sizes, point):
    mixture = Mixture.proportional(sizes)
    before = 0.0
    for name in sorted(sizes):
        if name == mixture.at(point):
            break
        before += mixture[name]
    assert before - 1e-9 <= point <= before + mixture[name] + 1e-9
    assert Mixture.proportional(dict(reversed(sizes.items()))).at(point) == name


def test_a_dataset_of_probability_zero_is_never_drawn():
    mixture = Mixture({"a": 0.0, "b": 1.0, "c": 0.0})
    assert {mixture.at(point) for point in (0.0, 0.5, 1 - 2**-53)} == {"b"}


@given(SIZES)
def test_a_state_goes_through_json_bit_for_bit(sizes):
    mixture, other = Mixture.temperature(sizes, 3), Mixture.uniform(sizes)
    other.load_state_dict(json.loads(json.dumps(mixture.state_dict())))
    assert other.state_dict() == mixture.state_dict()
    assert Mixture(mixture.probabilities).probabilities == mixture.probabilities
    assert repr(mixture).isprintable()


@pytest.mark.parametrize(
    "make",
    [
        Mixture.proportional,
        Mixture.uniform,
        lambda sizes: Mixture.temperature(sizes, tau=5),
        lambda sizes: Mixture.unimax(sizes, budget=10, max_passes=4),
        lambda sizes: Mixture.planned(sizes, draws=10),
        lambda sizes: Mixture.extended({"a": 0.5, "c": 0.5}, sizes),
        lambda sizes: Mixture({"a": 0.5, "b": 0.5}, sizes),
    ],
)
def test_a_mixture_keeps_the_sizes_that_it_is_made_from(make):
    mixture = make({"b": 3, "a": 2})
    mixture.sizes["a"] = 7  # a copy
    assert mixture.sizes == mixture.state_dict()["sizes"] == {"a": 2, "b": 3}


def test_sizes_are_unknown_until_they_are_filled_in():
    mixture = Mixture.uniform({"a": "a dataset", "b": "another"})
    assert mixture.sizes is None
    with pytest.raises(ValueError, match="sizes: 'b' is missing"):
        mixture.sizes = {"a": 1}
    mixture.sizes = {"b": 2.5, "a": 1}
    assert list(mixture.sizes.items()) == [("a", 1), ("b", 2.5)]


def test_a_state_of_other_data_is_refused_and_changes_nothing():
    mixture = Mixture.proportional({"a": 1, "b": 3})
    for state, message in (
        (Mixture.uniform({"a": 1, "b": 4}).state_dict(), "4 examples of 'b'"),
        (Mixture.uniform("ac").state_dict(), "'b' is missing"),
        (Mixture.uniform("ab").state_dict() | {"version": 1}, "version 1"),
        (Mixture.uniform("ab").state_dict() | {"probabilities": {"a": 0.5, "b": 0.4}}, "sum to 0.9"),
        ({"version": Mixture.uniform("ab").state_dict()["version"]}, "no 'probabilities'"),
        (None, "NoneType"),
    ):
        with pytest.raises(ValueError, match=message):
            mixture.load_state_dict(state)
    assert (mixture["a"], mixture.version) == (0.25, 0)
    mixture.load_state_dict(Mixture.uniform("ab").state_dict())  # without sizes
    assert mixture.state_dict() == Mixture.uniform({"a": 1, "b": 3}).state_dict()


@given(SIZES, SIZES, st.floats(0.01, 100))
def test_an_extended_mixture_plans_what_is_new_and_keeps_the_proportions_of_the_rest(old, sizes, passes):
    sizes = sizes | dict(list(old.items())[::2])
    learned, draws = Mixture.temperature(old, 2), passes * sum(sizes.values())
    extended, plan = Mixture.extended(learned, sizes, draws), Mixture.planned(sizes, draws)
    assert all(extended[name] == pytest.approx(plan[name]) for name in sizes if name not in old)
    factors = [extended[name] / learned[name] for name in sizes if name in old]
    assert max(factors) == pytest.approx(min(factors))
    assert Mixture.extended(learned.probabilities, old).probabilities == learned.probabilities  # bit for bit


def test_a_moved_mixture_is_one_through_every_reference_and_counts_its_moves():
    mixture = Mixture.uniform(["a", "b"])
    mixture.move({"b": 0.9, "a": 0.1})
    assert mixture.probabilities == {"a": 0.1, "b": 0.9}
    assert mixture.version == 1
    mixture.probabilities["a"] = 5  # a copy
    assert mixture["a"] == 0.1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mixture({}), "at least one dataset"),
        (lambda: Mixture({"az-en": -0.2, "b": 1.2}), "probabilities.*'az-en' is -0.2"),
        (lambda: Mixture({"a": math.nan, "b": 1}), "probabilities.*'a' is nan"),
        (lambda: Mixture({"a": 0.5, "b": 0.4}), "sum to 1.* 0.9"),
        (lambda: Mixture({"a": math.inf}), "sum to 1.* inf"),
        (lambda: Mixture({"a": 1.7e308, "b": 1.7e308}), "sum to 1.* inf"),
        (lambda: Mixture({"": 1.0}), "names.*''"),
        (lambda: Mixture({3: 1.0}), "names.*3"),
        (lambda: Mixture({"a": 1.0}, {"a": 0}), "sizes.*'a' is 0"),
        (lambda: Mixture.uniform([]), "at least one dataset"),
        (lambda: Mixture.uniform(["a", "b", "a"]), "'a'.*more than once"),
        (lambda: Mixture.proportional({"a": 5, "b": 0}), "Mixture.proportional: sizes.*'b' is 0"),
        (lambda: Mixture.proportional({"a": math.nan}), "sizes.*'a' is nan"),
        (lambda: Mixture.proportional({}), "Mixture.proportional: .*at least one dataset"),
        (lambda: Mixture.temperature({"a": 1}, tau=0), "tau.* 0"),
        (lambda: Mixture.temperature({"a": 1}, tau=math.nan), "tau.* nan"),
        (lambda: Mixture.unimax({"a": 1}, budget=0, max_passes=4), "budget.* 0"),
        (lambda: Mixture.unimax({"a": 1}, budget=9, max_passes=-1), "max_passes.* -1"),
        (lambda: Mixture.extended({"a": 1.0}, {"b": 1}), "extended.* none .*'b'"),
        (lambda: Mixture.uniform("abc").move({"a": 1.0}), "'b', 'c' are missing"),
        (lambda: Mixture.uniform("ab").move({"a": 1.0, "b": 0, "c": 0}), "'c' is unknown; there are 'a', 'b'"),
    ],
)
def test_a_bad_mixture_is_refused_with_the_culprit(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_other_types_and_unknown_names_are_refused_with_the_culprit():
    with pytest.raises(TypeError, match="probabilities.*'b' is 'x'"):
        Mixture({"a": 0.5, "b": "x"})
    with pytest.raises(TypeError, match="Mixture.temperature: sizes.*'a' is None"):
        Mixture.temperature({"a": None}, tau=2)
    with pytest.raises(TypeError, match=r"'a' is \['x', .{,40}; give its number of examples"):
        Mixture.proportional({"a": ["x"] * 10**5})
    with pytest.raises(KeyError, match="no dataset 'c'; there are 'a', 'b'"):
        Mixture.uniform("ab")["c"]


def test_a_mixture_becomes_a_dict():
    assert dict(Mixture({"a": 0.25, "b": 0.75})) == {"a": 0.25, "b": 0.75}


def test_a_mixture_is_shown_in_a_line():
    assert repr(Mixture({"a": 0.25, "b": 0.75})) == "Mixture(b 75%, a 25%)"
    assert repr(Mixture({"a": 0.996, "b": 0.004})) == "Mixture(a 100%, b 0.4%)"
    many = repr(Mixture.uniform(f"a name that is long, {i:05}" for i in range(10_000)))
    assert many.startswith("Mixture(10,000 datasets: a name that is long, 00…")
    assert many.endswith(" 0.01%, 9,996 more)")
    assert len(many) < 200
    assert repr(Mixture.uniform(["new\nline"])) == "Mixture(new?line 100%)"
