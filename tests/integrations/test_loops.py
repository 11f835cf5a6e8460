"""The examples for Accelerate and for torchdata's StatefulDataLoader: equal to plain loops, resumed exactly."""

from itertools import islice

import accelerate_loop
import plain_loop
import pytest
import stateful_loader
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate_loop import loss
from assertions import assert_ranks_equal_one_process
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from multidds import Balancer, Mixture, MixtureSampler, Probes, batches_of, interleave

SIZES = plain_loop.SIZES


@pytest.fixture(autouse=True)
def no_accelerator():
    """Accelerate keeps its settings in objects of the process, also those of trainers in other tests."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def data():
    train = {name: plain_loop.examples(name, size, seed=i) for i, (name, size) in enumerate(SIZES.items())}
    return train, {name: plain_loop.examples(name, 300, seed=10 + i) for i, name in enumerate(("web", "rare"))}


def made_by_hand(dropout, batch_size):
    """A model, its optimizer and balancer without any library around them."""
    train, dev = data()
    torch.manual_seed(0)
    layers = [nn.Linear(plain_loop.WIDTH, 64), nn.ReLU(), *dropout, nn.Linear(64, 2)]
    model = nn.Sequential(*layers)
    balancer = Balancer(
        Mixture.proportional(SIZES),
        model,
        loss,
        train={name: batches_of(d, batch_size) for name, d in train.items()},
        dev={name: batches_of(d, batch_size) for name, d in dev.items()},
        every=20,
        probes=Probes(batches=2),
    )
    return model, torch.optim.Adam(model.parameters(), lr=3e-3), balancer


def step(model, optimizer, batches):
    for batch in batches:
        (loss(model, batch) / len(batches)).backward()
    optimizer.step()
    optimizer.zero_grad()


def parameters(model):
    return [p.tolist() for p in model.parameters()]


def state_of(run):
    model = run.accelerator.unwrap_model(run.model)
    return parameters(model), run.mixture.probabilities, run.loader.batch_sampler.state_dict()


@pytest.mark.claim("Accelerate", "**same result as a loop by hand**, **gradient accumulation**")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_accelerate_equals_the_loop_by_hand(accumulate):
    run = accelerate_loop.Run(dropout=0.0, accumulate=accumulate)
    run.train(60 * accumulate)
    model, optimizer, balancer = made_by_hand([nn.Dropout(0.0)], 64)
    sampler = MixtureSampler(SIZES, balancer.mixture, 64, seed=1)
    stream = iter(DataLoader(ConcatDataset(data()[0].values()), batch_sampler=sampler))
    for _ in range(60):
        step(model, optimizer, [next(stream) for _ in range(accumulate)])
        balancer.step()
    assert balancer.mixture.version == 3
    assert state_of(run) == (parameters(model), balancer.mixture.probabilities, sampler.state_dict())


@pytest.mark.claim("Accelerate", "**exact resume** by `save_state` and `load_state`")
def test_accelerate_resumes_exactly(tmp_path):
    whole = accelerate_loop.Run()
    whole.train(90)
    first = accelerate_loop.Run()
    first.train(50)
    first.accelerator.save_state(str(tmp_path))
    second = accelerate_loop.Run()
    second.accelerator.load_state(str(tmp_path))
    second.train(40)
    assert state_of(second) == state_of(whole)
    for path in tmp_path.glob("custom_checkpoint_*.pkl"):
        torch.load(path, weights_only=True)


def trained():
    run = accelerate_loop.Run(dropout=0.0)
    assert run.accelerator.num_processes == (dist.get_world_size() if dist.is_initialized() else 1)
    run.train(60)
    weights, mixture, sampler = state_of(run)
    return weights, mixture, sampler["position"], sampler["counts"]


def shared_out():
    """A prepared loader divides all draws of a sampler among the processes."""
    accelerator, mixture = Accelerator(cpu=True), Mixture.proportional(SIZES)
    sampler = MixtureSampler(SIZES, mixture, 4, seed=1, rank=0, world_size=1)
    batches = iter(accelerator.prepare(DataLoader(range(sum(SIZES.values())), batch_sampler=sampler)))
    every = [None, None]
    dist.all_gather_object(every, [next(batches).tolist() for _ in range(5)])
    expected = list(islice(MixtureSampler(SIZES, mixture, 4, seed=1, rank=0, world_size=1), 10))
    assert [batch for pair in zip(*every, strict=True) for batch in pair] == expected


@pytest.mark.claim("Accelerate", "**two processes** equal one with twice the batch")
@pytest.mark.claim(
    "Accelerate", "a sampler of all draws (`rank=0, world_size=1`) may be shared out by a prepared loader"
)
def test_accelerate_on_two_processes_equals_one(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert_ranks_equal_one_process(
        trained, tmp_path, tolerance=1e-4, checks=[shared_out, accelerate_resumes], fork=True
    )


def accelerate_resumes():
    """The example saves and resumes on both processes."""
    accelerate_loop.main(40)


@pytest.mark.claim("Accelerate", "prepared loaders are refused")
def test_prepared_loaders_are_refused():
    accelerator, mixture = Accelerator(cpu=True), Mixture.proportional(SIZES)
    prepared = {name: accelerator.prepare(DataLoader(d, batch_size=8)) for name, d in data()[0].items()}
    with pytest.raises(ValueError, match="interleave: .*'web': .*Accelerate"):
        interleave(prepared, mixture)
    with pytest.raises(ValueError, match="Balancer: .*'web': .*Accelerate"):
        Balancer(mixture, nn.Linear(1, 1), loss, train=prepared, dev={"x": lambda generator: None})


@pytest.mark.claim("StatefulDataLoader", "**same result as a loop by hand**, **streams**: data without indices")
def test_stateful_loaders_equal_the_loop_by_hand():
    """A stream in order gives what a loader in order gives: 250 steps go past the end of the smallest dataset."""
    run = stateful_loader.Run()
    run.train(250)
    model, optimizer, balancer = made_by_hand([], 128)
    loaders = {name: DataLoader(d, batch_size=64) for name, d in data()[0].items()}
    stream = interleave(loaders, balancer.mixture, seed=1)
    for _ in range(250):
        step(model, optimizer, [next(stream)[1]])
        balancer.step()
    assert run.stream.passes["rare"] >= 1
    assert parameters(run.model) == parameters(model)
    assert run.mixture.probabilities == balancer.mixture.probabilities


@pytest.mark.claim("StatefulDataLoader", "**exact resume**, **data-loader workers**: 0 and 2")
@pytest.mark.parametrize(("workers", "steps"), [(0, 120), (2, 24)])
def test_stateful_loaders_resume_exactly(workers, steps):
    whole = stateful_loader.Run(workers)
    whole.train(steps)
    resumed = stateful_loader.main(steps, workers)
    assert parameters(resumed.model) == parameters(whole.model)
    assert resumed.mixture.probabilities == whole.mixture.probabilities
    assert resumed.stream.examples == whole.stream.examples


@pytest.mark.claim("StatefulDataLoader", "a `MixtureSampler` inside, without workers")
def test_stateful_loader_keeps_the_place_of_a_mixture_sampler():
    sizes = {"a": 30, "b": 7}

    def batches(mixture, state=None):
        sampler = MixtureSampler(sizes, mixture, batch_size=4, seed=3)
        loader = StatefulDataLoader(range(37), batch_sampler=sampler)
        if state is not None:
            loader.load_state_dict(state)
        for batch in loader:
            yield batch.tolist(), loader.state_dict()

    mixture = Mixture.proportional(sizes)
    whole, state = [], None
    for i, (batch, here) in enumerate(islice(batches(mixture), 13)):
        whole.append(batch)
        if i == 4:
            mixture.move({"a": 0.2, "b": 0.8})
        if i == 6:
            state = here
    resumed = [batch for batch, _ in islice(batches(Mixture({"a": 0.2, "b": 0.8}), state), 6)]
    assert resumed == whole[7:]
