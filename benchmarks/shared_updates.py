"""What an update of the mixture takes when ranks share it out: wall time and bytes, for the same probes in all.

    python benchmarks/shared_updates.py [--rounds 5]

Two processes of one thread each (gloo). In turns: one process makes an update alone while the other waits; both share
it out; both take every gradient together, each half of the batches. Prints medians, their ratios to one process, the
same of the processor time of the rank that needs most (which other work on the machine disturbs less), and what each
rank hands to collectives in an update. Half a minute on two quiet cores.
"""

import argparse
import os
import pickle
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from multidds import Balancer, Mixture, Probes
from multidds.rules import paper

DATASETS, DEV_SETS, BATCHES, WIDTH, LAYERS, EXAMPLES = 8, 8, 2, 384, 6, 256
sent = 0  # bytes that this rank has handed to collectives


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
    return Balancer(Mixture.uniform(list(train)), model, loss, train=train, dev=dev, every=1, probes=probes, **paper())


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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(one_rank, (folder, parser.parse_args().rounds), nprocs=2)
