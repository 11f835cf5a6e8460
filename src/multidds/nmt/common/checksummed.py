"""JSON files that end in a checksum of themselves, and folders with a manifest of such a kind.

A checksummed file is plain JSON whose last key is "checksum", the SHA-256 of all bytes before it: one file, one rename,
and no byte of it can change unnoticed. A manifest is one with the key "files": {name: SHA-256} of the files beside it.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multidds._base.errors import DamagedError, UserError
from multidds._base.files import readable, write_whole

_END = re.compile(rb',\n "checksum": "([0-9a-f]{64})"\n\}\n\Z')


def checksummed(facts: Mapping[str, Any]) -> bytes:
    """Returns the content of a checksummed file with these facts, of which there must be one or more."""
    text = json.dumps(facts, indent=1, ensure_ascii=False).removesuffix("\n}")
    body = text.encode("utf-8", "surrogatepass")  # a path may be no valid text
    return body + f',\n "checksum": "{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode()


def write_checksummed(path: Path, facts: Mapping[str, Any]) -> None:
    write_whole(path, checksummed(facts))


def read_checksummed(path: Path, remedy: str) -> dict[str, Any]:
    """Reads the facts of a checksummed file.

    path: the file.
    remedy: the end of the error message if the file is damaged or missing.
    """
    if not os.path.lexists(path):
        raise DamagedError(f"{path}: is missing; {remedy}")
    with readable(path):
        content = path.read_bytes()
    end = _END.search(content)
    if end is None:
        raise DamagedError(f"{path}: is damaged or of another version (it does not end in a checksum); {remedy}")
    if hashlib.sha256(content[: end.start()]).hexdigest().encode() != end[1]:
        raise DamagedError(f"{path}: is damaged (its checksum does not fit); {remedy}")
    facts: dict[str, Any] = json.loads(content[: end.start()].decode("utf-8", "surrogatepass") + "}")
    return facts


def sha256(path: Path) -> str:
    with readable(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_digest(path: Path, digest: str | None, remedy: str) -> None:
    """Raises a DamagedError with the remedy if a file is missing or has another SHA-256."""
    if not os.path.lexists(path):
        raise DamagedError(f"{path}: is missing; {remedy}")
    if sha256(path) != digest:
        raise DamagedError(f"{path}: is damaged (its checksum does not fit); {remedy}")


def check_files(folder: Path, manifest: Mapping[str, Any], remedy: str) -> None:
    """Raises a DamagedError with the remedy if a file of a manifest is missing or has another SHA-256."""
    for name, digest in manifest["files"].items():
        check_digest(folder / name, digest, remedy)


def read_own_folder(folder: Path, manifest: str, maker: str, remedy: str) -> dict[str, Any] | None:
    """Reads the manifest of a folder that a command may replace; None if there is nothing in it.

    Raises a UserError if the folder holds a file that is not in its manifest.

    folder: the folder.
    manifest: the name of the manifest.
    maker: the command that makes such folders.
    remedy: the end of the error message if the manifest is damaged.
    """
    if not folder.exists():
        return None
    if not folder.is_dir():
        raise UserError(f"{folder}: is not a folder; choose another.")
    facts = read_checksummed(folder / manifest, remedy) if (folder / manifest).exists() else None
    ours = set() if facts is None else {manifest, *facts["files"]}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if name.as_posix() not in ours and (path.is_symlink() or not path.is_dir()):
            raise UserError(f"{folder}: holds {name.as_posix()!r}, which {maker!r} did not make; choose another.")
    return facts
