"""Our training step against plain PyTorch and other translation toolkits, on the same sentences.

    python benchmarks/train_speed/train_speed.py [--size paper] [--threads 2] [--recipe R.toml]
        [--only trainer,fairseq] [--tiny]

Every contestant has a process of its own. They take the same batches in turn, never two at a time: forward,
label-smoothed loss, backward, clipping, Adam. Reported are medians over the steps: target tokens per second, the ratio
of our speed to each, the fraction of the matrix-multiply peak, and the memory that training added to the process at its
peak. The fraction counts the arithmetic of the real tokens, without padding, and the peak of the same minutes. Batches
are cut as in training. The text is made up with lengths like TED's (mean 25, at most 150), or prepared by a recipe.

By default ours keeps freed memory and the others leave glibc as it is. With --memory all, all of them keep it. With
--memory none, nobody does. Peers that are not installed are listed with the reason. peers.py says how to install them.
"""

import argparse
import json
import logging
import multiprocessing
import os
import resource
import statistics
import time
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from peers import PEERS, Training, simple
from plain import padded, plain_loss
from workload import DROPOUT, SIZES, SMOOTHING, TOKENS, Workload, arithmetic, made_up, prepared

from multidds.nmt.model.freed_memory import keep_freed_memory
from multidds.nmt.model.transformer import Transformer

SIDE = 2048  # of the matrices whose product is the peak


def model_of(work: Workload) -> Transformer:
    torch.manual_seed(0)
    rates = {"dropout": DROPOUT, "attention_dropout": DROPOUT, "activation_dropout": DROPOUT}
    return Transformer(work.words, work.words, work.longest, norm="scale", **work.settings, **rates)


def plain(work: Workload) -> Training:
    model, inputs = model_of(work), [padded(batch) for batch in work.batches]
    return simple(model, lambda i: plain_loss(model, inputs[i], SMOOTHING) / work.batches[i].tokens)


def ours(work: Workload) -> Training:
    model, data = model_of(work), work.batches
    return simple(model, lambda i: model(data[i], SMOOTHING) / data[i].tokens)


CONTESTANTS: dict[str, tuple[str, str, Callable[[Workload], Training]]] = {
    "plain": ("plain PyTorch", "torch", plain),
    "ours": ("multidds", "multidds", ours),
    **PEERS,
}


def title(name: str) -> str:
    words, package, _ = CONTESTANTS[name]
    try:
        return f"{words} {version(package)}"
    except PackageNotFoundError:
        return words


# ---------------------------------------------------------------------------------------------- one contestant


def contest(name: str, options: argparse.Namespace, pipe: Connection) -> None:
    """A process: builds its contestant, says what it is, then takes the step it is told and says how long it took."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    if options.memory == "all" or (options.memory == "ours" and name == "ours"):
        keep_freed_memory()
    work = workload(options)
    try:
        step = CONTESTANTS[name][2](work)
        before = memory()
        pipe.send(checked(step))
    except (Exception, SystemExit) as error:  # whatever a toolkit fails with: it is shown, and the others go on
        pipe.send(f"{type(error).__name__}: {error}".split("\n")[0])
        return
    while (i := pipe.recv()) is not None:
        pipe.send(timed(lambda i=i: step(i)))
    pipe.send({"last_loss": float(step.loss), "memory": memory() - before})


def checked(step: Training) -> dict[str, Any]:
    """Runs a first step: is it a training step of such a model? Parameters are those that the step changes."""
    now = [p for p in step.model.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in now]
    step(0)
    moved = [not torch.equal(old, new) for old, new in zip(before, now, strict=True)]
    sizes = [p.numel() for p in now]
    trained = sum(size for size, yes in zip(sizes, moved, strict=True) if yes)
    return {"parameters": trained, "unchanged": sum(sizes) - trained, "first_loss": float(step.loss)}


def memory() -> float:
    """The most that this process has had so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


# ---------------------------------------------------------------------------------------------- all in turn


