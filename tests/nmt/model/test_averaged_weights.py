import contextlib

import pytest
import torch
from torch import nn
from toy_runs import Silent, all_lines, records, same_runs, small_config, tensors, without_identity

from multidds.nmt.model.averaged_weights import AveragedWeights
from multidds.nmt.runs import checkpoints
from multidds.nmt.training.train import Training, train


def moved(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter)


@pytest.mark.parametrize("steps", [1, 2, 30, 100])
def test_the_average_is_the_weighted_sum_of_what_it_has_seen(steps):
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    averaged = AveragedWeights(model, steps)
    seen, weights = [], []
    for step in range(1, 151):
        moved(model)
        averaged.update(step)
        if (step - 1) % averaged.every == 0:
            weights = [weight * (1 - averaged.weight(step)) for weight in weights] + [averaged.weight(step)]
            seen.append(model.weight.detach().clone())
    assert sum(weights) == pytest.approx(1)  # nothing is left of the initial parameters
    expected = sum(weight * value for weight, value in zip(weights, seen, strict=True))
    assert torch.allclose(averaged.state_dict()["weight"], expected)


def test_the_window_is_the_last_tenth_until_it_is_as_long_as_asked_for():
    averaged = AveragedWeights(nn.Linear(1, 1), 20)
    assert averaged.every == 1
    assert averaged.weight(1) == 1
    assert averaged.weight(91) == pytest.approx(10 / 100)  # the last ten of a hundred
    assert averaged.weight(10_000) == pytest.approx(1 / 20)
    long = AveragedWeights(nn.Linear(1, 1), 1000)
    assert long.every == 50
    assert long.weight(100_001) == pytest.approx(50 / 1000)
    assert long.weight(1) == 1


def test_averaged_weights_are_swapped_in_and_out_bit_for_bit():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    averaged = AveragedWeights(model, 5)
    for step in (1, 2, 3):
        moved(model)
        averaged.update(step)
    trained = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    average = {name: tensor.clone() for name, tensor in averaged.state_dict().items()}
    places = [parameter.data_ptr() for parameter in model.parameters()]
    with contextlib.suppress(ZeroDivisionError), averaged.swapped():
        assert all(torch.equal(tensor, average[name]) for name, tensor in model.state_dict().items())
        with pytest.raises(AssertionError, match="are in the model"):
            averaged.update(4)
        with pytest.raises(AssertionError, match="already"), averaged.swapped():
            pass
        raise ZeroDivisionError
    assert all(torch.equal(tensor, trained[name]) for name, tensor in model.state_dict().items())
    assert all(torch.equal(tensor, average[name]) for name, tensor in averaged.state_dict().items())
    assert places == [parameter.data_ptr() for parameter in model.parameters()]  # compiled code and others hold on


@pytest.mark.parametrize("method", ["static", "multidds-s"])
def test_training_is_the_same_with_and_without_an_average(corpus, monkeypatch, tmp_path, method):
    settings = (f"mixture.method={method}", "train.validate_every=5")
    train(small_config(corpus, monkeypatch, *settings), tmp_path / "without", Silent())
    train(small_config(corpus, monkeypatch, "train.average=6", *settings), tmp_path / "with", Silent())
    without, with_average = tensors(tmp_path / "without"), tensors(tmp_path / "with")
    assert all(torch.equal(tensor, with_average[name]) for name, tensor in without.items())
    assert {name.split(".")[0] for name in with_average.keys() - without.keys()} == {"averaged"}
    both = [without_identity(all_lines(tmp_path / name)) for name in ("without", "with")]
    for one, other in zip(*both, strict=True):
        if one.get("kind") != "validation" and "eval_loss" not in one:
            assert one == other
    best, _ = checkpoints.read(tmp_path / "with" / "best.safetensors")
    assert all(torch.equal(tensor, with_average["averaged" + name[5:]]) for name, tensor in best.items())
    assert not all(torch.equal(tensor, with_average[name]) for name, tensor in best.items())


def test_a_run_with_an_average_that_was_cut_off_ends_as_one_that_was_not(corpus, monkeypatch, tmp_path):
    settings = ("train.average=40", "train.select=soft-bleu", "train.validate_every=3", "mixture.priority=low")
    settings += ("mixture.prior=proportional",)  # a plan for seven steps is another one
    config = small_config(corpus, monkeypatch, *settings)
    train(config, tmp_path / "whole", Silent())
    stopped = small_config(corpus, monkeypatch, *settings, "train.max_steps=7")
    train(stopped, tmp_path / "cut", Silent())
    lines = records(tmp_path / "cut")
    assert lines[-1]["step"] == 7
    (tmp_path / "cut" / "checkpoints" / "step-00000007.safetensors").unlink()  # back to step 4
    train(config, tmp_path / "cut", Silent())
    same_runs(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize(("method", "averaged"), [("learned", True), ("multidds-s", False)])
def test_the_default_probes_at_the_averaged_weights(corpus, monkeypatch, tmp_path, method, averaged):
    """The methods of the paper probe where they are."""
    config = small_config(corpus, monkeypatch, "train.average=3", f"mixture.method={method}", "mixture.every=4")
    run = Training(config, tmp_path / "run")
    for _ in range(4):
        assert run.progress.step == 0 or run.balance() is None  # not due
        batches, _, tokens = run.stream.next(run.steps_until_update())
        run.step(batches, tokens)
        run.progress.step += 1
    before = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    state = run.balancer.state_dict()
    update = run.balance()
    assert all(torch.equal(tensor, before[name]) for name, tensor in run.model.state_dict().items())
    run.balancer.load_state_dict(state)
    with run.at_averaged_weights() if averaged else contextlib.nullcontext():
        assert run.balancer.step().rewards == update.rewards
    run.balancer.load_state_dict(state)
    with contextlib.nullcontext() if averaged else run.at_averaged_weights():
        assert run.balancer.step().rewards != update.rewards
    run.close()
