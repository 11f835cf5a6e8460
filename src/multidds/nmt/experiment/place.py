"""The interface between the runs of an experiment and the place of their commands: this machine, or a cluster."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .run_list import Planned, Stage


@dataclass(frozen=True)
class End:
    """The end of a command.

    succeeded: whether it says so; None: nothing says, and the files of the run must tell.
    how: what ended it, if it did not end by itself.
    cut: whether the cluster may have ended it before it was done, so that the same command has to go on.
    """

    succeeded: bool | None
    how: str = ""
    cut: bool = False


class Process(Protocol):
    """A command under way."""

    def poll(self) -> End | None:
        """Returns None until it has ended."""

    @property
    def queued(self) -> bool:
        """Whether it waits for a machine."""

    def ask_to_stop(self, times: int) -> None:
        """Passes on how often the user has asked to stop."""


class Place(Protocol):
    """The starter of commands. `stopping` says what the first request to stop does, and the second."""

    stopping: str

    def start(self, run: Planned, stage: Stage, log: Path) -> Process:
        """Starts the command of a stage, whose output is added to the log. Raises an OSError or a UserError."""

    def has(self, run: Planned, stage: Stage) -> bool:
        """Returns whether an earlier call has left the command there; `start` then returns that one."""
