"""The runs of an experiment file: each with its config, its folder and the ordinary commands that make it.

All recipes are read and all configs checked before anything is started. Does not import torch.
"""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, time
from itertools import product
from pathlib import Path
from typing import Any, Literal

from multidds._base.errors import UserError

from ..config.config import Config, Section, load_config
from ..config.config_diff import changed_keys
from .experiment_file import Experiment

Stage = Literal["prepare", "train", "evaluate"]
_OURS = {"train.seed": "seeds of a block", "train.threads": "key 'threads'", "data.setting": "name of the setting"}


@dataclass(frozen=True)
class Planned:
    """A run of an experiment: its config, and the ordinary commands that make it."""

    setting: str
    method: str
    seed: int
    recipe: Path
    overrides: tuple[str, ...]
    config: Config
    folder: Path
    log: Path
    evaluate: bool

    @property
    def name(self) -> str:
        return f"{self.setting}/{self.method}/seed-{self.seed}"

    def arguments(self, stage: Stage) -> list[str]:
        """Returns the arguments of the command `multidds` for a stage."""
        if stage == "evaluate":
            return ["evaluate", str(self.folder), "--threads", str(self.config.train.threads)]
        where = ["--folder", str(self.folder)] if stage == "train" else []  # torchrun has a --run of its own
        return [stage, str(self.recipe), *where, *(part for text in self.overrides for part in ("--set", text))]

    def command(self, stage: Stage) -> str:
        return shlex.join(["multidds", *self.arguments(stage)])


def plan(path: Path, experiment: Experiment, overrides: Sequence[str] = ()) -> list[Planned]:
    """Returns every run of every block once, in their order. All recipes are read and all configs checked.

    overrides: of all runs, such as "train.max_steps=100".
    """
    for key in (override.partition("=")[0].strip() for override in overrides):
        if key in _OURS:
            raise UserError(f"--set {key}: is set by the {_OURS[key]} of {path}; leave it out.")
    keys = dict.fromkeys(
        key for block in experiment.blocks for key in product(block.settings, block.methods, block.seeds)
    )
    runs = [_planned(path, experiment, *key, overrides) for key in keys]
    _check_apart(path, runs)
    return runs


def _planned(path: Path, experiment: Experiment, setting: str, method: str, seed: int, given: Sequence[str]) -> Planned:
    recipe = (path.parent / experiment.settings[setting].recipe).resolve()
    if recipe.is_relative_to(Path.cwd()):
        recipe = recipe.relative_to(Path.cwd())
    values = flat(experiment.settings[setting].set) | flat(experiment.methods[method].set)
    where = f"{path}: [methods.{method}] in [settings.{setting}]"
    if key := next((key for key in _OURS if key in values), None):
        raise UserError(f"{where}: set: {key} is set by the {_OURS[key]}; leave it out.")
    values |= {"train.seed": seed, "train.threads": experiment.threads, "data.setting": setting}
    overrides = (*(f"{key}={toml_literal(value)}" for key, value in values.items()), *given)
    try:
        config = load_config(recipe, overrides)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    if experiment.evaluate and config.data.test is None:
        raise UserError(f"{where}: {recipe} has no [data] test to evaluate on; add it, or say evaluate = false.")
    return Planned(
        setting=setting,
        method=method,
        seed=seed,
        recipe=recipe,
        overrides=overrides,
        config=config,
        folder=experiment.folder / setting / method / f"seed-{seed}",
        log=experiment.folder / "logs" / f"{setting}.{method}.seed-{seed}.log",
        evaluate=experiment.evaluate,
    )


def _check_apart(path: Path, runs: list[Planned]) -> None:
    """Raises a UserError if runs with different data share a folder of data, or two runs a log."""
    prepared: dict[Path, Planned] = {}
    logs: dict[Path, Planned] = {}
    for run in runs:
        other = prepared.setdefault(run.config.data.folder.resolve(), run)
        if differing := [
            key
            for key in changed_keys(other.config, run.config)
            if key.startswith(("data.", "vocabulary.")) and key not in ("data.folder", "data.setting")
        ]:
            raise UserError(
                f"{path}: {other.name} and {run.name} share [data] folder = {str(run.config.data.folder)!r}, "
                f"but not {', '.join(differing)}; give one of them another folder."
            )
        if (other := logs.setdefault(run.log, run)) is not run:
            raise UserError(f"{path}: {other.name} and {run.name} would share {run.log}; rename a setting or method.")


def flat(table: dict[str, Any], section: type[Section] = Config, before: str = "") -> dict[str, Any]:
    """Returns nested overrides as {section.key: value}. A table that is the value of a key stays whole."""
    overrides: dict[str, Any] = {}
    for name, value in table.items():
        known = section.model_fields.get(name)
        inner = known.annotation if known else None if before else Section
        if isinstance(value, dict) and isinstance(inner, type) and issubclass(inner, Section):
            overrides |= flat(value, inner, f"{before}{name}.")
        else:
            overrides[before + name] = value
    return overrides


def toml_literal(value: Any) -> str:
    """Returns a value as TOML writes it, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON leaves it, TOML forbids it
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_literal, value))}]"
    if isinstance(value, dict):
        bare = re.compile(r"[A-Za-z0-9_-]+")
        keys = {key: key if bare.fullmatch(key) else toml_literal(key) for key in value}
        return "{" + ", ".join(f"{keys[key]} = {toml_literal(inner)}" for key, inner in value.items()) + "}"
    raise TypeError(f"TOML has no {type(value).__name__}")
