"""A short form of every benchmark, one after another; what they say goes to benchmarks/latest.json.

    python benchmarks/short.py [--tiny] [--json FILE]

Ratios, not times: compare the file of two machines or two versions by those. docs/performance.md says what they mean.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

HERE = Path(__file__).parent
COMMANDS = {
    "train_speed": ["train_speed.py", "--batches", "8", "--rounds", "1", "--only", "trainer", "--json"],
    "train_speed_2_threads": [
        *("train_speed.py", "--batches", "8", "--rounds", "1"),
        *("--threads", "2", "--only", "", "--json"),
    ],
    "balancing_cost": ["balancing_cost.py", "--short", "--json", "{file}"],
    "front": ["front.py", "--json", "{file}"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="the tiny form of each: to see whether they run")
    parser.add_argument("--json", type=Path, default=HERE / "latest.json", help="where the results go")
    given = parser.parse_args()
    found: dict[str, object] = {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__}
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, (script, *options) in COMMANDS.items():
            if given.tiny and name != script.removesuffix(".py"):  # the same script with other options
                continue
            print(f"--- {script} {' '.join(options)}", flush=True)
            file = Path(folder) / f"{name}.json"
            command = [sys.executable, str(HERE / script), *(option.format(file=file) for option in options)]
            command += ["--tiny"] if given.tiny else []
            to_file = "{file}" in options
            done = subprocess.run(command, stdout=None if to_file else subprocess.PIPE, text=True)
            if done.returncode:
                found[name] = f"failed with exit code {done.returncode}"
                continue
            found[name] = json.loads(file.read_text(encoding="utf-8") if to_file else done.stdout)
            if not to_file:
                print(json.dumps(found[name], indent=1))
    given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    failed = [name for name, result in found.items() if isinstance(result, str)]
    print(f"{given.json}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
