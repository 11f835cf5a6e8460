"""Checkpoints as safetensors files: tensors and one JSON text, no pickle.

The metadata holds a SHA-256 of the whole file, taken with zeros in its own place, and a file is read only if it fits.
Checking needs no torch.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ..common.errors import DamagedError, UserError
from ..common.files import PARTIAL, readable, whole_file

FORMAT = "multidds-2"
_ZEROS = b"0" * 64
# In the header of the file. Within the JSON text or a name, the quotes would have backslashes before them.
_CHECKSUM = re.compile(rb'"checksum":"([0-9a-f]{64})"')
_FOLDER = "checkpoints"
BEST = "best.safetensors"
_REMEDY = "restore it from a copy, or train again in another folder."


def write(path: Path, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Writes a checkpoint, whole or not at all. state: fits into JSON."""
    from safetensors.torch import save_file

    run = path.parent.parent if path.parent.name == _FOLDER else path.parent
    if not run.is_dir():  # on a network, perhaps; a new folder with this alone would be no run
        raise UserError(f"{run}: the folder is gone; the run goes on from its last checkpoint when it is there again.")
    metadata = {"format": FORMAT, "state": json.dumps(state), "checksum": _ZEROS.decode()}
    try:
        with whole_file(path) as partial:
            save_file({n: t.detach().contiguous() for n, t in tensors.items()}, partial, metadata=metadata)
            with partial.open("r+b") as file:
                place, _, digest = _sums(file)
                file.seek(place)
                file.write(digest)
            partial.chmod(0o666 & ~_umask())  # safetensors makes files that only their owner can read
    except Exception as error:  # a full disk comes as an OSError or as safetensors' own error
        raise UserError(f"{path}: cannot be written: {error}") from None


def read(path: Path, framework: str = "pt") -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads (tensors, state). framework: "pt" for torch, or "numpy", which does not import it."""
    from safetensors import SafetensorError, safe_open

    check(path)
    try:
        with safe_open(str(path), framework=framework) as file:
            state: dict[str, Any] = json.loads(file.metadata()["state"])
            return {name: file.get_tensor(name) for name in file.keys()}, state  # noqa: SIM118
    except (SafetensorError, ValueError, OSError) as error:
        raise DamagedError(f"{path}: is damaged ({error}); {_REMEDY}") from None


def check(path: Path) -> str:
    """Reads every byte of a checkpoint. Returns its checksum; raises a DamagedError if it does not fit."""
    try:
        with readable(path, "checkpoint"), path.open("rb") as file:
            _, noted, digest = _sums(file)
    except ValueError as error:
        raise DamagedError(f"{path}: is damaged or no checkpoint of this version ({error}); {_REMEDY}") from None
    if noted != digest:
        raise DamagedError(f"{path}: is damaged (its checksum does not fit); {_REMEDY}")
    return noted.decode()


def noted_checksum(path: Path) -> str | None:
    """Returns the checksum in the header of a checkpoint, unchecked: it identifies the file without reading it."""
    try:
        with path.open("rb") as file:
            found = _CHECKSUM.search(_header(file))
    except (OSError, ValueError):
        return None
    return found[1].decode() if found else None


def _header(file: BinaryIO) -> bytes:
    """Reads the JSON at the head of a safetensors file; raises a ValueError if the file is none of ours."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8:  # a damaged one may be anything
        raise ValueError(f"it ends after {size} bytes")
    header = file.read(length)
    if f'"format":"{FORMAT}"'.encode() not in header:
        raise ValueError(f"it does not say {FORMAT}")
    return header


def _sums(file: BinaryIO) -> tuple[int, bytes, bytes]:
    """Returns (place of the checksum in a file, the noted one, the true one)."""
    header = _header(file)
    found = list(_CHECKSUM.finditer(header))
    if len(found) != 1:
        raise ValueError("it has no checksum")
    (start, end), noted = found[0].span(1), found[0][1]
    hasher = hashlib.sha256(len(header).to_bytes(8, "little") + header[:start] + _ZEROS + header[end:])
    while chunk := file.read(1 << 20):
        hasher.update(chunk)
    return 8 + start, noted, hasher.hexdigest().encode()


def step_of(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))


def listed(run: Path) -> list[Path]:
    """Returns the checkpoints of a run, oldest first."""
    paths = [path for path in (run / _FOLDER).glob("step-*.safetensors") if re.fullmatch(r"step-\d+", path.stem)]
    return sorted(paths, key=step_of)


def counted_records(run: Path) -> int:
    """Returns the bytes of records that the newest checkpoint of a run needs. Only its header is read, unchecked."""
    try:
        with listed(run)[-1].open("rb") as file:
            return int(json.loads(json.loads(_header(file))["__metadata__"]["state"])["records"])
    except (IndexError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return 0  # there is none, or it is damaged


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
    paths = listed(run)
    for path in reversed(paths):
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
