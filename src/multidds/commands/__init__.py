"""The commands of the library: `multidds report`, `plan` and `mixture`. They take the extra `report`.

`cli` has a function for each command and turns errors into lines; an application adds commands of its own to its `app`.
`run_mixture` reads the mixtures of a run, and `mixture_formats` has the formats of other trainers. Imports no torch.

>>> from multidds.commands.mixture_formats import written
>>> print(written({"aze": 0.25, "tur": 0.75}, "megatron"))
0.25 aze_text_document
0.75 tur_text_document
"""
