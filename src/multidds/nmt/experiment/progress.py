"""The progress of the runs of an experiment, read from their folders, and the stages that remain. No torch."""

import contextlib
import time
from dataclasses import dataclass, field
from typing import Literal

from multidds._base.errors import UserError

from ..config.config import read_run
from ..config.config_diff import HARMLESS, changed_keys, forbidden_changes
from ..evaluation.scores import FILE, read_scores
from ..runs.checkpoints import BEST
from ..runs.record_files import Follower
from ..runs.records import AnyRecord, Stepped, Validated
from .run_list import Planned, Stage

State = Literal["waiting", "queued", "preparing", "training", "evaluating", "done", "skipped", "failed", "stopped"]


class Watch:
    """The newest numbers of a run. Only new records are read."""

    def __init__(self, run: Planned) -> None:
        self._run = run
        self._records = Follower(run.folder)
        self._scored = 0  # when scores.json was written, in ns
        self.bleu: float | None = None
        self._clear()

    def _clear(self) -> None:
        self.step = 0
        self.loss: float | None = None
        self.speed: float | None = None
        self.dev_loss: float | None = None
        self.best: float | None = None
        self.finished = ""
        self._validated = (0, 0)  # step and epoch of the last validation

    def read(self) -> bool:
        """Returns whether there were new records."""
        self._read_scores()
        again, records = self._records.read()
        if again:
            self._clear()
        for record in records:
            self._add(record)
        return bool(records)

    def _add(self, record: AnyRecord) -> None:
        self.step = record.step
        if isinstance(record, Stepped):
            self.loss, self.speed = record.loss, record.tokens_per_second
            self.finished = ""  # a run that has been made longer goes on behind the record that said it was finished
        elif isinstance(record, Validated):
            self.dev_loss, self.finished = record.mean, record.finished
            self.best = record.mean if self.best is None else min(self.best, record.mean)
            self._validated = (record.step, record.epoch)

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
            return self.bleu is not None and self._scored >= (self._run.folder / BEST).stat().st_mtime_ns
        except OSError:
            return False

    @property
    def fraction(self) -> float | None:
        """The part of the training that is done; None before the first epoch of a run that has no max_steps."""
        settings = self._run.config.train
        if self.finished:
            return 1.0
        step, epoch = self._validated
        by_epochs = self.step * epoch / step / settings.max_epochs if epoch else 0.0
        by_steps = self.step / settings.max_steps if settings.max_steps else 0.0
        return min(1.0, max(by_epochs, by_steps)) or None


@dataclass
class Job:
    """A run with its state in this call of the experiment."""

    run: Planned
    state: State = "waiting"
    reason: str = ""  # of a failure
    began: tuple[float, float] | None = None  # when, and at which fraction, the training was first seen to move
    watch: Watch = field(init=False)

    def __post_init__(self) -> None:
        self.watch = Watch(self.run)
        self.watch.read()

    def read(self) -> None:
        if self.watch.read() and self.state == "training" and self.began is None:
            self.began = (time.monotonic(), self.watch.fraction or 0.0)

    @property
    def seconds_left(self) -> float | None:
        """Of the training, at the speed of this call."""
        if self.state != "training" or self.began is None or (now := self.watch.fraction) is None:
            return None
        when, before = self.began
        return (1 - now) / (now - before) * (time.monotonic() - when) if now > before else None


def remaining_stages(job: Job) -> list[Stage]:
    """Returns the stages that a run still needs. A UserError if its folder holds something else."""
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
