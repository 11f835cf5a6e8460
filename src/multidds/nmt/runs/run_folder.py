"""The folder of a run: whether it may be used, whether what it goes on from is whole, and its config.json."""

import contextlib
import json
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..common.checksummed import write_checksummed
from ..common.errors import DamagedError, UserError
from ..common.files import PARTIAL, whole_folder
from ..config.config import VOCABULARY, Config, read_run
from ..config.config_diff import forbidden_changes
from ..prepare import Prepared
from . import checkpoints
from .changed_data import HINT, check_changed, hint_for
from .record_files import FILE, Follower, Records, check_records
from .records import Validated

# What a run that was killed before its config.json was whole may have left.
_EARLY = {FILE, "tensorboard", VOCABULARY, VOCABULARY + PARTIAL, "config.json" + PARTIAL}


def check_run_folder(config: Config, folder: Path, prepared: Prepared, changed_data: bool = False) -> None:
    """A folder that does not exist, is empty, or holds this very run. changed_data: or one with other data."""
    path = folder / "config.json"
    if not path.exists():
        if folder.exists() and (not folder.is_dir() or any(p.name not in _EARLY for p in folder.iterdir())):
            raise UserError(f"{folder}: is not empty and is not a run; choose another --run.")
        return
    old, facts = read_run(folder)
    if changed := forbidden_changes(old, config, changed_data):
        raise UserError(
            f"{folder}: was started with other settings: {', '.join(changed)}. Choose another --run, or undo the "
            f"change; only train.max_steps and train.max_epochs may grow.{hint_for(changed, old, config)}"
        )
    if facts["data"] == prepared.fingerprint:
        return
    if not changed_data:
        raise UserError(
            f"{folder}: was started on other data than is in {prepared.folder} now; choose another --run. {HINT}"
        )
    if checkpoints.listed(folder):
        check_changed(folder, old, config, prepared)


def data_of(folder: Path, state: Mapping[str, Any]) -> str:
    """The fingerprint of the data that a checkpoint of a run was trained on, given what it says of it.

    One of an older version says nothing: then there was only one before any changed.
    """
    facts = read_run(folder)[1]
    return str(state.get("data") or [*facts.get("earlier", []), facts["data"]][0])


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
    earlier = _earlier(folder, prepared)
    facts = {
        "config": json.loads(config.model_dump_json()),
        "data": prepared.fingerprint,
        "direction": prepared.manifest["direction"],
        "pairs": prepared.manifest["pairs"],  # how much there is of each, for reports
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        **({"earlier": earlier} if earlier else {}),
    }
    ours, theirs = folder / VOCABULARY / "vocabulary.json", prepared.folder / "vocabulary.json"
    if not ours.exists() or ours.read_bytes() != theirs.read_bytes():
        with whole_folder(folder / VOCABULARY) as copy:  # so that a run can translate without its data
            for path in [theirs, *prepared.folder.glob("*.spm.model")]:
                shutil.copy(path, copy)
    write_checksummed(folder / "config.json", facts)


def _earlier(folder: Path, prepared: Prepared) -> list[str]:
    """Fingerprints of the data that a run was trained on before they changed, the first one first."""
    if not (folder / "config.json").exists():
        return []
    facts = read_run(folder)[1]
    return [*facts.get("earlier", []), *([facts["data"]] if facts["data"] != prepared.fingerprint else [])]
