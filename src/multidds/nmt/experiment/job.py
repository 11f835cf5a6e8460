"""A run in this call of an experiment, and the stages that remain by its files. Does not import torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from multidds._base.errors import UserError

from ..config.config import Config, read_run
from ..config.config_diff import HARMLESS, changed_keys, forbidden_changes
from ..evaluation.scores import read_scores
from ..runs.checkpoints import BEST, noted_checksum
from ..runs.record_files import Follower
from ..runs.records import Stepped, Validated
from .run_list import Planned, Stage

State = Literal["waiting", "training", "evaluating", "done", "skipped", "failed", "stopped"]


@dataclass(frozen=True)
class End:
    """The end of a command."""

    how: str = ""  # what ended it, if it did not end by itself
    cut: bool = False  # whether the cluster may have ended it too early, so that the same command has to go on
    code: int = 0  # exit code of a process


@dataclass
class Job:
    """A run of an experiment with the stages that remain."""

    run: Planned
    state: State = "waiting"
    reason: str = ""  # of a failure
    stages: list[Stage] = field(default_factory=list)
    saved: Path | None = None  # the newest checkpoint when its command started


def remaining_stages(run: Planned) -> list[Stage]:
    """Returns the stages that a run still needs. A UserError if its folder holds something else."""
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
    if not _is_finished(run) or any(key not in ignored for key in changed_keys(old, run.config)):
        return stages
    return [] if _is_scored(run.folder, old) or not run.evaluate else ["evaluate"]


def _is_finished(run: Planned) -> bool:
    """Returns whether the last validation ended the training, at the length that is wanted now."""
    records = reversed(Follower(run.folder).read()[1])
    last = next((record for record in records if isinstance(record, Stepped | Validated)), None)
    reason, settings = getattr(last, "finished", ""), run.config.train
    lengths = (f"{settings.max_steps} steps", f"{settings.max_epochs} epochs")
    return reason in lengths if reason.endswith((" steps", " epochs")) else bool(reason)


def _is_scored(folder: Path, config: Config) -> bool:
    """Returns whether the scores of a run are of its best weights, translated with these settings."""
    try:
        scores = read_scores(folder)
    except UserError:  # 'multidds evaluate' makes damaged ones again
        return False
    if scores is None or scores["settings"] != config.translate.model_dump():
        return False
    checksum: object = scores["model"]["checksum of the checkpoint"]
    return checksum == noted_checksum(folder / BEST)


def commands(runs: Sequence[Planned]) -> list[str]:
    """Returns the commands of runs, as lines that a shell can run, with comments."""
    lines: list[str] = []
    for run in runs:
        try:
            state = " and ".join(remaining_stages(run)) or "done"
        except UserError as error:
            state = f"refused: {error}"
        stages: tuple[Stage, ...] = ("prepare", "train", "evaluate") if run.evaluate else ("prepare", "train")
        mine = [run.command(stage) for stage in stages]
        lines += [f"# {run.name}: {state}", *(line for line in mine if line not in lines)]
    return lines