def compare(options: argparse.Namespace) -> dict[str, Any]:
    names = [name for name in CONTESTANTS if name in ("plain", "ours") or not options.only or name in options.only]
    context = multiprocessing.get_context("spawn")
    pipes, processes, rows, missing = {}, [], {}, {}
    for name in names:
        pipes[name], other = context.Pipe()
        process = context.Process(target=contest, args=(name, options, other), daemon=True)
        process.start()
        other.close()
        processes.append(process)
        answer = answered(pipes[name])
        if isinstance(answer, str):
            missing[name] = answer
            del pipes[name]
        else:
            rows[name] = answer
    work = workload(options)
    count = len(work.batches)
    a, b = torch.randn(2, SIDE, SIDE)
    seconds: dict[str, list[float]] = {name: [] for name in pipes}
    products = []
    for turn in range(-1, options.rounds):  # -1: warming up
        for i in range(count if turn >= 0 else options.warm_up):
            if turn >= 0:
                products.append(timed(lambda: a @ b))
            for name in list(pipes)[:: 1 if (turn + i) % 2 else -1]:  # who goes first alternates
                spent = answered(pipes[name], i % count)
                if isinstance(spent, str):
                    missing[name] = spent
                    del pipes[name], seconds[name], rows[name]
                elif turn >= 0:
                    seconds[name].append(spent)
    for name, pipe in pipes.items():
        rows[name] |= answered(pipe, None)
    for process in processes:
        process.join()

    peak = 2 * SIDE**3 / statistics.median(products)
    sums = [arithmetic(work, batch) for batch in work.batches] * options.rounds
    tokens = [batch.tokens for batch in work.batches] * options.rounds
    for name, times in seconds.items():
        rows[name] |= {
            "title": title(name),
            "tokens_per_second": statistics.median(n / t for n, t in zip(tokens, times, strict=True)),
            "ratio_to_plain": median_ratio(seconds["plain"], times),
            "ours_is_faster": median_ratio(times, seconds["ours"]),
            "fraction_of_peak": statistics.median(w / t for w, t in zip(sums, times, strict=True)) / peak,
        }
    real = sum(batch.tokens + len(batch.source) for batch in work.batches)
    room = sum(batch.target_rows.tokens.numel() + batch.source_rows.tokens.numel() for batch in work.batches)
    return {
        "size": options.size,
        "threads": options.threads,
        "memory_kept": options.memory,
        "steps": len(tokens),
        "tokens": statistics.mean(tokens),
        "padding": room / real - 1,
        "peak_gflops": peak / 1e9,
        "torch": torch.__version__,
        "load": os.getloadavg()[0],
        "contestants": rows,
        "missing": {title(name): reason for name, reason in missing.items()},
    }


def answered(pipe: Connection, *question: Any) -> Any:
    """What a contestant says; a sentence if it is no more."""
    try:
        for part in question:
            pipe.send(part)
        return pipe.recv()
    except (EOFError, OSError):
        return "its process ended, perhaps for want of memory: all contestants are in memory together"


def median_ratio(above: list[float], below: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def workload(options: argparse.Namespace) -> Workload:
    tokens = options.tokens or TOKENS[options.size]
    if options.recipe:
        return prepared(options.size, tokens, options.batches, options.recipe)
    return made_up(options.size, tokens, options.batches)


def table(result: dict[str, Any]) -> str:
    lines = [
        f"{result['size']}, {result['threads']} thread(s), {result['steps']} steps of {result['tokens']:.0f} target "
        f"tokens each, padding {result['padding']:.1%}, peak {result['peak_gflops']:.0f} GFLOP/s, freed memory kept: "
        f"{result['memory_kept']}, torch {result['torch']}, load {result['load']:.1f}",
        "",
        "| | parameters | first loss | target tokens/s | plain = 1 | of peak | memory | ours is faster |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in result["contestants"].values():
        lines.append(
            f"| {row['title']} | {row['parameters'] / 1e6:.2f} M | {row['first_loss']:.2f} "
            f"| {row['tokens_per_second']:.0f} | {row['ratio_to_plain']:.2f} | {row['fraction_of_peak']:.2f} "
            f"| {row['memory']:.0f} MB | {row['ours_is_faster']:.2f} x |"
        )
    lines += [f"| {name} | not measured: {reason} | | | | | | |" for name, reason in result["missing"].items()]
    fastest = [row["ours_is_faster"] for name, row in result["contestants"].items() if name in PEERS]
    if fastest:
        lines += ["", f"Against the fastest peer: {min(fastest):.2f} x"]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tiny", action="store_true", help="a tiny model, one step each: to see whether it runs")
    parser.add_argument("--size", choices=list(SIZES), default="small")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--warm-up", type=int, default=3, help="steps; Sockeye's traced model is compiled in its first")
    parser.add_argument("--tokens", type=int, help="per batch; 256 (tiny), 4096 (small) or 4800 (paper) if not given")
    parser.add_argument("--recipe", type=Path, help="of a prepared corpus; made-up text if not given")
    parser.add_argument("--memory", choices=["ours", "all", "none"], default="ours", help="who keeps freed memory")
    parser.add_argument("--only", type=lambda text: text.split(","), help=f"of {', '.join(PEERS)}; '' for none")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.tiny:
        options.size, options.batches, options.rounds, options.warm_up = "tiny", 1, 1, 1
    torch.set_num_threads(options.threads)
    result = compare(options)
    print(json.dumps(result) if options.json else table(result))


if __name__ == "__main__":
    main()
