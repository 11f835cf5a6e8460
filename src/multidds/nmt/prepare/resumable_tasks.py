"""Work that is done once, also by a call that is killed in between and made again.

A task makes files in one folder and, when they are on the disk, a note in another: a sealed file with their digests and
what the task has found. A task whose note is there, and whose files are as it says, is finished. How processes share
the work is here too; what there is to do is `prepare`'s.
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

from ..common.checksummed import check_digest, read_checksummed, write_checksummed
from ..common.errors import DamagedError
from ..common.files import sync

Facts = dict[str, Any]  # of a finished task; "files": {name: digest}
Task = Callable[[Path], Facts]  # the folder to make its files in -> facts; goes to another process


class TaskFolder:
    """The folder `data` that tasks make files in, and the folder `notes` of what is finished."""

    def __init__(self, folder: Path) -> None:
        self.data, self._notes = folder / "data", folder / "notes"
        for place in (self.data, self._notes):
            place.mkdir(exist_ok=True)

    def result(self, name: str) -> Facts | None:
        """The facts of a task that is finished, every byte of it."""
        try:
            facts = read_checksummed(self._notes / f"{name}.json", "")
            for file, digest in facts["files"].items():
                check_digest(self.data / file, digest, "")
        except (DamagedError, FileNotFoundError):
            return None
        return facts

    def delete_except(self, files: Container[str]) -> None:
        """Delete all but these: what a process that was killed was writing."""
        for path in self.data.iterdir():
            if path.name not in files:
                path.unlink()

    def run(self, name: str, task: Task) -> Facts:
        facts = task(self.data)
        for file in facts["files"]:
            sync(self.data / file)
        write_checksummed(self._notes / f"{name}.json", facts)
        return facts


@contextlib.contextmanager
def pool_of(processes: int, start: Callable[[], None]) -> Iterator[ProcessPoolExecutor]:
    """Processes for tasks, which call `start` first. After an error or Ctrl-C they are killed.

    What they have finished is kept, and the rest is done by the next call. To wait for what they are at could take
    minutes, and a second Ctrl-C while the pool ends would leave it waiting for ever.
    """
    # "spawn" starts clean processes: no locks of a progress bar are inherited.
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
    """Do what is not done yet; the facts of all tasks by name. `say` hears of each that is finished."""
    facts: dict[str, Facts] = {}
    futures = {}
    for name, task in tasks.items():
        if (known := place.result(name)) is not None:
            facts[name] = known
            say(name)
        else:
            futures[pool.submit(place.run, name, task)] = name
    try:
        for future in as_completed(futures):
            facts[futures[future]] = future.result()
            say(futures[future])
    except BrokenProcessPool:
        raise DeadWorkerError from None
    return facts


class DeadWorkerError(Exception):
    """A process of the pool has been killed."""


def start_worker() -> None:
    """Ctrl-C is for the parent, which then cancels. Encoding makes millions of lists, and no cycles to look for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A pool's processes would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
