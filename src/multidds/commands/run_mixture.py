"""The mixtures of a run, from the one that it started with: at a step, the last, the average, or all of them."""

import json
import math
from pathlib import Path

from .._base.errors import UserError
from ..report import read_run

History = list[tuple[int, dict[str, float]]]  # (step, mixture from there on), by rising step: what `Replay` takes


def read_history(folder: Path) -> tuple[History, int]:
    """Returns every mixture of a run, from the one that it started with, and how many steps are on record."""
    run = read_run(folder)
    if not run.moments:
        raise UserError(f"{folder}: has no mixture; was a balancer at work there?")
    for moment in run.moments:
        if moment.mixture.keys() != run.moments[0].mixture.keys():
            raise UserError(f"{folder}: step {moment.step} has other datasets than step {run.moments[0].step}.")
        if not abs(math.fsum(moment.mixture.values()) - 1) <= 1e-3:
            raise UserError(
                f"{folder}: this log has only the datasets that moved most; mixture.jsonl in the output folder has all."
            )
    return [(moment.step, moment.mixture) for moment in run.moments], run.steps


def mixture_at(run: Path, step: int) -> dict[str, float]:
    """Returns the mixture after `step` steps, the update of that very step included."""
    history, steps = read_history(run)
    if not history[0][0] <= step <= steps:
        raise UserError(f"--at {step}: {run} has records of steps {history[0][0]} to {steps}.")
    return [mixture for since, mixture in history if since <= step][-1]


def final_mixture(run: Path) -> dict[str, float]:
    return read_history(run)[0][-1][1]


def average_mixture(run: Path) -> dict[str, float]:
    """Returns the mean over the steps of the run: a mixture counts by the steps drawn from it."""
    history, steps = read_history(run)
    ends = [since for since, _ in history[1:]] + [steps]
    spans = [(end - since, mixture) for (since, mixture), end in zip(history, ends, strict=True)]
    if not any(span for span, _ in spans):  # one moment
        return history[-1][1]
    total = {name: math.fsum(span * mixture[name] for span, mixture in spans) for name in history[0][1]}
    scale = math.fsum(total.values())
    return {name: weight / scale for name, weight in total.items()}


def history_json(run: Path) -> str:
    """Returns a JSON list of [step, mixture], one pair a line: `Replay(mixture, json.load(file))` takes it."""
    return "[\n" + ",\n".join(json.dumps(pair) for pair in read_history(run)[0]) + "\n]"
