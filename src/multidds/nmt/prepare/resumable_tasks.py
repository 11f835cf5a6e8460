"""Tasks in several processes, each done once, also by a call that is killed and made again.

A task makes files in one folder and, when they are on the disk, a note in another: a checksummed file with their
digests and the facts of the task. A task with a note, whose files are as it says, is finished.
"""

import contextlib
import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Container, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from multidds._base.errors import DamagedError
from multidds._base.files import sync

from ..common.checksummed import check_files, read_checksummed, write_checksummed

Facts = dict[str, Any]  # of a finished task; "files": {name: digest}
Task = Callable[[Path], Facts]  # the folder to make its files in -> facts; goes to another process


class DeadWorkerError(Exception):
    """The death of a process of the pool."""


class TaskFolder:
    """The folder `data` with the files of tasks, and the folder `notes` of those that are finished."""

    def __init__(self, folder: Path) -> None:
        self.data, self._notes = folder / "data", folder / "notes"
        self.data.mkdir(exist_ok=True)
        self._notes.mkdir(exist_ok=True)

    def result(self, name: str) -> Facts | None:
        """Returns the facts of a finished task; None if it is not finished, or a file of it has changed."""
        try:
            facts = read_checksummed(self._notes / f"{name}.json", "")
            check_files(self.data, facts, "")
        except DamagedError:
            return None
        return facts

    def run(self, name: str, task: Task) -> Facts:
        facts = task(self.data)
        for file in facts["files"]:
            sync(self.data / file)
        write_checksummed(self._notes / f"{name}.json", facts)
        return facts

    def delete_except(self, files: Container[str]) -> None:
        """Deletes all other files: a process that was killed was writing them."""
        for path in self.data.iterdir():
            if path.name not in files:
                path.unlink()


@contextlib.contextmanager
def start_pool(processes: int, start: Callable[[], None]) -> Iterator[ProcessPoolExecutor]:
    """Yields a pool of processes for tasks. After an error or Ctrl-C they are killed.

    Finished tasks are kept, and the next call does the rest. Waiting for a running one could take minutes, and a second
    Ctrl-C while the pool ends would leave it waiting for ever.

    processes: their number.
    start: called in each of them first.
    """
    # "spawn" starts clean processes, which inherit no locks of a progress bar.
    spawn = multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    with ProcessPoolExecutor(processes, mp_context=spawn, initializer=start) as pool:
        try:
            yield pool
        except BaseException:
            for worker in set(multiprocessing.active_children()) - before:
                worker.kill()
            raise


def finish(
    pool: ProcessPoolExecutor, place: TaskFolder, tasks: Mapping[str, Task], say: Callable[[str], None]
) -> dict[str, Facts]:
    """Runs the tasks that are not finished. Returns the facts of all by name; `say` is called after each."""
    facts: dict[str, Facts] = {}
    futures = {}
    for name, task in tasks.items():
        if (result := place.result(name)) is not None:
            facts[name] = result
            say(name)
        else:
            with _interrupts_held():
                futures[pool.submit(place.run, name, task)] = name
    try:
        for future in as_completed(futures):
            facts[futures[future]] = future.result()
            say(futures[future])
    except BrokenProcessPool:
        raise DeadWorkerError from None
    return facts


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Holds Ctrl-C back until the block ends. Processes that start in it never get it, not even while they import."""
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield  # Windows, or a thread that gets no signals
        return
    came: list[bool] = []
    handler = signal.signal(signal.SIGINT, lambda *_: came.append(True))  # another thread may get it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # for the processes that start
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


def start_worker() -> None:
    """Starts a process of the pool: Ctrl-C is for its parent, with which it ends.

    Encoding makes millions of lists and no cycles, so that the garbage collector is off.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
