"""Checkpoints as safetensors files: tensors and one JSON text, no pickle.

The metadata holds the identity of the run and a SHA-256 of everything else; a file is read only if both fit. Equal
contents are equal bytes. Files can be checked, and read as numpy arrays, without torch.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from multidds._base.errors import DamagedError, UserError
from multidds._base.files import PARTIAL, readable, whole_file

from .identity import check_owner, identity_of

FORMAT = "multidds-5"
BEST = "best.safetensors"
_FOLDER = "checkpoints"
_REMEDY = "restore it from a copy, or train again in another folder."


def write(path: Path, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Writes a checkpoint, whole or not at all.

    path: in the folder of a run, or in its folder of checkpoints.
    tensors: of torch, by name.
    state: anything that fits into JSON.
    """
    run = _run_of(path)
    if not run.is_dir():  # on a network, perhaps; a new folder with this alone would be no run
        raise UserError(f"{run}: the folder is gone; the run goes on from its last checkpoint when it is there again.")
    arrays = {name: np.asarray(tensor.detach().cpu(), order="C") for name, tensor in tensors.items()}
    metadata = {"format": FORMAT, "run": identity_of(run) or "", "state": json.dumps(state)}
    metadata["checksum"] = _digest(arrays, metadata)
    try:
        with whole_file(path) as partial, partial.open("wb") as file:
            file.write(_header(arrays, metadata))
            for name in _order(arrays):
                file.write(arrays[name].data)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from None


def _run_of(path: Path) -> Path:
    """Returns the folder of the run of a checkpoint."""
    return path.parent.parent if path.parent.name == _FOLDER else path.parent


def _order(arrays: Mapping[str, Any]) -> list[str]:
    """Returns the names in the order of the file: the largest numbers first, so that all are aligned."""
    return sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))


def _header(arrays: Mapping[str, Any], metadata: Mapping[str, str]) -> bytes:
    """Returns the beginning of a file. That of the safetensors library has its metadata in a random order."""
    entries: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name in _order(arrays):
        array, start = arrays[name], end
        end += array.nbytes
        kind = "BOOL" if array.dtype == bool else f"{array.dtype.kind.upper()}{8 * array.itemsize}"
        entries[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _digest(arrays: Mapping[str, Any], metadata: Mapping[str, str]) -> str:
    hasher = hashlib.sha256(_header(arrays, metadata))
    for name in _order(arrays):
        hasher.update(arrays[name].data)
    return hasher.hexdigest()


def read(path: Path, framework: str = "pt") -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads (tensors, state). framework: "pt" for torch, or "numpy"."""
    with _opened(path, framework) as (file, metadata):
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        arrays = {name: np.asarray(tensor) for name, tensor in tensors.items()}
        checksum = metadata.pop("checksum")
        header = _header(arrays, {**metadata, "checksum": checksum})
        with path.open("rb") as raw:
            same = raw.read(len(header)) == header and _digest(arrays, metadata) == checksum
        if not same:
            raise DamagedError(f"{path}: is damaged (its checksum does not fit); {_REMEDY}")
        check_owner(path, metadata["run"], _run_of(path), _REMEDY)
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
            yield file, _metadata(file)
    except (SafetensorError, ValueError, KeyError) as error:
        raise DamagedError(f"{path}: is damaged or no checkpoint of this version ({error}); {_REMEDY}") from None


def _metadata(file: Any) -> dict[str, str]:
    """Returns the metadata, in the order in which they were written."""
    metadata: dict[str, str] = file.metadata() or {}
    if metadata.get("format") != FORMAT:
        raise ValueError(f"it does not say {FORMAT}")
    return {key: metadata[key] for key in ("format", "run", "state", "checksum")}


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


def counted_bytes(run: Path) -> dict[str, int]:
    """Returns {file: bytes that the newest checkpoint of a run needs}, of records and updates; empty if there is none.

    Only its header is read, unchecked; a DamagedError if even that cannot be read.
    """
    try:
        with _opened(listed(run)[-1], "numpy") as (_, metadata):
            return dict(json.loads(metadata["state"])["records"])
    except IndexError:
        return {}


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
