"""The results of an experiment: a file of JSON lines, one per run, with its setting, method and seed first.

Lines are only appended, under a lock of the file, so several processes may write at once. Delete a line to repeat its
run.
"""

import fcntl
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Run = Mapping[str, Any]
Key = tuple[str, str, int]  # setting, method, seed


def read_runs(path: Path) -> dict[Key, Run]:
    """Returns the runs of a file in the order of its lines; none if it is not there."""
    if not path.exists():
        return {}
    runs = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {(run["setting"], run["method"], run["seed"]): run for run in runs}


def add_run(path: Path, key: Key, facts: Run) -> None:
    """Appends a run, unless another process has done so; floats with six digits, which is more than is known."""
    line = dict(zip(("setting", "method", "seed"), key, strict=True)) | facts
    with path.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if key not in read_runs(path):
            file.write(json.dumps(rounded(line), ensure_ascii=False, separators=(",", ":")) + "\n")


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value
