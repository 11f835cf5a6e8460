import copy

import pytest
import torch
from toys import batches, loss, mlp

import multidds
from multidds.probes import probe


def test_it_is_the_table_of_cosines_with_errors_and_leaves_the_model_untouched():
    model, train, dev = mlp(), batches("ab", count=4), batches("xy", count=4, seed=1)
    before = copy.deepcopy(model.state_dict())
    found = multidds.relevance(model, loss, train, dev, batches=4)
    exact = probe(model, loss, train, dev, mode="eval").cosines()
    for k, dev_name in enumerate("xy"):
        for i, name in enumerate("ab"):
            cosine, error = found[dev_name][name]
            assert cosine == pytest.approx(exact[k, i].item(), abs=0.02)
            assert error > 0
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in before.items())
    assert "a " in str(found)


def test_the_same_data_help_most():
    model, sets = mlp(), batches("ab", count=4)
    found = multidds.relevance(model, loss, sets, {"goal": sets["a"]}, batches=4)
    assert found["goal"]["a"][0] == pytest.approx(1.0, abs=1e-6)
    assert found["goal"]["b"][0] < 0.9


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
