"""From text to tokens: vocabularies, and shards of token numbers in a prepared folder.

`prepare` writes the folder of a config, in several processes, and `Prepared` reads it. Text files (`text_files`) are
cut into shards (`shard_plan`); sentencepiece models (`subwords`) and their vocabulary (`vocabulary`) encode them
(`encode`) into files (`shard_files`). Does not import torch.

>>> import tempfile
>>> from pathlib import Path
>>> from multidds.nmt.config import parse_config
>>> with tempfile.TemporaryDirectory() as folder:
...     for language, words in {"a": "one two three four five", "b": "uno dos tres cuatro cinco"}.items():
...         _ = Path(folder, f"text.{language}").write_text("".join(f"{words}\\n{word}\\n" for word in words.split()))
...     data = {"folder": f"{folder}/prepared", "pairs": ["a-b"], "train": folder + "/text.{lang}"}
...     data |= {"dev": data["train"], "test": data["train"]}
...     config = parse_config({"data": data, "vocabulary": {"size": 20}}, "recipe")
...     made = prepare(config, processes=1), prepare(config, processes=1)
...     prepared = Prepared(config)
...     prepared.vocabulary["source"][:3], prepared.sizes, made
(['<unk>', '<s>', '</s>'], {'a-b': 10}, (True, False))
"""

from .prepare import prepare
from .prepared import Prepared

__all__ = ["Prepared", "prepare"]
