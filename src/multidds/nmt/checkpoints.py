"""Checkpoints as safetensors files: tensors, and one JSON text beside them; no pickle."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import UserError
from .files import PARTIAL, whole_file

FORMAT = "multidds-1"


def write(path: Path, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    from safetensors.torch import save_file

    metadata = {"format": FORMAT, "state": json.dumps(state)}
    try:
        with whole_file(path) as partial:
            whole = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
            save_file(whole, partial, metadata=metadata)
            partial.chmod(0o666 & ~_umask())  # safetensors makes files that only their owner can read
    except Exception as error:  # a full disk comes as an OSError or as safetensors' own error
        raise UserError(f"{path}: cannot be written: {error}") from None


def read(path: Path, framework: str = "pt") -> tuple[dict[str, Any], dict[str, Any]]:
    """(tensors, state). `framework` "pt" for torch, "numpy" where torch is not wanted."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework=framework) as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise UserError(f"{path}: is not a checkpoint of multidds.")
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(metadata["state"])  # noqa: SIM118
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such checkpoint.") from None
    except (SafetensorError, ValueError, OSError) as error:
        raise UserError(f"{path}: is damaged ({error}).") from None


def read_state(path: Path) -> dict[str, Any]:
    """The JSON beside the tensors, without reading them. Not by safetensors, which would import numpy for it."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            length = min(int.from_bytes(file.read(8), "little"), size)  # a damaged one may be anything
            header = json.loads(file.read(length))
        state: dict[str, Any] = json.loads(header.pop("__metadata__")["state"])
        expected = 8 + length + max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    except (ValueError, OSError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"{path}: is damaged ({error}).") from None
    if size != expected:
        raise UserError(f"{path}: is damaged (it has {size} bytes, expected {expected}).")
    return state


def step_of(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))


def listed(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    found = [path for path in (run / "checkpoints").glob("step-*.safetensors") if re.fullmatch(r"step-\d+", path.stem)]
    return sorted(found, key=step_of)


def newest(run: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The newest checkpoint; a damaged one is refused, and the one before it offered."""
    paths = listed(run)
    if not paths:
        return None
    try:
        return read(paths[-1])
    except UserError as error:
        offer = f"Delete it to go on from {paths[-2].name}." if len(paths) > 1 else "Delete it to start again."
        raise UserError(f"{error} {offer}") from None


def prune(run: Path, keep: int) -> None:
    for path in listed(run)[:-keep]:
        path.unlink(missing_ok=True)
    for path in (run / "checkpoints").glob(f"*{PARTIAL}"):
        path.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
