"""The cost of a learned mixture in a translation run: the default against a static run.

Two runs of the same config and seed take their steps in turns in one process, one static and one with the default.
Figures are medians over the turns, so other load on the machine affects both alike.

    overhead = one update, with its record / (every * one step)

A single step is measured and multiplied, instead of a run of 1,000 steps. A step of the balanced run is measured
beside a step of the static run, because both should cost the same. The parts of an update (forward, backward, inner
products, sketches, ...) are timed one by one, each without the parts called inside it. The authors' scheme takes n +
n^2 passes of 8 random sentences. Its passes are counted for every n. It is measured completely at the smallest n, and
elsewhere the cost of one pass is multiplied.

    python benchmarks/balancing_cost.py [--short | --tiny] [--json FILE] [--corpus FOLDER]

The text is synthetic. Its lengths are like TED's or, at the demo's scale, like the catalogues'. --corpus is a folder in
which experiments/demo/catalogues.toml was prepared. The demo's scale is then measured on that text.
"""

import argparse
import contextlib
import json
import math
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from multidds.gradients import vectors
from multidds.gradients.sketch import Sketcher
from multidds.gradients.vectors import Whole
from multidds.nmt.batches.batch import assemble
from multidds.nmt.config.config import Config, load_config, parse_config
from multidds.nmt.model.transformer import Transformer
from multidds.nmt.prepare import prepare
from multidds.nmt.training.balancing import planned_pace, probe_shape
from multidds.nmt.training.train import Training

ROOT = Path(__file__).resolve().parent.parent
EVERY, STEP, PROBE = 1000, 9600, 4000  # the paper's M and step, and the probes of the goals; tokens
# Sentence pairs of the catalogues of experiments/demo/catalogues.toml: training and dev.
DEMO = {
    "aze": (439, 99),
    "bel": (433, 99),
    "glg": (1793, 233),
    "slk": (10417, 296),
    "tur": (10488, 298),
    "rus": (10897, 296),
    "por": (15003, 297),
    "ces": (10637, 297),
}
# In parts: what may be spent on them.
BUDGETS = {"parts-100": 0.015, "parts-1000": 0.04}
AUTHORS = ("paper-8", "paper-2")  # scales at which the authors' scheme is measured too
MODELS = {
    "tiny": {"encoder_layers": 1, "decoder_layers": 1, "width": 64, "inner": 128, "heads": 4},
    "small": {"encoder_layers": 3, "decoder_layers": 3, "width": 256, "inner": 512, "heads": 4},
}


# ---------------------------------------------------------------------------------------------- data


def write_text(folder: Path, sizes: dict[str, tuple[int, int]], words: int, mean: float, spread: float) -> None:
    """Made-up sentences: words by Zipf's law, log-normal lengths, both sides of a pair about equally long."""
    for number, (language, (train, dev)) in enumerate(sizes.items()):
        random = np.random.default_rng([1, number])
        letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
        lexicon = ["".join(random.choice(letters, random.integers(2, 8))) for _ in range(words)]
        shares = 1 / np.arange(3, words + 3)
        place = folder / f"{language}-eng"
        place.mkdir(parents=True, exist_ok=True)
        for split, count in (("train", train), ("dev", dev)):
            lengths = np.exp(random.normal(np.log(mean) - spread**2 / 2, spread, count))
            for side in (language, "eng"):
                many = np.clip(lengths * np.exp(random.normal(0, 0.15, count)), 1, 90).astype(int)
                drawn = iter(random.choice(words, int(many.sum()), p=shares / shares.sum()).tolist())
                lines = [" ".join(lexicon[next(drawn)] for _ in range(length)) for length in many]
                (place / f"{split}.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8")


