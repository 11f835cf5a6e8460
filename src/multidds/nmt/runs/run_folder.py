"""The folder of a run: whether it may be used, its config.json, and whether a checkpoint can be resumed from."""

import contextlib
import json
import platform
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from multidds._base.errors import DamagedError, UserError
from multidds._base.files import PARTIAL, whole_folder

from ..common.checksummed import sha256, write_checksummed
from ..config.config import VOCABULARY, Config, read_run
from ..config.config_diff import forbidden_changes
from ..prepare import Prepared
from . import checkpoints
from .identity import identity_of, new_identity
from .record_files import FILES, Follower, Records, check_lines
from .records import Validated

# The files of a run that was killed before its config.json was written.
_EARLY = {*FILES, "tensorboard", VOCABULARY, VOCABULARY + PARTIAL, "config.json" + PARTIAL}


def check_run_folder(config: Config, folder: Path, prepared: Prepared) -> None:
    """Raises a UserError unless a folder is new, is empty, or holds a run of this config and these data."""
    if not (folder / "config.json").exists():
        if folder.exists() and (not folder.is_dir() or any(path.name not in _EARLY for path in folder.iterdir())):
            raise UserError(f"{folder}: is not empty and is not a run; choose another --run.")
        return
    old, facts = read_run(folder)
    if changed := forbidden_changes(old, config):
        raise UserError(
            f"{folder}: was started with other settings: {', '.join(changed)}. Choose another --run, or undo the "
            "change; only train.max_steps and train.max_epochs may grow."
        )
    if facts["data"] != prepared.fingerprint:
        raise UserError(
            f"{folder}: was started on other data than is in {prepared.folder} now; choose another --run, where "
            f"[train] start_from = {str(folder)!r} goes on from its weights."
        )


def check_beside(folder: Path, sizes: Mapping[str, int], step: int) -> None:
    """Raises a DamagedError unless the files beside a checkpoint are whole.

    folder: the run.
    sizes: {file: bytes that the checkpoint needs}, of records and updates.
    step: of the checkpoint. A best model of an earlier step must be there; one of a later step is made again.
    """
    for name, size in sizes.items():
        check_lines(folder / name, size)
    best = [record.step for record in Follower(folder).read()[1] if isinstance(record, Validated) and record.best]
    if best and best[-1] <= step:
        if not (folder / checkpoints.BEST).exists():
            raise DamagedError(f"{folder / checkpoints.BEST}: is missing.")
        checkpoints.check(folder / checkpoints.BEST)


def open_run(config: Config, folder: Path, prepared: Prepared, sizes: Mapping[str, int], step: int) -> Records:
    """Writes the config of a run and opens its records.

    config: of the run.
    folder: of the run.
    prepared: its data.
    sizes: {file: bytes to keep}, of records and updates.
    step: the step to resume from, for TensorBoard.
    """
    records = Records(folder, sizes, step)
    try:
        _write_config(config, folder, prepared)
    except BaseException:  # a full disk
        with contextlib.suppress(OSError):
            records.close()
        raise
    return records


def _write_config(config: Config, folder: Path, prepared: Prepared) -> None:
    ours, theirs = folder / VOCABULARY / "vocabulary.json", prepared.folder / "vocabulary.json"
    if not ours.exists() or ours.read_bytes() != theirs.read_bytes():
        with whole_folder(folder / VOCABULARY) as copy:  # so that a run can translate without its data
            for path in [theirs, *prepared.folder.glob("*.spm.model")]:
                shutil.copy(path, copy)
    there = (folder / "config.json").exists()  # a run keeps its identity when it is resumed
    facts = {
        "run": identity_of(folder) if there else new_identity(config, prepared),
        "config": json.loads(config.model_dump_json()),
        "data": prepared.fingerprint,
        "direction": prepared.manifest["direction"],
        "pairs": prepared.manifest["pairs"],  # how much there is of each, for reports
        "vocabulary": sha256(ours),
        "versions": {"python": platform.python_version(), "torch": version("torch")},
    }
    write_checksummed(folder / "config.json", facts)
