"""The config of a run: one TOML file, `[section] key = value`, validated; and the difference between two.

>>> from multidds._base.errors import UserError
>>> data = {"folder": "prepared", "pairs": ["aze-eng", "bel-eng"], "train": "{many}.{lang}", "dev": "{many}-dev.{lang}"}
>>> config = parse_config({"data": data}, "recipe.toml")
>>> config.data.direction, config.train.lr
('many-to-one', 0.0002)
>>> try:
...     parse_config({"data": data, "train": {"max_step": 10}}, "recipe.toml")
... except UserError as error:
...     print(error)
recipe.toml: [train] has no key 'max_step'. Did you mean 'max_steps'?
>>> longer = parse_config({"data": data, "train": {"max_epochs": 80, "seed": 2}}, "recipe.toml")
>>> changed_keys(config, longer), forbidden_changes(config, longer)
(['train.max_epochs', 'train.seed'], ['train.seed'])
"""

from .config import Config, Pair, load_config, parse_config, read_run
from .config_diff import changed_keys, forbidden_changes

__all__ = ["Config", "Pair", "changed_keys", "forbidden_changes", "load_config", "parse_config", "read_run"]
