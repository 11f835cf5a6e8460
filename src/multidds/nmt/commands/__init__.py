"""The commands of the application: `multidds prepare`, `train`, `translate`, `evaluate`, `experiment` and `verify`.

`cli` has a function for each command and adds it to those of the library; `tables` has what they print; `dry_run` and
`verify` are the commands that have no package of their own.

>>> from pathlib import Path
>>> from multidds.nmt.commands.tables import prepared_table
>>> prepared_table(Path("data"), {}).title
'data'
"""
