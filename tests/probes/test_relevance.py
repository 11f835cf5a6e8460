"""`relevance`: the table of a model as it is, in one call."""

import copy
import math

import pytest
import torch
from datasets import Dataset as HuggingFaceDataset
from toys import batch, batches, dataset, loss, mlp

import multidds
from multidds import batches_of, reference


def test_it_is_the_table_of_cosines_with_errors_and_leaves_the_model_untouched():
    model, train, dev = mlp(), batches("ab", count=4), batches("xy", count=4, seed=1)
    before = copy.deepcopy(model.state_dict())
    found = multidds.relevance(model, loss, train, dev, batches=4)
    for dev_name in "xy":
        for name in "ab":
            cosine, error = found[dev_name][name]
            one, other = (reference.gradient(model, loss, each) for each in (dev[dev_name], train[name]))
            assert cosine == pytest.approx(reference.cosine(one, other), abs=1e-6)
            assert error > 0
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in before.items())


def test_the_same_data_help_most_and_are_shown_first():
    model, sets = mlp(), batches("ab", count=4)
    found = multidds.relevance(model, loss, sets, {"goal": sets["b"]}, batches=4)
    assert found["goal"]["b"][0] == pytest.approx(1.0, abs=1e-6)
    assert found["goal"]["a"][0] < 0.9
    title, first, second = str(found).splitlines()
    assert title == "goal:"
    assert first.split()[:3] == ["b", "+1.000", "±"]
    assert second.split()[0] == "a"


def test_the_error_of_a_set_without_parts_is_unknown():
    """One example, and one batch: not 0, and the other errors are known."""
    train = {"a": batches_of(dataset(30), 4), "one": batches_of(dataset(1), 4)}
    dev = {"x": batches_of(dataset(30, seed=1), 4), "one": [batch(2)]}
    found = multidds.relevance(mlp(), loss, train, dev)
    unknown = {(k, i) for k, row in found.items() for i, (_, error) in row.items() if math.isnan(error)}
    assert unknown == {("x", "one"), ("one", "a"), ("one", "one")}
    assert found["x"]["a"][1] > 0
    assert str(found).count("± ?") == 3
    assert "nan" not in str(found)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [({"batches": 1}, "batches.*1"), ({"train": {}}, "train"), ({"dev": {}}, "dev"), ({"mode": "on"}, "mode.*on")],
)
def test_what_cannot_be_measured_is_refused(arguments, named):
    given = {"train": batches("a", count=2), "dev": batches("x", count=2), **arguments}
    with pytest.raises(ValueError, match=named):
        multidds.relevance(mlp(), loss, **given)


def test_losses_that_are_not_finite_are_named():
    model = mlp()
    with torch.no_grad():
        model[0].weight.fill_(float("nan"))
    sets = batches("a", count=2)
    with pytest.raises(ValueError, match="not finite"):
        multidds.relevance(model, loss, sets, {"x": sets["a"]}, batches=2)


def test_one_dev_set_needs_no_name():
    train = {"a": batches_of(dataset(30), 5)}
    assert list(multidds.relevance(mlp(), loss, train, batches_of(dataset(30, seed=1), 5))) == ["dev"]


@pytest.mark.parametrize("make", [lambda: dataset(9), lambda: HuggingFaceDataset.from_dict({"x": [1, 2, 3]})])
def test_a_dataset_in_the_place_of_batches_is_refused_with_what_to_give(make, caplog):
    with pytest.raises(TypeError, match="'a'.*batches_of"):
        multidds.relevance(mlp(), loss, {"a": make()}, batches_of(dataset(30), 5))
    assert not caplog.messages
