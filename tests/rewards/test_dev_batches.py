"""Dev sets: batches drawn once or when they are used, weights, states."""

import pytest
from assertions import assert_equal
from toys import batches, dataset, loss, mlp

from multidds import batches_of
from multidds.probes.probe_sources import ProbeSources
from multidds.probes.prober import Prober
from multidds.rewards.dev_batches import DevBatches


def dev_batches(prober, priority="regular", names="ab"):
    dev = {name: batches_of(dataset(30, seed=i), 6) for i, name in enumerate(names)}
    return DevBatches("Owner", prober, ProbeSources("Owner", {"dev": dev}, 0), priority)


@pytest.fixture
def prober():
    return Prober(mlp(), loss, None, "train", 0, owner="Owner")


def test_batches_are_the_same_whether_they_are_kept_or_drawn_when_used(prober):
    with prober.invisible():
        gradients = []
        for keep in (False, True):
            drawn = dev_batches(prober).draw(3, total=2, keep=keep)
            gradients.append([drawn.gradient(name) for name in "ab"])
        assert_equal(*gradients)
        assert drawn.loss("a") == drawn.loss("a") != drawn.loss("b")


@pytest.mark.parametrize("keep", [False, True])
def test_batches_are_drawn_at_once_only_to_be_kept(prober, keep):
    calls = []

    def source(generator):
        calls.append(1)
        return batches("a")["a"][0]

    sources = ProbeSources("Owner", {"dev": {"a": source, "b": source}}, 0)
    drawn = DevBatches("Owner", prober, sources).draw(0, total=3, keep=keep)
    assert drawn.kept == keep
    assert len(calls) == (6 if keep else 0)
    assert [number for number, _ in drawn.batches("a")] == [0, 1, 2]


def test_a_state_has_the_weights_and_is_loaded_whole_or_not_at_all(prober):
    dev, other, third = dev_batches(prober), dev_batches(prober, "low"), dev_batches(prober, "low", "abc")
    dev.weights.losses = {"a": 1.0, "b": 2.0}
    other.load_state_dict(dev.state_dict(), prober.seed)
    assert (other.weights.priority, other.weights.losses) == ("regular", {"a": 1.0, "b": 2.0})
    with pytest.raises(ValueError, match="'c'"):
        third.load_state_dict(dev.state_dict(), prober.seed)
    assert (third.weights.priority, third.weights.losses) == ("low", None)


def test_no_dev_set_is_refused(prober):
    with pytest.raises(ValueError, match="at least one dev set"):
        dev_batches(prober, names="")
