"""Several processes of one test, joined by gloo."""

import os

import torch
import torch.distributed as dist


def run_on_ranks(function, folder, world_size, *arguments, fork=False):
    """Calls `function(*arguments)` in `world_size` new processes and returns their results in the order of the ranks.

    function: a function of a test module, not a lambda or a local one: the new processes import it
    folder: an empty folder, such as pytest's `tmp_path`, where the processes meet and leave their results
    fork: True: copies of this process, which need not import a trainer's library again. Default False: new ones
    """
    method = "fork" if fork else "spawn"
    given = (function, str(folder), world_size, arguments)
    torch.multiprocessing.start_processes(_one_rank, given, nprocs=world_size, start_method=method)
    return [torch.load(f"{folder}/result{rank}.pt", weights_only=False) for rank in range(world_size)]


def _one_rank(rank, function, folder, world_size, arguments):
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "GROUP_RANK": "0"}
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    os.environ |= {name: str(value) for name, value in places.items()}  # as torchrun sets them, for trainers
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world_size)
    torch.save(function(*arguments), f"{folder}/result{rank}.pt")
    leave()


def leave():
    """Ends the process together with the others, without taking gloo's group apart.

    torch can wait there for a thread that waits for the GIL.
    """
    dist.barrier()
    os._exit(0)
