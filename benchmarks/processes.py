"""Two processes of one thread each against one: the time of a step, and of an update.

    cd FOLDER  # where recipes/tiny.toml was prepared
    python benchmarks/processes.py steps recipes/tiny.toml [--turns 3]
    python benchmarks/processes.py updates [--turns 5]

**steps.** Short trainings of the application with the same global batch take turns. Figures are medians of ratios of
neighbouring turns. The ratio of wall-clock times needs two free cores. The ratio of CPU times of one process shows its
share of the work and the overhead. An agreement on a number, which happens twice in every step, is measured too.

**updates.** An update is made in three ways: by one process while the other waits, divided between both, and by both
together, with half of the batches of each gradient. Printed are medians, their ratios to one process, the same for the
CPU time of the slowest rank, and the bytes that each rank gives to collectives. Half a minute on two quiet cores.
"""

import argparse
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from multidds import Balancer, Mixture, Probes
from multidds.nmt.common import launch
from multidds.rules import paper

STEPS, FIRST = 14, 4  # in all, and those before the clocks start
SETTINGS = (  # a model for which a step takes long enough to be worth sharing
    "model.width=128",
    "model.inner=512",
    "mixture.method=static",
    "train.tokens=2048",
    "train.batch_tokens=1024",
    "train.max_steps=1000",
    "train.threads=1",
)
AGREEMENTS = 200
DATASETS, DEV_SETS, BATCHES, WIDTH, LAYERS, EXAMPLES = 8, 8, 2, 384, 6, 256
sent = 0  # bytes that this rank has handed to collectives

# ---------------------------------------------------------------------------------------------- steps


def measured(recipe: Path, processes: int) -> dict[str, float]:
    """The median step of the first process: seconds on the clock and of its CPU; an agreement in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        start = [sys.executable]
        if processes > 1:
            start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        command = [*start, __file__, "steps", str(recipe), "--folder", f"{folder}/run"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def train(recipe: Path, run: Path) -> None:
    """In each process: some steps as the loop takes them, without its records. The first prints what they took."""
    launch.form_group()
    from multidds.nmt.config.config import load_config
    from multidds.nmt.training.train import Training

    training = Training(load_config(recipe, SETTINGS), run)
    clocks: list[tuple[float, float]] = []
    for _ in range(STEPS):
        batches, _, tokens = training.stream.next(training.steps_until_update())
        training.step(batches, tokens)
        training.progress.step += 1
        training.check_losses()
        training.processes.any(False)
        clocks.append((time.perf_counter(), time.process_time()))
    wall, cpu = (
        statistics.median(b - a for a, b in zip(c[FIRST - 1 :], c[FIRST:], strict=False))
        for c in zip(*clocks, strict=True)
    )
    began = time.process_time()
    for _ in range(AGREEMENTS):
        training.processes.any(False)
    agreement = (time.process_time() - began) / AGREEMENTS
    training.close()
    if training.processes.rank == 0:
        print(json.dumps({"clock": wall, "CPU": cpu, "agreement": agreement}), flush=True)
    training.processes.meet()
    launch.exit_process(0)


def steps(recipe: Path, wanted: int) -> None:
    turns = []
    for turn in range(wanted):
        both = {count: measured(recipe, count) for count in ((1, 2), (2, 1))[turn % 2]}
        turns.append({kind: both[2][kind] / both[1][kind] for kind in ("clock", "CPU")} | {"raw": both})
        print(json.dumps(turns[-1]), flush=True)
    for kind in ("clock", "CPU"):
        ratios = [turn[kind] for turn in turns]
        middle = statistics.median(ratios)
        print(f"a step of two processes, {kind}: {middle:.2f} of one ({min(ratios):.2f} to {max(ratios):.2f})")
    seconds = statistics.median(turn["raw"][2]["agreement"] for turn in turns)
    print(f"an agreement: {seconds * 1e6:.0f} microseconds of CPU")


# ---------------------------------------------------------------------------------------------- updates


def counted(function, size):
    def wrapped(*args, **kwargs):
        global sent
        sent += size(*args)
        return function(*args, **kwargs)

    return wrapped


def loss(model, batch):
    return nn.functional.mse_loss(model(batch), batch)


def balancer(group, split_work):
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers), process_group=group)

    def source(generator):
        return torch.randn(EXAMPLES, WIDTH, generator=generator)

    train, dev = ({f"{role}{i}": source for i in range(n)} for role, n in (("t", DATASETS), ("d", DEV_SETS)))
    probes = Probes(batches=BATCHES, count="in all", split_work=split_work)
    return Balancer(
        Mixture.uniform(list(train)), model, loss, train=train, dev=dev, every=1, probes=probes, rule=paper()
    )


def one_rank(rank, folder, rounds):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    groups = [dist.new_group([each]) for each in range(2)]
    ways = {"one process": balancer(groups[rank], True), "shared out": balancer(None, True)}
    ways["together"] = balancer(None, False)
    dist.all_reduce = counted(dist.all_reduce, lambda t, *_: t.numel() * t.element_size())
    dist.all_gather = counted(dist.all_gather, lambda _, t, *__: t.numel() * t.element_size())
    dist.all_gather_object = counted(dist.all_gather_object, lambda _, value, *__: len(pickle.dumps(value)))
    seconds, rewards = {way: [] for way in ways}, {}
    for turn in range(rounds + 1):  # the first warms up, and looks for what can be shared out
        for way, each in ways.items():
            dist.barrier()
            global sent
            sent, began, busy = 0, time.perf_counter(), time.process_time()
            if way != "one process" or rank == 0:
                rewards[way] = each.step().rewards
            busy = time.process_time() - busy
            dist.barrier()
            if turn:
                seconds[way].append((time.perf_counter() - began, busy, sent))
    everyones = [None] * 2
    dist.all_gather_object(everyones, {way: statistics.median(m[1] for m in each) for way, each in seconds.items()})
    if rank == 0:
        busiest = {way: max(each[way] for each in everyones) for way in ways}
        report(seconds, busiest, rewards, (WIDTH + 1) * WIDTH * LAYERS)
    dist.barrier()
    os._exit(0)


def report(seconds, busiest, rewards, parameters):
    passes = (DATASETS + DEV_SETS) * BATCHES
    print(f"{parameters / 1e6:.1f} M parameters, {DATASETS} datasets, {DEV_SETS} dev sets, {passes} passes in all")
    alone = statistics.median(m[0] for m in seconds["one process"])
    for way, measured in seconds.items():
        median, size = statistics.median(m[0] for m in measured), measured[-1][2] / 1e6
        difference = max(abs(rewards[way][name] - r) for name, r in rewards["one process"].items())
        print(
            f"{way:12}  {median:7.3f} s  ratio {median / alone:.2f}  processor {busiest[way]:6.3f} s  "
            f"ratio {busiest[way] / busiest['one process']:.2f}  {size:7.2f} MB to collectives  "
            f"rewards differ by {difference:.0e}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["steps", "updates"])
    parser.add_argument("recipe", type=Path, nargs="?", help="steps: a prepared recipe")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.what == "updates":
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(one_rank, (folder, arguments.turns), nprocs=2)
    elif arguments.recipe is None:
        parser.error("steps needs a prepared recipe. Name it: processes.py steps recipes/tiny.toml.")
    elif arguments.folder is not None:
        train(arguments.recipe, arguments.folder)
    else:
        steps(arguments.recipe, arguments.turns)


if __name__ == "__main__":
    main()
