"""Checksums, displays and processes: the ground floor of the application, without translation in it.

`checksummed` has JSON files that end in a checksum of themselves; `displays` show a training; `launch` and `processes`
run one training in several processes.

>>> import tempfile
>>> from pathlib import Path
>>> from multidds._base.errors import DamagedError
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
