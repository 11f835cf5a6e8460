"""The identity of a run, which every file of it carries, so that a file of another run is refused where it is read.

It is a text such as "learned, seed 2, 9f86d081884c7d65": equal runs have the same. config.json has it under "run", and
it stays when a run is resumed with a longer training or another version. Does not import torch.
"""

import hashlib
import json
from pathlib import Path

from multidds import __version__
from multidds._base.errors import DamagedError, UserError

from ..common.checksummed import read_checksummed
from ..config.config import Config
from ..config.config_diff import HARMLESS
from ..prepare import Prepared


def new_identity(config: Config, prepared: Prepared) -> str:
    """Returns the identity of a run of this config on these data, made by this version.

    Keys that do not change the result make no difference, nor do the paths of the data and of `start_from`.
    """
    settings = json.loads(config.model_dump_json())
    for key in (*HARMLESS, "data.folder", "data.train", "data.dev", "data.test"):
        section, _, name = key.partition(".")
        del settings[section][name]
    if config.train.start_from:
        settings["train"]["start_from"] = identity_of(Path(config.train.start_from))
    facts = json.dumps([settings, prepared.fingerprint, __version__], sort_keys=True)
    mixture = config.mixture
    method = mixture.prior if mixture.method == "static" else mixture.method
    return f"{method}, seed {config.train.seed}, {hashlib.sha256(facts.encode()).hexdigest()[:16]}"


def identity_of(run: Path) -> str | None:
    """Returns the identity in config.json of a run; None if that is missing or damaged, as `read_run` reports."""
    try:
        return read_checksummed(run / "config.json", "").get("run")
    except UserError:
        return None


def check_owner(path: Path, owner: str | None, run: Path, remedy: str) -> None:
    """Raises a DamagedError if a file in the folder of a run is of another run.

    path: the file.
    owner: the identity in the file.
    run: the folder of the run. If its config.json cannot be read, any file may be of that run.
    remedy: the end of the error message.
    """
    ours = identity_of(run)
    if owner != ours and ours is not None:
        theirs = owner or "one without an identity"
        raise DamagedError(f"{path}: is of another run ({theirs}) than the config.json of {run} ({ours}); {remedy}")
