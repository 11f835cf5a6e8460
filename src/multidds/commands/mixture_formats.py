"""The mixture of a run in the formats of other trainers: a small model's mixture can steer a big one elsewhere.

Every format is a pure function from {name: probability} to text, with numbers that read back as the same floats.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

from .._base.errors import UserError
from .._base.text import suggestion
from ..report import read_run

History = list[tuple[int, dict[str, float]]]  # (step, mixture from there on), by rising step: what `Replay` takes


def read_history(folder: Path) -> tuple[History, int]:
    """Returns every mixture of a run, from the one that it started with, and how many steps are on record."""
    run = read_run(folder)
    if not run.moments:
        raise UserError(f"{folder}: has no mixture; was a balancer at work there?")
    for moment in run.moments:
        if abs(math.fsum(moment.mixture.values()) - 1) > 1e-3:
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
    if steps == 0:
        return history[0][1]
    ends = [since for since, _ in history[1:]] + [steps]
    spans = [(end - since, mixture) for (since, mixture), end in zip(history, ends, strict=True)]
    total = {name: math.fsum(span * mixture[name] for span, mixture in spans) for name in history[0][1]}
    scale = math.fsum(total.values())
    return {name: weight / scale for name, weight in total.items()}


def history_json(run: Path) -> str:
    """Returns a JSON list of [step, mixture], one pair a line: `Replay(mixture, json.load(file))` takes it."""
    return "[\n" + ",\n".join(json.dumps(pair) for pair in read_history(run)[0]) + "\n]"


def written(mixture: Mapping[str, float], format_: str, template: str | None) -> str:
    """Returns the mixture in the format of another trainer.

    format_: a key of FORMATS.
    template: the other trainer's name of a dataset, with {name} in it; None: the usual one.
    """
    if format_ not in FORMATS:
        raise UserError(f"--format {format_}: is unknown.{suggestion(format_, tuple(FORMATS))}")
    write, usual = FORMATS[format_]
    template = usual if template is None else template
    if "{name}" not in template:
        raise UserError(f"--data {template}: must contain {{name}}, which stands for the name of a dataset.")
    filled = {name: template.replace("{name}", name) for name in mixture}
    for text in filled.values() if format_ == "megatron" else ():
        if " " in text or not text.isprintable():
            raise UserError(f"--data {template}: Megatron splits its list of paths at spaces, but one is {text!r}.")
    # fairseq looks every dataset up; the others refuse one of probability 0, or wait for it to end.
    keep_zeros = write is _json
    return write({filled[name]: p for name, p in mixture.items() if p > 0 or keep_zeros})


def _json(mixture: dict[str, float]) -> str:
    return json.dumps(mixture, ensure_ascii=False)  # fairseq evaluates it: see _quoted


def _hf(mixture: dict[str, float]) -> str:
    return f"names = {_listed(mixture)}\nprobabilities = {list(mixture.values())}"


def _megatron(mixture: dict[str, float]) -> str:
    return "\n".join(f"{p!r} {path}" for path, p in mixture.items())


def _streaming(mixture: dict[str, float]) -> str:
    def stream(path: str, p: float) -> str:
        return f"    Stream({'remote' if '://' in path else 'local'}={_quoted(path)}, proportion={p!r}),\n"

    rows = "".join(stream(path, p) for path, p in mixture.items())
    return f"from streaming import Stream\n\nstreams = [\n{rows}]"


def _lhotse(mixture: dict[str, float]) -> str:
    sets = [f"CutSet.from_file({_quoted(path)}).repeat()" for path in mixture]
    cuts = sets[0]  # mux refuses a single one
    if len(sets) > 1:
        cuts = "CutSet.mux(\n" + "".join(f"    {one},\n" for one in sets) + f"    weights={list(mixture.values())},\n)"
    return f"from lhotse import CutSet\n\ncuts = {cuts}"


def _quoted(text: str) -> str:
    # A JSON string is a Python string too, but for the escapes of letters beyond 16 bits.
    return json.dumps(text, ensure_ascii=False)


def _listed(names: Mapping[str, float]) -> str:
    return "[" + ", ".join(map(_quoted, names)) + "]"


# Format -> (writer, what the other trainer usually calls a dataset).
FORMATS: dict[str, tuple[Callable[[dict[str, float]], str], str]] = {
    "json": (_json, "{name}"),
    "fairseq": (_json, "main:{name}"),  # JSON for --sampling-weights-from-file, and as good for --sampling-weights
    "hf": (_hf, "{name}"),
    "megatron": (_megatron, "{name}_text_document"),  # what its preprocess_data.py adds to a prefix
    "streaming": (_streaming, "{name}"),
    "lhotse": (_lhotse, "{name}.jsonl.gz"),
}
