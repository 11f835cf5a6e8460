"""`multidds report`: tables, figures and one page from runs of any trainer.

`runs` reads run folders, `mixture_runs` those of other trainers; `tables`, `comparison`, `mixture_table` and
`pair_tables` are data; `charts` draws; `page` writes all of it.

>>> from multidds.nmt.report import ReportTable, as_csv, number, text
>>> table = ReportTable("bleu", "BLEU", rows=[{"pair": text("aze-eng"), "BLEU": number(11.25, ".1f")}])
>>> print(as_csv(table))
pair,BLEU
aze-eng,11.25
<BLANKLINE>
"""

from .page import as_csv, report
from .tables import ReportTable, number, text

__all__ = ["ReportTable", "as_csv", "number", "report", "text"]
