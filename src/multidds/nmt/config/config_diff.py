"""The keys in which two configs differ, and whether a run may be resumed with another config."""

import json
from typing import Any

from .config import Config

MAY_GROW = ("train.max_steps", "train.max_epochs")
# Keys that do not change the result of a training.
HARMLESS = (
    "data.setting",
    "train.threads",
    "train.save_every",
    "train.keep",
    "train.log_every",
    "translate.beam",
    "translate.length_penalty",
    "translate.long_lines",
)


def changed_keys(old: Config, new: Config) -> list[str]:
    """Returns the keys, as section.key, whose values differ and are used."""
    before, after = _flat(old), _flat(new)
    unused: set[str] = set()
    if before["mixture.probe_budget"] and after["mixture.probe_budget"]:
        unused.add("mixture.every")  # chosen by the budget
    if before["examples.method"] == after["examples.method"] == "none":
        unused |= {key for key in before if key.startswith("examples.")}
    return [key for key in before if before[key] != after[key] and key not in unused]


def _flat(config: Config) -> dict[str, Any]:
    sections = json.loads(config.model_dump_json())
    return {f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()}


def forbidden_changes(old: Config, new: Config) -> list[str]:
    """Returns the keys that keep a run of the old config from being resumed with the new one."""
    before, after = _flat(old), _flat(new)
    changed = [key for key in changed_keys(old, new) if key not in HARMLESS]
    # 0 means no limit.
    grown = [key for key in MAY_GROW if after[key] == 0 or 0 < before[key] <= after[key]]
    return [key for key in changed if key not in grown]
