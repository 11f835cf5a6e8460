import pytest
import torch
from toys import batches, loss, mlp

from multidds import Balancer, Mixture, Probes
from multidds.gradients.vectors import Whole
from multidds.probes.averaged_parameters import AveragedParameters


def averaged(model, steps=4):
    names, params = zip(*model.named_parameters(), strict=True)
    return AveragedParameters(params, names, Whole(), steps)


def test_it_is_the_mean_of_the_first_steps_and_then_an_exponential_one():
    model = torch.nn.Linear(1, 1, bias=False)
    average, expected = averaged(model), None
    for step in range(12):
        with torch.no_grad():
            model.weight.fill_(float(step))
        if step == 0:
            average, expected = averaged(model), 0.0
            continue
        average.update(step)
        average.update(step)  # again, which counts once
        expected += max(1 / 4, 1 / step) * (step - expected)
    with average.applied():
        assert model.weight.item() == pytest.approx(expected)
    assert model.weight.item() == 11.0


@pytest.mark.claim(
    "The method", "probes are taken at averaged parameters, and the parameters are afterwards what they were"
)
def test_a_balancer_probes_at_the_averages_and_leaves_the_parameters():
    model, sets = mlp(), batches("ab", count=2)
    seen = []

    def watched(model, batch):
        seen.append(model[0].weight.detach().clone())
        return loss(model, batch)

    balancer = Balancer(Mixture.uniform("ab"), model, watched, train=sets, dev={"x": sets["a"]}, every=3)
    history = []
    for _ in range(3):
        with torch.no_grad():
            model[0].weight.add_(1.0)
        history.append(model[0].weight.detach().clone())
        balancer.step()
    assert seen[0] == pytest.approx(torch.stack(history).mean(0), abs=1e-12)
    assert torch.equal(model[0].weight, history[-1])


def test_without_an_average_probes_are_at_the_parameters():
    model, sets = mlp(), batches("ab", count=2)
    options = {"train": sets, "dev": {"x": sets["a"]}, "every": 1, "probes": Probes(average=0)}
    balancer = Balancer(Mixture.uniform("ab"), model, loss, **options)
    assert balancer.state_dict()["tensors"] == {}


def test_a_state_of_other_parameters_is_refused_and_changes_nothing():
    one, other = averaged(mlp()), averaged(mlp(width=7))
    one.update(1)
    other.update(1)
    before = {key: value.clone() for key, value in one.tensors().items()}
    with pytest.raises(ValueError, match="averaged.0.weight"):
        one.load_state_dict({"updates": 3, "last": 3}, other.tensors())
    assert all(torch.equal(value, one.tensors()[key]) for key, value in before.items())


@pytest.mark.claim("The method", "weights that are loaded into the model before the first step are averaged, no others")
def test_weights_loaded_after_the_balancer_was_made_count():
    found = []
    for loads_first in (True, False):
        model, trained, sets = mlp(), mlp(seed=3), batches("ab", count=2)
        if loads_first:
            model.load_state_dict(trained.state_dict())
        balancer = Balancer(Mixture.uniform("ab"), model, loss, train=sets, dev={"x": sets["a"]}, every=1)
        if not loads_first:
            model.load_state_dict(trained.state_dict())
        found.append(balancer.step().rewards)
    assert found[0] == found[1]


@pytest.mark.claim("The method", "averages that met inf or NaN begin anew and are not saved")
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_spike_that_was_undone_ends_with_the_next_update(value, caplog):
    model, sets = mlp(), batches("ab", count=2)
    balancer = Balancer(Mixture.uniform("ab"), model, loss, train=sets, dev={"x": sets["a"]}, every=3)
    balancer.step()
    with torch.no_grad():
        before = model[0].weight[0, 0].item()
        model[0].weight[0, 0] = value
        balancer.step()
        model[0].weight[0, 0] = before
    assert [balancer.step().skipped, *(balancer.step() for _ in range(2)), balancer.step().skipped] == [None] * 4
    assert "inf or NaN" in caplog.messages[-1]
    assert torch.equal(balancer.state_dict()["tensors"]["averaged.0.weight"], model[0].weight)


def test_averages_that_are_not_finite_are_not_saved(caplog):
    model, sets = mlp(), batches("ab", count=2)
    balancer = Balancer(Mixture.uniform("ab"), model, loss, train=sets, dev={"x": sets["a"]}, every=9)
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    balancer.step()
    state = balancer.state_dict()
    assert state["tensors"] == {}
    assert "inf or NaN" in caplog.messages[-1]
    balancer.load_state_dict(state)
    assert balancer.step() is None