def paper_config(folder: Path, n: int, model: str, threads: int, budget: float = 0.0) -> Config:
    """n = K datasets, M = 1,000 steps of 9,600 tokens, probes of 4,000; with a budget, what it buys in 50,000 steps."""
    languages = [f"l{i:03}" for i in range(n)]
    sizes = (max(300, 6000 // n), 240) if n < 1000 else (40, 20)
    write_text(folder / "text", dict.fromkeys(languages, sizes), 700, 22.0, 0.6)
    table = {
        "data": {
            "folder": str(folder / "prepared"),
            "pairs": [f"{language}-eng" for language in languages],
            "train": str(folder / "text/{many}-eng/train.{lang}"),
            "dev": str(folder / "text/{many}-eng/dev.{lang}"),
        },
        "vocabulary": {"kind": "joint", "size": 2000},
        "model": MODELS[model],
        "train": {"tokens": STEP, "batch_tokens": STEP // 2, "threads": threads, "max_epochs": 10**6},
        "mixture": {"probe_budget": budget} if budget else {"every": EVERY, "probe_tokens": PROBE},
    }
    if budget:
        table["train"]["max_steps"] = 50 * EVERY
    config = parse_config(table, "benchmark")
    prepare(config)
    return config


def demo_config(folder: Path, corpus: Path | None, threads: int, every: int) -> Config:
    """experiments/demo/catalogues.toml with an update every so many steps of 2,048 tokens, probes of 1,024."""
    overrides = [f"train.threads={threads}", "train.max_epochs=1000000", f"mixture.every={every}"]
    if corpus is None:
        write_text(folder / "text", DEMO, 2000, 12.0, 0.8)
        where = {"folder": folder / "prepared", "test": folder / "text/{many}-eng/dev.{lang}"}
        where |= {split: folder / f"text/{{many}}-eng/{split}.{{lang}}" for split in ("train", "dev")}
        overrides += [f'data.{key}="{path}"' for key, path in where.items()]
        overrides.append("vocabulary.size=1200")  # the made-up text allows no more
    config = load_config(ROOT / "experiments" / "demo" / "catalogues.toml", overrides)
    if corpus is None:
        prepare(config)
    return config


# ---------------------------------------------------------------------------------------------- clocks


_clocks = [time.perf_counter]


def clock() -> float:
    """Seconds of the chosen clock."""
    return _clocks[0]()


class Parts:
    """Seconds inside named functions, each without the named functions that it calls."""

    PLACES = (
        (Transformer, "forward", "forward"),
        (torch.autograd, "backward", "backward"),
        (Whole, "dot", "inner products"),
        (Whole, "norm", "inner products"),
        (Sketcher, "add", "sketches"),
    )

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self._inside = [0.0]  # seconds of the named functions that the running one has called

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        before = [getattr(owner, name) for owner, name, _ in self.PLACES]
        for (owner, name, part), function in zip(self.PLACES, before, strict=True):
            setattr(owner, name, self._timed(function, part))
        try:
            yield
        finally:
            for (owner, name, _), function in zip(self.PLACES, before, strict=True):
                setattr(owner, name, function)

    def _timed(self, function: Any, part: str) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inside.append(0.0)
            began = clock()
            try:
                return function(*args, **kwargs)
            finally:
                seconds = clock() - began
                self.seconds[part] += seconds - self._inside.pop()
                self._inside[-1] += seconds
                self.calls[part] += 1

        return timed


class Silent:
    def progress(self, fraction: float, facts: dict[str, Any]) -> None: ...

    def line(self, text: str) -> None: ...

    def log(self, text: str) -> None: ...


def step(run: Training) -> float:
    """One turn of the loop of multidds.nmt.training.train, without an update. Seconds."""
    began, at = clock(), run.progress
    batches, sentences, tokens = run.stream.next(run.steps_until_update())
    run.step(batches, tokens)
    at.step, at.sentences, at.tokens = at.step + 1, at.sentences + sentences, at.tokens + tokens
    run.watch(Silent())
    return clock() - began


def update(run: Training) -> float:
    """One update, as the loop makes and records it. Seconds."""
    assert run.balancer is not None
    began = clock()
    with run.at_averaged_weights():
        found = run.balancer.update()
    run.record_update(found, Silent())
    return clock() - began


# ---------------------------------------------------------------------------------------------- measuring


def two_runs(config: Config, folder: Path) -> tuple[Training, Training]:
    static = config.model_copy(update={"mixture": config.mixture.model_copy(update={"method": "static"})})
    return Training(static, folder / "static"), Training(config, folder / "balanced")


def measure(config: Config, folder: Path, rounds: int, steps: int, authors: bool = False) -> dict[str, Any]:
    static, balanced = two_runs(config, folder)
    for _ in range(3):
        step(static), step(balanced)
    seconds: dict[str, list[float]] = defaultdict(list)
    parts = Parts()
    for _ in range(rounds):
        for _ in range(steps):
            seconds["static"].append(step(static))
            seconds["balanced"].append(step(balanced))
        if authors:
            seconds["authors"].append(authors_pass(balanced))
        with parts.watching():
            seconds["update"].append(update(balanced))
        for _ in range(steps):
            seconds["balanced"].append(step(balanced))
            seconds["static"].append(step(static))
    median = {kind: statistics.median(values) for kind, values in seconds.items()}
    median["step"] = statistics.median(seconds["static"] + seconds["balanced"])
    pairs = zip(seconds["balanced"], seconds["static"], strict=True)
    assert balanced.balancer is not None
    every, n = balanced.balancer.every, len(config.data.names)
    total = sum(seconds["update"])
    shares = {part: value / total for part, value in parts.seconds.items()}
    shares["the rest"] = 1 - sum(shares.values())
    tokens = every * config.train.tokens
    result = {
        "n": n,
        "every": every,
        "parameters": sum(p.numel() for p in static.model.parameters()),
        "passes": parts.calls["backward"] // rounds,
        "counted": planned_pace(config, config.train.max_steps).share
        if config.mixture.probe_budget
        else 2 * n * math.prod(probe_shape(config.mixture)) / tokens,
        "measured": median["update"] / (every * median["step"]),
        "balanced step / static step": statistics.median(a / b for a, b in pairs),
        "step seconds": median["step"],
        "update seconds": median["update"],
        "not passes": 1 - shares["forward"] - shares["backward"],
        "parts": dict(sorted(shares.items(), key=lambda item: -item[1])),
    }
    if authors:
        result["authors' pass / step"] = median["authors"] / median["step"]
        result["our pass / step"] = median["update"] / result["passes"] / median["step"]
    for run in (static, balanced):
        run.close()
    return result


def authors_pass(run: Training, count: int = 8) -> float:
    """Seconds of one of the authors' passes, the mean of a few: 8 random sentences, gradient, cosine with another."""
    random = np.random.default_rng(0)
    params = list(run.model.parameters())
    other = [p.detach() for p in params]  # any vector
    seconds = []
    for sentences in [*run.data.values(), *run.dev.values()][:16]:
        items = [(sentences, int(i)) for i in random.integers(len(sentences), size=count)]
        began = clock()
        batch = assemble(items)
        (run.summed_loss(run.model, batch) / batch.tokens).backward()  # type: ignore[no-untyped-call]
        gradient = [p.grad for p in params]
        vectors.dot(gradient, other) / vectors.norm(gradient)
        seconds.append(clock() - began)
        run.optimizer.zero_grad()
    return statistics.fmean(seconds)


def authors_whole(config: Config, folder: Path) -> float:
    """Seconds of a whole update of the authors' scheme over those of `every` steps, measured, not multiplied."""
    static, balanced = two_runs(config, folder)
    n = len(config.data.names)
    seconds: dict[str, list[float]] = defaultdict(list)
    for _ in range(2):
        step(static)
    for _ in range(-(-(n + n * n) // 16)):
        seconds["step"].append(step(static))
        seconds["pass"].append(authors_pass(balanced))
    for run in (static, balanced):
        run.close()
    return statistics.fmean(seconds["pass"]) * (n + n * n) / (config.mixture.every * statistics.median(seconds["step"]))


def schemes(measured: dict[str, Any]) -> list[dict[str, float]]:
    """The two schemes for more and more datasets, as shares of 1,000 training steps."""
    theirs, ours = measured["authors' pass / step"], measured["our pass / step"]
    return [
        {
            "n": n,
            "authors: passes": n + n * n,
            "authors: share": (n + n * n) * theirs / EVERY,
            "ours: passes": 2 * n,
            "ours: share": 2 * n * ours / EVERY,
            "ours with 8 sentences: share": 2 * n * theirs / EVERY,
        }
        for n in (8, 58, 100, 1000)
    ]


def show(title: str, rows: list[dict[str, Any]]) -> None:
    print(title)
    for row in rows:
        for key, value in row.items():
            if isinstance(value, dict):
                value = ", ".join(f"{part} {share:.1%}" for part, share in value.items())
            elif isinstance(value, float):
                value = f"{value:.4g}"
            print(f"  {key:>30}  {value}")
        print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="fewer turns, and n = 100 by multiplication alone")
    parser.add_argument("--tiny", action="store_true", help="two datasets and one turn: to see whether it runs")
    parser.add_argument("--only", choices=["paper-8", "paper-100", "demo", *BUDGETS], help="one of the scales")
    parser.add_argument("--model", choices=list(MODELS), default="tiny", help="of the paper's scales")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--every", type=int, default=50, help="steps between updates at the demo's scale; its recipe: 100"
    )
    parser.add_argument("--processor-time", action="store_true", help="for a busy machine, with one thread")
    parser.add_argument("--corpus", type=Path, help="a folder where experiments/demo/catalogues.toml was prepared")
    parser.add_argument("--json", type=Path, help="write the ratios here as well")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.processor_time:
        _clocks[0] = time.process_time
    with contextlib.suppress(ImportError):  # as `multidds train` does
        from multidds.nmt.model.freed_memory import keep_freed_memory

        keep_freed_memory()
    json_path = args.json.resolve() if args.json else None
    rounds = {"paper-8": 3, "demo": 4} if args.short else {"paper-8": 9, "paper-100": 3, "demo": 12}
    if args.tiny:
        rounds = {"paper-2": 1}
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for scale in rounds if args.only is None else [args.only]:
            if scale == "demo":
                os.chdir(args.corpus or folder)
                config = demo_config(folder / scale, args.corpus, args.threads, args.every)
            else:
                n, budget = int(scale.split("-")[1]), BUDGETS.get(scale, 0.0)
                config = paper_config(folder / scale, n, args.model, args.threads, budget)
            found[scale] = measure(config, folder / scale / "runs", rounds.get(scale, 1), 2, scale in AUTHORS)
            show(f"{scale}: an update every {found[scale]['every']} steps", [found[scale]])
            if scale in AUTHORS:
                found["schemes"] = schemes(found[scale])
                show("the authors' scheme: passes counted, shares from the cost of one pass", found["schemes"])
                if scale == "paper-8" and not args.short:
                    found["authors at 8, whole"] = authors_whole(config, folder / scale / "whole")
                    print(f"the authors' scheme at n = 8, all passes made: {found['authors at 8, whole']:.4f}\n")
    for scale, goal in (("paper-8", 0.01), ("paper-100", 0.10)):
        if scale in found:
            got = found[scale]["measured"]
            print(f"{scale}: {got:.2%} of the training time, goal {goal:.0%}: {'met' if got <= goal else 'MISSED'}")
    if json_path is not None:
        json_path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
