"""Two processes of one thread each against one process of one thread, with the same global batch: time of a step.

Short trainings take turns; figures are medians of ratios of neighbouring turns: of the time on the clock, which says
something only where both cores are free, and of the CPU time of one process: its share of the work, and what sharing
adds. Also what it takes to agree on a number, which happens twice in every step.

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

from multidds.nmt.common import launch

STEPS, FIRST = 14, 4  # in all, and those before the clocks start
SETTINGS = (  # a model for which a step takes long enough to be worth sharing
    "model.width=128",
    "model.inner=512",
    "mixture.method=static",
    "train.tokens=2048",
    "train.batch_tokens=1024",
    "train.max_steps=1000",
    "train.threads=1",
)
AGREEMENTS = 200


def measured(recipe: Path, processes: int) -> dict[str, float]:
    """The median step of the first process: seconds on the clock and of its CPU; an agreement in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        start = [sys.executable]
        if processes > 1:
            start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        command = [*start, __file__, str(recipe), "--folder", f"{folder}/run"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def train(recipe: Path, run: Path) -> None:
    """In each process: some steps as the loop takes them, without its records. The first prints what they took."""
    launch.form_group()
    from multidds.nmt.config.config import load_config
    from multidds.nmt.training.train import Training

    training = Training(load_config(recipe, SETTINGS), run)
    clocks: list[tuple[float, float]] = []
    for _ in range(STEPS):
        batches, _, tokens = training.stream.next(training.steps_until_update())
        training.step(batches, tokens)
        training.progress.step += 1
        training.check_losses()
        training.processes.any(False)
        clocks.append((time.perf_counter(), time.process_time()))
    wall, cpu = (
        statistics.median(b - a for a, b in zip(c[FIRST - 1 :], c[FIRST:], strict=False))
        for c in zip(*clocks, strict=True)
    )
    began = time.process_time()
    for _ in range(AGREEMENTS):
        training.processes.any(False)
    agreement = (time.process_time() - began) / AGREEMENTS
    training.close()
    if training.processes.rank == 0:
        print(json.dumps({"clock": wall, "CPU": cpu, "agreement": agreement}), flush=True)
    training.processes.meet()
    launch.exit_process(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder is not None:
        train(arguments.recipe, arguments.folder)
    turns = []
    for turn in range(arguments.turns):
        both = {count: measured(arguments.recipe, count) for count in ((1, 2), (2, 1))[turn % 2]}
        turns.append({kind: both[2][kind] / both[1][kind] for kind in ("clock", "CPU")} | {"raw": both})
        print(json.dumps(turns[-1]), flush=True)
    for kind in ("clock", "CPU"):
        ratios = [turn[kind] for turn in turns]
        middle = statistics.median(ratios)
        print(f"a step of two processes, {kind}: {middle:.2f} of one ({min(ratios):.2f} to {max(ratios):.2f})")
    seconds = statistics.median(turn["raw"][2]["agreement"] for turn in turns)
    print(f"an agreement: {seconds * 1e6:.0f} microseconds of CPU")


if __name__ == "__main__":
    main()
