"""What the runs of an experiment have reached, read from their folders, and what is left to do. No torch."""

import contextlib
import time
from dataclasses import dataclass, field
from typing import Literal

from ..common.errors import UserError
from ..config.config import read_run
from ..config.config_diff import HARMLESS, changed_keys, forbidden_changes
from ..evaluation.scores import FILE, read_scores
from ..runs.record_files import Follower
from ..runs.records import AnyRecord, Stepped, Validated
from .run_list import Planned, Stage


class Watch:
    """Reads along in the files of a run, cheaply: only what is new."""

    def __init__(self, run: Planned) -> None:
        self._run = run
        self._records = Follower(run.folder)
        self._scored = 0  # when scores.json was written, in ns
        self.bleu: float | None = None
        self._forget()

    def _forget(self) -> None:
        self.step = 0
        self.loss: float | None = None
        self.speed: float | None = None
        self.dev_loss: float | None = None
        self.best: float | None = None
        self.finished = ""
        self._validated = (0, 0)  # step and epoch of the last validation

    def read(self) -> bool:
        """Whether there was something new in the records."""
        self._read_scores()
        again, new = self._records.read()
        if again:
            self._forget()
        for record in new:
            self._take(record)
        return bool(new)

    def _take(self, record: AnyRecord) -> None:
        self.step = record.step
        if isinstance(record, Stepped):
            self.loss, self.speed = record.loss, record.tokens_per_second
            self.finished = ""  # a run that has been made longer goes on behind the record that said it was finished
        elif isinstance(record, Validated):
            self.dev_loss = record.mean
            self.best = self.dev_loss if self.best is None else min(self.best, self.dev_loss)
            self._validated = (self.step, record.epoch)
            self.finished = record.finished

    def _read_scores(self) -> None:
        with contextlib.suppress(OSError):
            written = (self._run.folder / FILE).stat().st_mtime_ns
            if written != self._scored:
                self.bleu, self._scored = None, written
                with contextlib.suppress(UserError):  # 'multidds evaluate' makes damaged ones again
                    scores = read_scores(self._run.folder)
                    self.bleu = None if scores is None else float(scores["average"]["bleu"])

    @property
    def evaluated(self) -> bool:
        try:
            return self.bleu is not None and self._scored >= (self._run.folder / "best.safetensors").stat().st_mtime_ns
        except OSError:
            return False

    @property
    def fraction(self) -> float | None:
        """Of the training; None before the first epoch of a run that has no max_steps."""
        settings = self._run.config.train
        if self.finished:
            return 1.0
        step, epoch = self._validated
        by_epochs = self.step * epoch / step / settings.max_epochs if epoch else 0.0
        by_steps = self.step / settings.max_steps if settings.max_steps else 0.0
        return min(1.0, max(by_epochs, by_steps)) or None


State = Literal["waiting", "preparing", "training", "evaluating", "done", "skipped", "failed", "stopped"]


@dataclass
class Job:
    """A run on its way."""

    run: Planned
    state: State = "waiting"
    reason: str = ""  # of a failure
    watch: Watch = field(init=False)
    began: tuple[float, float] | None = None  # when, and at which fraction, the training was first seen to move

    def __post_init__(self) -> None:
        self.watch = Watch(self.run)
        self.watch.read()

    def look(self) -> None:
        if self.watch.read() and self.state == "training" and self.began is None:
            self.began = (time.monotonic(), self.watch.fraction or 0.0)

    @property
    def seconds_left(self) -> float | None:
        """Of the training, at the speed of this call."""
        if self.state != "training" or self.began is None or (now := self.watch.fraction) is None:
            return None
        when, before = self.began
        return (1 - now) / (now - before) * (time.monotonic() - when) if now > before else None


def to_do(job: Job) -> list[Stage]:
    """What is left of a run. A UserError if its folder holds something else."""
    run = job.run
    stages: list[Stage] = ["train", "evaluate"] if run.evaluate else ["train"]
    if not (run.folder / "config.json").exists():
        return stages
    old, _ = read_run(run.folder)
    if changed := forbidden_changes(old, run.config):
        raise UserError(
            f"{run.folder}: was started with other settings: {', '.join(changed)}. "
            "Move it away or delete it to start anew, or undo the change."
        )
    # A new label or beam size: train writes it down and has nothing else to do, then evaluate.
    ignored = [key for key in HARMLESS if key.startswith("train.")]
    if not job.watch.finished or any(key not in ignored for key in changed_keys(old, run.config)):
        return stages
    return [] if job.watch.evaluated or not run.evaluate else ["evaluate"]
