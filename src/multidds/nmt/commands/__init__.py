"""The command line: `multidds prepare`, `train`, `evaluate`, `translate`, `report` and others.

`cli` has a function for each command, `tables` their tables; `dry_run`, `verify` and `export_mixture` are the commands
that have no package of their own.

>>> from multidds.nmt.commands.export_mixture import written
>>> print(written({"aze": 0.25, "tur": 0.75}, "megatron", None))
0.25 aze_text_document
0.75 tur_text_document
"""
