"""The processes that a launcher (torchrun, accelerate launch) starts for one training: one group, and one end.

The launcher notices the death of a process, and ends or restarts the others. Without such a launcher, the others end
with the error of their next collective, which may take any time. Without a launcher, torch is not imported.
"""

import contextlib
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

from multidds._base.errors import UserError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # set by launchers
PATIENCE = 120.0  # seconds until all processes of a launch must have joined
_START = "multidds/start"  # the key of the store with the name of the newest start
_FOREVER = timedelta(days=365)  # a process may be slow: a death closes its connections

_group: "Store | None" = None  # the store of the group, once it is formed


def launched() -> tuple[int, int]:
    """Returns (rank, number of processes) of the launcher; (0, 1) without one."""
    if any(name not in os.environ for name in LAUNCHED):
        return 0, 1
    try:
        rank, size = (int(os.environ[name]) for name in LAUNCHED[:2])
    except ValueError:
        rank, size = 0, 0
    if not 0 <= rank < size:
        given = ", ".join(f"{name}={os.environ[name]}" for name in LAUNCHED[:2])
        raise UserError(f"the launcher's environment has {given}: expected a rank below the number of processes.")
    return rank, size


def form_group() -> None:
    """Joins the other processes of the launch, if there are any. Raises a UserError if they do not come."""
    global _group
    rank, size = launched()
    if size == 1:
        return
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # else every lost connection is a screen of stack frames
    import torch.distributed as dist

    place = "{}:{}".format(*(os.environ[name] for name in LAUNCHED[2:]))
    try:
        store = (_opened if rank == 0 else _joined)(_store(PATIENCE), rank, size, place)
        dist.init_process_group(backend(), store=store, rank=rank, world_size=size, timeout=_FOREVER)
    except (RuntimeError, ValueError) as error:  # also torch's own errors of stores and networks
        first = str(error).splitlines()[0]
        raise UserError(f"rank {rank} of {size} cannot form a group with the others at {place}: {first}") from None
    _group = store
    with contextlib.suppress(ValueError):  # not in the main thread
        # torchrun sends SIGTERM to the others when one has died; they still print why they exit.
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def backend() -> str:
    """Returns the backends of the group. Decisions go through main memory (gloo): no step has to wait for a GPU."""
    import torch
    import torch.distributed as dist

    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"


def _store(seconds: float) -> "Store":
    """Returns the store that all processes of this launch share, also before they are a group."""
    from torch.distributed.rendezvous import rendezvous

    store: Store
    store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=seconds)))
    return store


# torchrun keeps one store over all restarts, and machines may count those differently. So rank 0 gives every start a
# name, and opens it when all have come; the others join the newest start, until one is open that they have joined.


def _opened(store: "Store", rank: int, size: int, place: str) -> "Store":
    """Returns the part of the store for this start, on rank 0."""
    from torch.distributed.distributed_c10d import PrefixStore

    name = uuid.uuid4().hex
    store.set(_START, name)
    keys = {other: f"{name}/here/{other}" for other in range(size) if other != rank}
    try:
        store.wait(list(keys.values()), timedelta(seconds=PATIENCE))
    except RuntimeError:
        missing = ", ".join(str(other) for other, key in keys.items() if not store.check([key]))
        raise UserError(
            f"{size} processes were to meet at {place}, but rank {missing} did not come within {PATIENCE:.0f} seconds. "
            "Is every machine started, with the same number of processes?"
        ) from None
    store.set(f"{name}/open", "")
    return PrefixStore(name, store)


def _joined(store: "Store", rank: int, size: int, place: str) -> "Store":
    """Returns the part of the store for this start, on the other ranks."""
    from torch.distributed.distributed_c10d import PrefixStore

    mine, until = "", time.monotonic() + PATIENCE
    while time.monotonic() < until:
        name = store.get(_START).decode() if store.check([_START]) else ""
        is_open = bool(name) and store.check([f"{name}/open"])
        if is_open and name == mine:
            return PrefixStore(name, store)
        if name != mine and name and not is_open:
            store.set(f"{name}/here/{rank}", "")
            mine = name
        time.sleep(0.05)
    raise UserError(f"{size} processes were to meet at {place}, but not all came within {PATIENCE:.0f} seconds.")


def end(text: str, code: int, say: Callable[[str], None]) -> NoReturn:
    """Ends this process after an error. The first process that ends prints why.

    text: the message.
    code: the exit code.
    say: prints the message.
    """
    if _is_first():
        say(text)
    exit_process(code)


def _is_first() -> bool:
    """Returns whether no other process has ended before; True if the store cannot be reached."""
    with contextlib.suppress(UserError, RuntimeError, ValueError, OSError):
        if launched()[1] > 1:
            store = _group or _store(10.0)
            return bool(store.add(f"multidds/ended/{os.environ.get('TORCHELASTIC_RESTART_COUNT')}", 1) == 1)
    return True


def exit_process(code: int | str | None) -> NoReturn:
    """Ends this process: after all others, if it ends well.

    The group is not destroyed: torch can wait there for a thread that waits for the GIL.
    """
    if _group is None:
        raise SystemExit(code)
    if not code:
        import torch
        import torch.distributed as dist

        with contextlib.suppress(RuntimeError):  # another has died, when all was done
            dist.all_reduce(torch.zeros(1))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def is_loss(error: BaseException) -> bool:
    """Whether an error means that another process could not be reached."""
    if _group is None or not isinstance(error, RuntimeError):
        return False
    import torch.distributed as dist

    return isinstance(error, dist.DistError) or "gloo" in str(error) or "Connection" in str(error)


def is_formed() -> bool:
    """Whether this process is one of a group."""
    return _group is not None
