"""The folder of a run: its config, its records, its checkpoints, and whether it may be resumed.

`Records` writes records and updates, `read_records` and `read_lines` read them; `checkpoints` has the safetensors
files. `run_folder` opens a run, and `earlier_run` reads one that another starts from. Does not import torch.

>>> import tempfile
>>> from pathlib import Path
>>> with tempfile.TemporaryDirectory() as folder:
...     run = Path(folder) / "run"
...     records = Records(run, sizes={}, step=0)
...     records.start({"aze-eng": 0.5, "bel-eng": 0.5}, run="an identity")
...     records.close()
...     [record.kind for record in read_records(run)], read_lines(run, "mixture.jsonl")[0]["mixture"]
(['start'], {'aze-eng': 0.5, 'bel-eng': 0.5})
"""

from .earlier_run import EarlierRun, earlier_run
from .record_files import Records, read_lines, read_records
from .records import Scored, Started, Stepped, Validated
from .run_folder import check_run_folder, open_run

__all__ = [
    "EarlierRun",
    "Records",
    "Scored",
    "Started",
    "Stepped",
    "Validated",
    "check_run_folder",
    "earlier_run",
    "open_run",
    "read_lines",
    "read_records",
]
