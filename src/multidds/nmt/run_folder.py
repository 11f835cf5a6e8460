"""The folder of a run: whether it may be used, whether what it goes on from is whole, and its config.json."""

import contextlib
import json
import platform
import shutil
from pathlib import Path

import torch

from . import checkpoints
from .changes import forbidden_changes
from .config import VOCABULARY, Config, read_run
from .errors import DamagedError, UserError
from .files import PARTIAL, whole_folder
from .prepare import Prepared
from .records import FILE, Follower, Records, Validated, check_records
from .sealed import write_sealed

# What a run that was killed before its config.json was whole may have left.
_EARLY = {FILE, "tensorboard", VOCABULARY, VOCABULARY + PARTIAL, "config.json" + PARTIAL}


def check_run_folder(config: Config, folder: Path, prepared: Prepared) -> None:
    """A folder that does not exist, is empty, or holds this very run."""
    path = folder / "config.json"
    if not path.exists():
        if folder.exists() and (not folder.is_dir() or any(p.name not in _EARLY for p in folder.iterdir())):
            raise UserError(f"{folder}: is not empty and is not a run; choose another --run.")
        return
    old, facts = read_run(folder)
    if changed := forbidden_changes(old, config):
        raise UserError(
            f"{folder}: was started with other settings: {', '.join(changed)}. Choose another --run, or undo the "
            "change; only train.max_steps and train.max_epochs may grow."
        )
    if facts["data"] != prepared.fingerprint:
        raise UserError(f"{folder}: was started on other data than is in {prepared.folder} now; choose another --run.")


def check_beside(folder: Path, size: int, step: int) -> None:
    """A DamagedError unless what stands beside the checkpoint of a step is whole: so many bytes of records, and the
    best model, if it was kept before. One that was kept later is made again, by the same steps."""
    check_records(folder, size)
    kept = [r.step for r in Follower(folder).read()[1] if isinstance(r, Validated) and r.best]
    if kept and kept[-1] <= step:
        if not (folder / checkpoints.BEST).exists():
            raise DamagedError(f"{folder / checkpoints.BEST}: is missing.")
        checkpoints.check(folder / checkpoints.BEST)


def open_run(config: Config, folder: Path, prepared: Prepared, offset: int, step: int) -> Records:
    """The records of a run, cut back to so many bytes and a step, in a folder that holds its config."""
    records = Records(folder, offset, step)
    try:
        _write_config(config, folder, prepared)
    except BaseException:  # a full disk
        with contextlib.suppress(OSError):
            records.close()
        raise
    return records


def _write_config(config: Config, folder: Path, prepared: Prepared) -> None:
    facts = {
        "config": json.loads(config.model_dump_json()),
        "data": prepared.fingerprint,
        "direction": prepared.manifest["direction"],
        "pairs": prepared.manifest["pairs"],  # how much there is of each, for reports
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    if not (folder / VOCABULARY).exists():  # so that a run can translate without the data it was trained on
        with whole_folder(folder / VOCABULARY) as copy:
            for path in [prepared.folder / "vocabulary.json", *prepared.folder.glob("*.spm.model")]:
                shutil.copy(path, copy)
    write_sealed(folder / "config.json", facts)
