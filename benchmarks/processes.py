"""Two processes of one thread each against one process of one thread, with the same global batch: tokens per second.

Short trainings take turns; figures are medians of ratios of neighbouring turns. Also what agreeing costs: the numbers
that the processes tell each other in every step, against the step.

    cd FOLDER  # where recipes/tiny.toml was prepared
    python benchmarks/processes.py recipes/tiny.toml [--turns 3]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from multidds.nmt import launch

STEPS = 24
SETTINGS = (  # a model for which a step takes long enough to be worth sharing
    "model.width=256", "model.inner=1024", "model.encoder_layers=3", "model.decoder_layers=3", "mixture.method=static",
    "train.tokens=4096", "train.batch_tokens=2048", f"train.max_steps={STEPS}", "train.log_every=4",
    "train.threads=1",
)  # fmt: skip
AGREEMENTS = 500


def speed(recipe: Path, processes: int) -> float:
    """Target tokens per second: the median over logged intervals but the first."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        start = [sys.executable, "-m"]
        if processes > 1:
            start += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
        sets = [part for setting in SETTINGS for part in ("--set", setting)]
        command = [*start, "multidds", "train", str(recipe), "--folder", str(run), *sets]
        subprocess.run(command, check=True, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        records = [json.loads(line) for line in (run / "records.jsonl").read_text(encoding="utf-8").splitlines()]
    return statistics.median([r["tokens_per_second"] for r in records if r["kind"] == "step"][1:])


def agree() -> None:
    """In a launched process: the first prints the seconds that an agreement takes."""
    launch.form_group()
    from multidds.nmt.processes import Processes

    processes = Processes()
    spent = []
    for _ in range(AGREEMENTS):
        began = time.perf_counter()
        processes.any(False)
        spent.append(time.perf_counter() - began)
    if processes.rank == 0:
        print(statistics.median(spent))
    launch.leave(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path, nargs="?")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.recipe is None:
        agree()
    ratios = []
    for turn in range(arguments.turns):
        both = {count: speed(arguments.recipe, count) for count in ((1, 2), (2, 1))[turn % 2]}
        ratios.append(both[2] / both[1])
        print(f"one process {both[1]:,.0f} tokens/s, two {both[2]:,.0f}: {ratios[-1]:.2f}", flush=True)
    print(f"two processes: {statistics.median(ratios):.2f} of one ({min(ratios):.2f} to {max(ratios):.2f})")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
    seconds = float(subprocess.run(launcher, check=True, capture_output=True, text=True).stdout)
    print(f"an agreement: {seconds * 1e6:.0f} microseconds; a step has two")


if __name__ == "__main__":
    main()
