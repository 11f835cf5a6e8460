"""The processes that a launcher (torchrun, accelerate launch) has started for one training: how they meet, and how they
end together. What they agree on in between is `processes`. Does not import torch where there is no launcher.

Every process waits, in a thread, for a farewell of the next one in the ring. Where the connection closes without it,
that one is dead: the first to notice says so, and all end. So a death shows in any place at once, with any backend, and
the collectives may take as long as they like.
"""

import contextlib
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from .errors import UserError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what launchers set
PATIENCE = 120.0  # seconds until all processes of a launch must have come
_START = "multidds/start"  # where the store has the name of the newest start
_FOREVER = timedelta(days=365)  # a process may be slow: deaths are noticed otherwise
_WORDS = threading.Lock()  # held by the thread that ends this process

_watch: "tuple[Store, Any, threading.Thread] | None" = None  # of a group: its store, the ring, and who watches


def launched() -> tuple[int, int]:
    """(rank, number of processes) as the launcher says; 0 of 1 where there is none. Does not import torch."""
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
    """Meet the other processes of the launch, if there are any. One line if they do not come."""
    global _watch
    rank, size = launched()
    if size == 1:
        return
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # else every lost connection is a screen of stack frames
    import torch
    import torch.distributed as dist

    place = "{}:{}".format(*(os.environ[name] for name in LAUNCHED[2:]))
    try:
        store = (_opened if rank == 0 else _joined)(_store(PATIENCE), rank, size, place)
        both = torch.cuda.is_available() and dist.is_nccl_available()
        # What ranks tell each other is in main memory also where gradients are not: no step has to wait for a GPU.
        backend = "cpu:gloo,cuda:nccl" if both else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_FOREVER)
        ring = dist.new_group(backend="gloo", timeout=_FOREVER)
    except (RuntimeError, ValueError) as error:  # also torch's own errors of stores and networks
        first = str(error).splitlines()[0]
        raise UserError(f"rank {rank} of {size} cannot form a group with the others at {place}: {first}") from None
    watcher = threading.Thread(target=_watch_next, args=(rank, size, ring), daemon=True)
    _watch = store, ring, watcher
    with contextlib.suppress(ValueError):  # not in the main thread
        # torchrun asks the others to end so when one has died; they should not go without a word.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    watcher.start()


def _store(seconds: float) -> "Store":
    """What all processes of this launch share, also before they are a group."""
    from torch.distributed.rendezvous import rendezvous

    store: Store
    store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=seconds)))
    return store


# torchrun keeps one store over all restarts, and machines may count those differently. So the first process gives every
# start a name, and opens it when all have come; the others come to the newest, until one is open that they came to.


def _opened(store: "Store", rank: int, size: int, place: str) -> "Store":
    """The part of the store that belongs to this start, by the first process."""
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
    """The same by the others."""
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


def _watch_next(rank: int, size: int, ring: Any) -> None:
    """Ends this process where the next one ends without a farewell."""
    import torch
    import torch.distributed as dist

    following = (rank + 1) % size
    try:
        dist.recv(torch.zeros(1), src=following, group=ring)
    except RuntimeError:
        text = f"multidds: rank {following} of {size} has ended, so all end; the same command goes on from the last "
        # Without an agent of torchrun the store ends with rank 0, and only who watches that one knows why.
        end(text + "checkpoint.", 1, lambda text: print(text, file=sys.stderr, flush=True), unasked=following == 0)


def end(text: str, code: int, say: Callable[[str], None], unasked: bool = True) -> NoReturn:
    """End this process after an error. Of all that end, the first says why.

    unasked: whether this one does where the others cannot be asked.
    """
    with _WORDS:  # until the end: the other thread has nothing to add
        if _is_first(unasked):
            say(text)
        exit_process(code)


def _is_first(unasked: bool) -> bool:
    with contextlib.suppress(UserError, RuntimeError, ValueError, OSError):
        if launched()[1] > 1:
            store = _watch[0] if _watch is not None else _store(10.0)
            return bool(store.add(f"multidds/ended/{os.environ.get('TORCHELASTIC_RESTART_COUNT')}", 1) == 1)
    return unasked


def exit_process(code: int | str | None) -> NoReturn:
    """End this process. A group is not taken apart: torch can wait there for a thread that waits for the GIL."""
    if _watch is None:
        raise SystemExit(code)
    if not code:  # else the others end with it
        _announce_exit()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _announce_exit() -> None:
    """And hear that of the next one: so nobody has left who is still to be told. gloo would wait for him for ever."""
    import torch
    import torch.distributed as dist

    assert _watch is not None
    rank, size = launched()
    _, ring, watcher = _watch
    with contextlib.suppress(RuntimeError):  # the one before is dead, and so is the next one soon
        dist.send(torch.zeros(1), dst=(rank - 1) % size, group=ring)
    watcher.join()


def is_loss(error: BaseException) -> bool:
    """Whether an error says that another process could not be reached."""
    if _watch is None or not isinstance(error, RuntimeError):
        return False
    import torch.distributed as dist

    return isinstance(error, dist.DistError) or "gloo" in str(error) or "Connection" in str(error)


def is_formed() -> bool:
    """Whether this process is one of a group."""
    return _watch is not None


def wait_for_launcher(seconds: float = 10.0) -> None:
    """The thread that watches knows whom we have lost, if so it is, and ends this process in a moment."""
    time.sleep(seconds)
