"""Errors, files, text for people and processes: the ground floor of the application, without translation in it.

`UserError` is one line for the user; `files` writes whole or not at all; `checksummed` has JSON files that end in a
checksum of themselves; `escaping` and `terminal` print any text safely; `launch` and `processes` run one training in
several processes.

>>> import tempfile
>>> from pathlib import Path
>>> from multidds.nmt.common.checksummed import read_checksummed, write_checksummed
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder) / "facts.json"
...     write_checksummed(path, {"step": 3})
...     facts = read_checksummed(path, "make it again.")
...     _ = path.write_bytes(path.read_bytes().replace(b"3", b"4"))
...     try:
...         read_checksummed(path, "make it again.")
...     except DamagedError as error:
...         message = str(error)
>>> facts, message.endswith("facts.json: is damaged (its checksum does not fit); make it again.")
({'step': 3}, True)
"""

from .errors import DamagedError, UserError

__all__ = ["DamagedError", "UserError"]
