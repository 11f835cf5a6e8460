"""The folder of a run: its config, its records, its checkpoints, and whether it may be resumed.

`Records` writes what happens in a run, `read_records` reads it; `checkpoints` has the safetensors files. `run_folder`
opens a run, and `earlier_run` reads one that another starts from. Does not import torch.

>>> import tempfile
>>> from pathlib import Path
>>> with tempfile.TemporaryDirectory() as folder:
...     run = Path(folder) / "run"
...     records = Records(run, offset=0, step=0)
...     records.write(Started(step=0, mixture={"aze-eng": 0.5, "bel-eng": 0.5}))
...     records.close()
...     [(record.kind, record.mixture) for record in read_records(run)]
[('start', {'aze-eng': 0.5, 'bel-eng': 0.5})]
"""

from .earlier_run import EarlierRun, earlier_run
from .record_files import Records, read_records
from .records import Scored, Started, Stepped, Updated, Validated
from .run_folder import check_run_folder, open_run

__all__ = [
    "EarlierRun",
    "Records",
    "Scored",
    "Started",
    "Stepped",
    "Updated",
    "Validated",
    "check_run_folder",
    "earlier_run",
    "open_run",
    "read_records",
]
