"""Digests of everything that a refactoring must not change: draws, mixtures, rewards, noise, losses, parameters.

PYTHONPATH selects the code. Record with the code before. Compare with the code after, to see the lines that differ. The
third line compares two sections only.

    python benchmarks/behaviour/behaviour.py > before.json
    python benchmarks/behaviour/behaviour.py --against before.json
    python benchmarks/behaviour/behaviour.py default-rule ranks --against before.json

All sections take about four minutes. Draws are the same on every machine. Parameters, and everything computed from
them, are the same on one machine only. A line is a digest of all values to the last bit, and the last value with six
digits.
"""

import argparse
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ |= {"TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import core
import numpy as np
import torch
import trainers

Lines = dict[str, Any]
SECTIONS = core.SECTIONS | trainers.SECTIONS


def lines_by_name(name: str) -> Lines:
    """Runs a section and returns its lines."""
    began = time.perf_counter()
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:
        lines = SECTIONS[name](Path(folder))
    print(f"{name}: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    return lines


def flat(lines: Any, path: str = "") -> dict[str, str]:
    """Returns {" / case / key": line}."""
    if not isinstance(lines, dict):
        return {path: lines}
    return {key: value for name, item in lines.items() for key, value in flat(item, f"{path} / {name}").items()}


def differences(name: str, before: Lines, now: Lines) -> Iterator[str]:
    """Yields the lines of a section that differ, and the number of those that are equal."""
    for case in sorted(before.keys() ^ now.keys()):
        yield f"{name} / {case}: only {'before' if case in before else 'now'}"
    one, other = (
        flat({case: lines[case] for case in lines if case in before and case in now}) for lines in (before, now)
    )
    for key in one | other:
        if one.get(key) != other.get(key):
            yield f"{name}{key}\n    before: {one.get(key)}\n    now:    {other.get(key)}"
    yield f"{name}: {sum(one[key] == other.get(key) for key in one):,} of {len(one):,} lines are equal"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="section", help=f"one of {', '.join(SECTIONS)}; none: all")
    parser.add_argument("--against", type=Path, help="print the lines that differ from those in this file")
    options = parser.parse_args()
    if unknown := [name for name in options.sections if name not in SECTIONS]:
        parser.error(f"there is no section {unknown[0]!r}; there are {', '.join(SECTIONS)}")
    core.be_quiet()
    before = None if options.against is None else json.loads(options.against.read_text())
    lines = {}
    for name in options.sections or SECTIONS:
        lines[name] = lines_by_name(name)
        if before is not None:
            print(*differences(name, before.get(name, {}), lines[name]), sep="\n", flush=True)
    if before is None:
        print(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()
