"""The folder of a run: whether it may be used, its config.json, its records and TensorBoard."""

import contextlib
import json
import os
import platform
import shutil
from pathlib import Path
from typing import Any

import torch

from .config import VOCABULARY, Config, forbidden_changes, read_run
from .errors import UserError
from .files import PARTIAL, whole_folder, write_whole
from .prepare import Prepared

# What a run that was killed before its config.json was whole may have left.
_EARLY = {"records.jsonl", "tensorboard", VOCABULARY, VOCABULARY + PARTIAL, "config.json" + PARTIAL}


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


def write_run_config(config: Config, folder: Path, prepared: Prepared) -> None:
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
    write_whole(folder / "config.json", json.dumps(facts, indent=1) + "\n")


class Records:
    """records.jsonl and TensorBoard. A resumed run cuts both back to its checkpoint."""

    def __init__(self, folder: Path, offset: int, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        path = folder / "records.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
        # A line at a time: 'multidds experiment' reads along.
        self._file = path.open("r+", buffering=1, encoding="utf-8", newline="\n")
        self._lock(folder)
        self._file.truncate(min(offset, path.stat().st_size))
        self._file.seek(0, 2)
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def _lock(self, folder: Path) -> None:
        """One writer: a second process is refused. The lock ends with the process, however it ends."""
        with contextlib.suppress(ImportError):  # not on Windows
            import fcntl

            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._file.close()
                raise UserError(f"{folder}: is being trained by another process.") from None
            except OSError:
                pass  # a file system without locks

    def write(self, kind: str, step: int, facts: dict[str, Any]) -> None:
        self._file.write(json.dumps({"kind": kind, "step": step, **facts}, ensure_ascii=False) + "\n")
        for key, value in facts.items():
            if isinstance(value, (int, float)):
                self._board.add_scalar(f"{kind}/{key}", value, step)
            elif isinstance(value, dict):
                for name, number in value.items():
                    if isinstance(number, (int, float)):
                        self._board.add_scalar(f"{key}/{name}", number, step)

    def flushed(self) -> int:
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        self._board.close()
