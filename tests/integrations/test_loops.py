"""The examples for Accelerate and for torchdata's StatefulDataLoader: equal to plain loops, resumed exactly."""

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import accelerate_loop
import plain_loop
import pytest
import ranks
import stateful_loader
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate_loop import loss
from ranks import leave
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from multidds import Balancer, Mixture, MixtureSampler, batches_of, interleave

SIZES = plain_loop.SIZES


@pytest.fixture(autouse=True)
def no_accelerator_is_left():
    """Accelerate keeps its settings in objects of the process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def data():
    train = {name: plain_loop.examples(name, size, seed=i) for i, (name, size) in enumerate(SIZES.items())}
    return train, {name: plain_loop.examples(name, 300, seed=10 + i) for i, name in enumerate(("web", "rare"))}


def made_by_hand(sources, dropout, batch_size, batches):
    """A model, its optimizer, mixture and balancer without any library around them."""
    train, dev = sources
    torch.manual_seed(0)
    layers = [nn.Linear(plain_loop.WIDTH, 64), nn.ReLU(), *dropout, nn.Linear(64, 2)]
    model, mixture = nn.Sequential(*layers), Mixture.proportional(SIZES)
    balancer = Balancer(
        mixture,
        model,
        loss,
        train={name: batches_of(d, batch_size) for name, d in train.items()},
        dev={name: batches_of(d, batch_size) for name, d in dev.items()},
        every=20,
        batches=batches,
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
    model, optimizer, balancer = made_by_hand(data(), [nn.Dropout(0.0)], 64, 2)
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


def join(rank, folder):
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "ACCELERATE_USE_CPU": "true"}
    places |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1, "GLOO_SOCKET_IFNAME": "lo"}
    os.environ.update({key: str(value) for key, value in places.items()})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)


def one_rank(rank, folder):
    join(rank, folder)
    run = accelerate_loop.Run(dropout=0.0)
    assert run.accelerator.num_processes == 2
    run.train(60)
    (folder / f"{rank}.json").write_text(json.dumps(state_of(run)))
    accelerate_loop.main(40, str(folder / "state"))  # also saves and resumes on both
    leave()


@pytest.mark.claim("Accelerate", "**two processes** equal one with twice the batch")
def test_accelerate_on_two_processes_equals_one(tmp_path):
    torch.multiprocessing.start_processes(one_rank, (tmp_path,), nprocs=2, start_method="fork")  # imports are slow
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert ranks[0] == ranks[1]
    run = accelerate_loop.Run(dropout=0.0)
    run.train(60)
    weights, mixture, sampler = state_of(run)
    assert ranks[0][1] == pytest.approx(mixture, abs=1e-5)
    assert ranks[0][2] | {"mixtures": []} == sampler | {"mixtures": []}
    for got, expected in zip(ranks[0][0], weights, strict=True):
        assert torch.allclose(torch.tensor(got), torch.tensor(expected), atol=1e-4)


@pytest.mark.claim("Accelerate", "the documented command starts two processes")
@pytest.mark.claim("Several processes", "the documented commands start two processes")
@pytest.mark.slow
def test_the_command_of_the_example_starts_two_processes(tmp_path):
    """Accelerate's own launcher starts one on a CPU, whatever --num_processes says."""
    (line,) = [line.split() for line in accelerate_loop.__doc__.splitlines() if "torchrun" in line and "--" in line]
    script = tmp_path / "counted.py"
    script.write_text(
        "import pathlib, accelerate_loop, torch.distributed as dist\n"
        "mixture = accelerate_loop.main(40)\n"
        "place = f'{dist.get_rank()} of {dist.get_world_size()}'\n"
        "pathlib.Path(__file__).with_name(place).write_text(str(mixture))\n"
        "from ranks import leave\n"
        "leave()\n"
    )
    paths = os.pathsep.join(str(Path(module.__file__).parent) for module in (accelerate_loop, ranks))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([paths, *sys.path]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *line[1:-1], str(script)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    said = {path.name: path.read_text() for path in tmp_path.glob("* of *")}
    assert said.keys() == {"0 of 2", "1 of 2"}
    assert len(set(said.values())) == 1  # one mixture


def loader_of(sampler):
    return DataLoader(ConcatDataset(data()[0].values()), **sampler)


@pytest.mark.claim("Accelerate", "prepared loaders are refused")
def test_a_loader_prepared_out_of_habit_is_refused():
    accelerator, mixture = Accelerator(cpu=True), Mixture.proportional(SIZES)
    message = "^{}: {} 'web': the loader was prepared by Accelerate, .* Give it unprepared"
    prepared = {name: accelerator.prepare(DataLoader(d, batch_size=8)) for name, d in data()[0].items()}
    with pytest.raises(ValueError, match=message.format("interleave", "loader")):
        interleave(prepared, mixture)
    with pytest.raises(ValueError, match=message.format("Balancer", "train")):
        Balancer(mixture, nn.Linear(1, 1), loss, train=prepared, dev={"x": lambda generator: None})


def one_rank_of_a_prepared_loader(rank, folder):
    join(rank, folder)
    accelerator, mixture = Accelerator(cpu=True), Mixture.proportional(SIZES)
    sampler = MixtureSampler(SIZES, mixture, 4, seed=1, rank=0, world_size=1)
    batches = iter(accelerator.prepare(DataLoader(range(sum(SIZES.values())), batch_sampler=sampler)))
    (folder / f"{rank}.json").write_text(json.dumps([next(batches).tolist() for _ in range(5)]))
    leave()


@pytest.mark.claim(
    "Accelerate", "a sampler of all draws (`rank=0, world_size=1`) may be shared out by a prepared loader"
)
def test_a_sampler_of_all_draws_may_be_shared_out_by_accelerate(tmp_path):
    torch.multiprocessing.start_processes(one_rank_of_a_prepared_loader, (tmp_path,), nprocs=2, start_method="fork")
    ranks_ = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    expected = list(islice(MixtureSampler(SIZES, Mixture.proportional(SIZES), 4, seed=1), 10))
    assert [batch for pair in zip(*ranks_, strict=True) for batch in pair] == expected


def test_the_accelerate_example_drops_the_noise(tmp_path):
    mixture = accelerate_loop.main(400, str(tmp_path))
    assert mixture["junk"] < Mixture.proportional(SIZES)["junk"] / 2


@pytest.mark.claim("StatefulDataLoader", "**same result as a loop by hand**, **streams**: data without indices")
def test_stateful_loaders_equal_the_loop_by_hand():
    """A stream in order gives what a loader in order gives: 250 steps go past the end of the smallest "
    "dataset."""
    run = stateful_loader.Run()
    run.train(250)
    model, optimizer, balancer = made_by_hand(data(), [], 128, 2)
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


def test_the_stateful_example_drops_the_noise():
    run = stateful_loader.main(400)
    assert run.mixture["junk"] < Mixture.proportional(SIZES)["junk"] / 2


@pytest.mark.claim("StatefulDataLoader", "a `MixtureSampler` inside, without workers")
def test_a_stateful_loader_keeps_the_place_of_a_mixture_sampler():
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
    for i, (batch, here) in enumerate(batches(mixture)):
        whole.append(batch)
        if i == 4:
            mixture.move({"a": 0.2, "b": 0.8})
        if i == 6:
            state = here
        if i == 12:
            break
    resumed = [batch for batch, _ in islice(batches(Mixture({"a": 0.2, "b": 0.8}), state), 6)]
    assert resumed == whole[7:]
