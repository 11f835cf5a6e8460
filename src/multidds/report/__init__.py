"""Tables, figures and one page from the runs of any trainer. Imports no torch; it takes the extra `report`.

`run` reads runs and says which can be compared; `rows` and `charts` draw them, `comparison` and `table` have their
numbers, and `page` writes all of it, with what an `Application` adds.

>>> from multidds.report import ReportTable, as_csv, number, text
>>> table = ReportTable("bleu", "BLEU", rows=[{"pair": text("aze-eng"), "BLEU": number(11.25, ".1f")}])
>>> print(as_csv(table))
pair,BLEU
aze-eng,11.25
<BLANKLINE>
"""

from .comparison import half_interval, with_interval
from .page import Application, Report, Section, report, tiles_of
from .run import Run, by_method, read_run
from .table import Cell, ReportTable, Row, as_csv, number, text

__all__ = [
    "Application",
    "Cell",
    "Report",
    "ReportTable",
    "Row",
    "Run",
    "Section",
    "as_csv",
    "by_method",
    "half_interval",
    "number",
    "read_run",
    "report",
    "text",
    "tiles_of",
    "with_interval",
]
