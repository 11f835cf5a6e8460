"""What differs between two configs, and whether a run of the one may go on with the other."""

import json
from typing import Any

from .config import Config

# What may differ between the config of a run and the one it is to go on with.
MAY_GROW = ("train.max_steps", "train.max_epochs")
HARMLESS = ("data.setting", "train.threads", "train.save_every", "train.keep", "train.log_every", "translate.beam",
            "translate.length_penalty", "translate.long_lines")  # fmt: skip


def changed_keys(old: Config, new: Config) -> list[str]:
    """The keys, as section.key, whose values differ."""

    def flat(config: Config) -> dict[str, Any]:
        dumped = json.loads(config.model_dump_json())
        return {f"{section}.{key}": value for section, keys in dumped.items() for key, value in keys.items()}

    a, b = flat(old), flat(new)
    chosen = (
        ("mixture.every", "mixture.probe_tokens") if a["mixture.probe_budget"] else ()
    )  # by the budget, not by hand
    same_budget = a["mixture.probe_budget"] == b["mixture.probe_budget"]
    unused = "examples." if a["examples.method"] == b["examples.method"] == "none" else None
    return [
        key
        for key in a
        if a[key] != b[key] and not (same_budget and key in chosen) and not (unused and key.startswith(unused))
    ]


def with_data(key: str, old: Config, new: Config) -> bool:
    """Whether a key may change together with the data: what they are, where they are, numbers of single pairs."""
    section, name = key.split(".")
    if key in ("mixture.probabilities", "mixture.priority"):
        by_pair = all(isinstance(getattr(config.mixture, name), dict) for config in (old, new))
        return by_pair and set(old.data.names) != set(new.data.names)
    return section in ("data", "vocabulary") and key != "vocabulary.kind"


def forbidden_changes(old: Config, new: Config, changed_data: bool = False) -> list[str]:
    """The keys that keep a run of the old config from going on with the new one, or with its changed data."""
    changed = [key for key in changed_keys(old, new) if key not in HARMLESS]
    if changed_data:
        changed = [key for key in changed if not with_data(key, old, new)]
    for key in MAY_GROW:
        if key in changed:
            section, name = key.split(".")
            before, now = (getattr(getattr(config, section), name) for config in (old, new))
            if now == 0 or (before and now >= before):
                changed.remove(key)
    return changed
