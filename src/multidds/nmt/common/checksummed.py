"""Whether a file is whole: digests of files, and JSON files that end in a checksum of themselves.

A sealed file is plain JSON whose last key is "checksum", the SHA-256 of all bytes before it: one file, one rename, and
no byte of it can change unnoticed. What stands in other formats has its digest in a sealed file beside it.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import DamagedError, UserError
from .files import write_whole

_END = re.compile(rb',\n "checksum": "([0-9a-f]{64})"\n\}\n\Z')


def checksummed(facts: Mapping[str, Any]) -> bytes:
    """The facts, at least one, as the content of a sealed file."""
    text = json.dumps(facts, indent=1, ensure_ascii=False).removesuffix("\n}")
    body = text.encode("utf-8", "surrogatepass")  # a path may be no valid text
    return body + f',\n "checksum": "{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode()


def write_checksummed(path: Path, facts: Mapping[str, Any]) -> None:
    write_whole(path, checksummed(facts))


def read_checksummed(path: Path, remedy: str) -> dict[str, Any]:
    """The facts of a sealed file. `remedy` ends the sentence about a damaged one: what to do then."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}.") from None
    end = _END.search(content)
    if end is None:
        raise DamagedError(f"{path}: is damaged or of another version (it does not end in a checksum); {remedy}")
    if hashlib.sha256(content[: end.start()]).hexdigest().encode() != end[1]:
        raise DamagedError(f"{path}: is damaged (its checksum does not fit); {remedy}")
    facts: dict[str, Any] = json.loads(content[: end.start()].decode("utf-8", "surrogatepass") + "}")
    return facts


def sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from None


def check_digest(path: Path, digest: str | None, remedy: str) -> None:
    """A DamagedError with the remedy if the file is not there, or not the one whose digest this is."""
    if not path.is_file():
        raise DamagedError(f"{path}: is missing; {remedy}")
    if sha256(path) != digest:
        raise DamagedError(f"{path}: is damaged (its checksum does not fit); {remedy}")
