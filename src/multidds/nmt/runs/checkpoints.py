"""Checkpoints as safetensors files: tensors and one JSON text, no pickle.

The metadata holds a SHA-256 of the JSON text and of all tensors with their names, types and shapes; a file is read only
if it fits. Files can be checked, and read as numpy arrays, without torch.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..common.errors import DamagedError, UserError
from ..common.files import PARTIAL, readable, whole_file

FORMAT = "multidds-3"
BEST = "best.safetensors"
_FOLDER = "checkpoints"
_REMEDY = "restore it from a copy, or train again in another folder."


def write(path: Path, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Writes a checkpoint, whole or not at all.

    path: in the folder of a run, or in its folder of checkpoints.
    tensors: of torch, by name.
    state: anything that fits into JSON.
    """
    from safetensors.numpy import save_file

    run = path.parent.parent if path.parent.name == _FOLDER else path.parent
    if not run.is_dir():  # on a network, perhaps; a new folder with this alone would be no run
        raise UserError(f"{run}: the folder is gone; the run goes on from its last checkpoint when it is there again.")
    arrays = {name: np.asarray(tensor.detach().cpu(), order="C") for name, tensor in tensors.items()}
    text = json.dumps(state)
    metadata = {"format": FORMAT, "state": text, "checksum": _digest(arrays, text)}
    try:
        with whole_file(path) as partial:
            save_file(arrays, partial, metadata=metadata)
            partial.chmod(0o666 & ~_umask())  # safetensors makes files that only their owner can read
    except Exception as error:  # a full disk comes as an OSError or as safetensors' own error
        raise UserError(f"{path}: cannot be written: {error}") from None


def _digest(arrays: Mapping[str, Any], state: str) -> str:
    hasher = hashlib.sha256(state.encode())
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        hasher.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode())
        hasher.update(array)
    return hasher.hexdigest()


def read(path: Path, framework: str = "pt") -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads (tensors, state). framework: "pt" for torch, or "numpy"."""
    with _opened(path, framework) as (file, metadata):
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if _digest(tensors, metadata["state"]) != metadata["checksum"]:
            raise DamagedError(f"{path}: is damaged (its checksum does not fit); {_REMEDY}")
        return tensors, json.loads(metadata["state"])


def check(path: Path) -> None:
    """Raises a DamagedError if a checkpoint is not as it was written."""
    read(path, "numpy")


@contextmanager
def _opened(path: Path, framework: str) -> Iterator[tuple[Any, dict[str, str]]]:
    """Yields (the open file, its metadata)."""
    from safetensors import SafetensorError, safe_open

    try:
        with readable(path, "checkpoint"), safe_open(path, framework=framework) as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise ValueError(f"it does not say {FORMAT}")
            yield file, metadata
    except (SafetensorError, ValueError, KeyError) as error:
        raise DamagedError(f"{path}: is damaged or no checkpoint of this version ({error}); {_REMEDY}") from None


def noted_checksum(path: Path) -> str | None:
    """Returns the checksum in the header of a checkpoint, unchecked: it identifies the file without reading it."""
    try:
        with _opened(path, "numpy") as (_, metadata):
            return metadata["checksum"]
    except UserError:
        return None


def step_of(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))


def listed(run: Path) -> list[Path]:
    """Returns the checkpoints of a run, oldest first."""
    paths = [path for path in (run / _FOLDER).glob("step-*.safetensors") if re.fullmatch(r"step-\d+", path.stem)]
    return sorted(paths, key=step_of)


def counted_records(run: Path) -> int:
    """Returns the bytes of records that the newest checkpoint of a run needs. Only its header is read, unchecked."""
    try:
        with _opened(listed(run)[-1], "numpy") as (_, metadata):
            return int(json.loads(metadata["state"])["records"])
    except (IndexError, UserError, ImportError):
        return 0  # there is none, or it is damaged, or only reports are installed


@dataclass(frozen=True)
class Found:
    """The checkpoint that a run is resumed from."""

    tensors: dict[str, Any]
    state: dict[str, Any]
    passed_over: list[str] = field(default_factory=list)  # a line for every newer one that could not be used


def newest(run: Path, check_state: Callable[[dict[str, Any]], None] = lambda state: None) -> Found | None:
    """Returns the newest checkpoint that is whole; None if there is none at all.

    run: its folder.
    check_state: raises a DamagedError if the files beside the checkpoint of a state are not whole.
    """
    errors: list[DamagedError] = []
    for path in reversed(listed(run)):
        try:
            tensors, state = read(path)
            check_state(state)
        except DamagedError as error:
            errors.append(error)
        else:
            return Found(tensors, state, [f"{error} Going on from {path.name}." for error in errors])
    if errors:
        raise DamagedError(f"{errors[0]} No older checkpoint can be used either.")
    return None


def prune(run: Path, keep: int, step: int) -> None:
    """Deletes all but `keep` checkpoints up to a step. Newer ones are damaged: the run was not resumed from them."""
    paths = listed(run)
    kept = [path for path in paths if step_of(path) <= step][-keep:]
    for path in [*(path for path in paths if path not in kept), *(run / _FOLDER).glob(f"*{PARTIAL}")]:
        path.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
