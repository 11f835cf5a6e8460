"""The cost of `prepare` and of a training with much text.

Made-up text of many datasets is prepared by several processes. Measured are

- pairs per second, the peak memory of the processes, and the CPU time of encoding. It is compared with sentencepiece's
  bare `encode` on the same lines with the same model, shard by shard in turns, in all processes at once;
- a second preparation that is killed (SIGKILL) in the middle and started again, with the same bytes in every file;
- training on this text and on a hundredth of it: seconds until the first step is done, peak memory and open files in
  processes of their own, and CPU seconds per token in one process, by turns.

    python benchmarks/large_data.py [--tiny] [--pairs 1000000] [--datasets 100] [--folder DIR] [--json FILE]

Ten million pairs need 4 GB of disk. Text that is already in the folder is used again.
"""

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
HELD_OUT = 100
WORDS = 20_000
BATCH = 4000  # lines that bare sentencepiece gets at once: its best
RECIPE = """
[data]
folder = "{folder}/prepared"
pairs = [{pairs}]
train = "{folder}/{{pair}}.train.{{lang}}"
dev = "{folder}/{{pair}}.dev.{{lang}}"
max_length = 60

[vocabulary]
kind = "joint"
size = {vocabulary}
sample = 100000

[model]
encoder_layers = 2
decoder_layers = 2
width = 128
inner = 256
heads = 4

[train]
tokens = 2048
batch_tokens = 2048
pool = 10
threads = 1
max_steps = 1000000
save_every = 1000000

[mixture]
method = "static"
prior = "temperature"
"""


# ---------------------------------------------------------------------------------------------- the text


def sizes_of(pairs: int, datasets: int) -> list[int]:
    """Unequal, as in life: the largest has about ten times as much as the smallest."""
    weights = 1 / np.linspace(1, 10, datasets)
    sizes = np.maximum(1, np.floor(pairs * weights / weights.sum())).astype(int)
    sizes[0] += pairs - sizes.sum()
    return [int(size) for size in sizes]


def write_text(folder: Path, pairs: int, datasets: int, vocabulary: int) -> Path:
    """Sentences of 2 to 16 made-up words with Zipf's frequencies; each source language has spellings of its own."""
    recipe = folder / "recipe.toml"
    if recipe.exists():
        return recipe
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    letters, vowels = list("bcdfghjklmnprstvz"), list("aeiou")
    syllables = ["".join(both) for both in zip(rng.choice(letters, 300), rng.choice(vowels, 300), strict=True)]
    base = ["".join(rng.choice(syllables, rng.integers(1, 5))) for _ in range(WORDS)]
    frequencies = np.cumsum(1 / np.arange(1, WORDS + 1))
    names = []
    for number, size in enumerate(sizes_of(pairs, datasets)):
        turned = str.maketrans("aeiou", "".join(rng.permutation(vowels)))
        spelled = {"base": base, f"l{number:02}": [word.translate(turned)[::-1] for word in base]}
        names.append(f"l{number:02}-base")
        for split, count in (("train", size), ("dev", HELD_OUT)):
            files = {lang: (folder / f"{names[-1]}.{split}.{lang}").open("w") for lang in spelled}
            for ids in sentences(rng, frequencies, count):
                for lang, words in spelled.items():
                    files[lang].write("".join(" ".join([words[i] for i in line]) + "\n" for line in ids))
            for file in files.values():
                file.close()
    recipe.write_text(
        RECIPE.format(folder=folder, vocabulary=vocabulary, pairs=", ".join(f'"{name}"' for name in names))
    )
    return recipe


def sentences(rng: np.random.Generator, frequencies: np.ndarray, count: int) -> Iterator[list[list[int]]]:
    for start in range(0, count, 10_000):
        lengths = rng.integers(2, 17, min(10_000, count - start))
        words = np.searchsorted(frequencies, rng.random(int(lengths.sum())) * frequencies[-1]).tolist()
        ends = np.cumsum(lengths).tolist()
        yield [words[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]


# ---------------------------------------------------------------------------------------------- children


def child(what: str, *arguments: object) -> dict[str, Any]:
    """A part of this file in a process of its own; what it prints."""
    done = subprocess.run(
        [sys.executable, str(HERE), "--child", what, *map(str, arguments)], stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout)


def megabytes(who: int) -> float:
    return round(resource.getrusage(who).ru_maxrss / 1024, 1)


def prepared(recipe: str, folder: str, processes: str) -> dict[str, Any]:
    """Prepare, and what it took: seconds, also until the first shard was done; memory of the largest process."""
    from multidds.nmt.config.config import load_config
    from multidds.nmt.prepare import prepare

    began, marks = time.monotonic(), {}

    def note(what: str, done: int, total: int) -> None:
        marks.setdefault(what.split(" ")[0].split("-")[0], time.monotonic() - began)

    made = prepare(load_config(Path(recipe), [f"data.folder={folder}"]), int(processes), note)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "made": made,
        "seconds": round(time.monotonic() - began, 1),
        "seconds until the model was learned": round(marks.get("sentencepiece", 0.0), 1),
        "CPU seconds": round(sum(one.ru_utime + one.ru_stime for one in used), 1),
        "MB of the parent": megabytes(resource.RUSAGE_SELF),
        "MB of the largest worker": megabytes(resource.RUSAGE_CHILDREN),
    }


def trained(recipe: str, folder: str, steps: str) -> dict[str, Any]:
    """The first step of a training and some more: seconds, memory, open files."""
    began = time.monotonic()
    training = training_of(Path(recipe), Path(folder))
    opened = time.monotonic() - began
    one_step(training)
    first = time.monotonic() - began
    for _ in range(int(steps)):
        one_step(training)
    files = len(os.listdir("/proc/self/fd"))
    training.close()
    return {
        "seconds to open": round(opened, 2),
        "seconds to the first step": round(first, 2),
        "MB": megabytes(resource.RUSAGE_SELF),
        "open files": files,
    }


def training_of(recipe: Path, folder: Path) -> Any:
    from multidds.nmt.config.config import load_config
    from multidds.nmt.training.train import Training

    return Training(load_config(recipe), folder)


def one_step(training: Any) -> int:
    batches, _, tokens = training.stream.next(training.steps_until_update())
    training.step(batches, tokens)
    training.progress.step += 1
    return int(tokens)


def compared(large: str, small: str, folder: str, rounds: str, warm_up: str) -> dict[str, Any]:
    """CPU seconds per token of steps on both, by turns; the median of the ratios of neighbours."""
    both = [training_of(Path(recipe), Path(folder) / name) for recipe, name in ((large, "a"), (small, "b"))]
    for training in both:
        for _ in range(int(warm_up)):
            one_step(training)
    speeds: list[list[float]] = [[], []]
    for turn in range(int(rounds)):
        for which in (0, 1) if turn % 2 else (1, 0):
            began = time.process_time()
            tokens = sum(one_step(both[which]) for _ in range(10))
            speeds[which].append(tokens / (time.process_time() - began))
    for training in both:
        training.close()
    ratios = [a / b for a, b in zip(*speeds, strict=True)]
    return {
        "tokens/s": round(statistics.median(speeds[0])),
        "tokens/s of a hundredth": round(statistics.median(speeds[1])),
        "speed / that of a hundredth": round(statistics.median(ratios), 3),
    }


# ---------------------------------------------------------------------------------------------- encoding


def measured(recipe: str, numbers: list[int]) -> tuple[int, float, float]:
    """(lines, CPU seconds of ours, of sentencepiece's) over some shards, by turns. Ours has read the files before, to
    hash them; that is counted too."""
    from multidds.nmt.config.config import load_config
    from multidds.nmt.prepare.encode import ShardEncoder
    from multidds.nmt.prepare.shard_plan import shards_of
    from multidds.nmt.prepare.text_files import files_of, read_columns, scan, scan_inputs
    from multidds.nmt.prepare.vocabulary import load_model

    config = load_config(Path(recipe))
    shards = [shard for shard in shards_of(config, scan_inputs(config)) if shard.split == "train"]
    lines, ours, theirs = 0, 0.0, 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in ("joint.spm.model", "vocabulary.json"):
            shutil.copy(config.data.folder / file, folder)
        encoder, model = ShardEncoder(config, folder), load_model(folder, "joint")
        for turn, number in enumerate(numbers):
            for who in ("ours", "theirs") if turn % 2 else ("theirs", "ours"):
                if who == "ours":
                    began = time.process_time()
                    encoder.encode(shards[number])
                    ours += time.process_time() - began
                    continue
                for span in shards[number].spans:
                    columns = read_columns(config.data, span.pair, "train", span.start, span.stop, span.places)
                    for block in columns:
                        for side in block:
                            new = [(line + " ")[:-1] for line in side]  # strings that were encoded keep their UTF-8
                            lines += len(new)
                            for start in range(0, len(new), BATCH):
                                batch = new[start : start + BATCH]
                                began = time.process_time()
                                model.encode(batch, out_type=int, num_threads=1)
                                theirs += time.process_time() - began
        sample = files_of(config.data, config.data.pairs[0], "train")[0]
        began = time.process_time()
        hashed = scan(sample).lines
        ours += (time.process_time() - began) * lines / hashed
    return lines, ours, theirs


def encoding(recipe: Path, processes: int, shards: int) -> dict[str, Any]:
    """Our speed as a part of sentencepiece's, summed over processes that work at the same time."""
    from multidds.nmt.prepare.resumable_tasks import start_worker

    there = len(list((recipe.parent / "prepared").glob("train-*.bin")))
    chosen = np.linspace(0, there - 1, min(there, shards * processes)).round().astype(int).tolist()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn, initializer=start_worker) as pool:
        found = [pool.submit(measured, str(recipe), chosen[i::processes]) for i in range(processes)]
        rows = [future.result() for future in found]
    lines = sum(row[0] for row in rows)
    return {
        "lines": lines,
        "microseconds a line": round(1e6 * sum(row[1] for row in rows) / lines, 3),
        "sentencepiece, microseconds a line": round(1e6 * sum(row[2] for row in rows) / lines, 3),
        "ratio of the sums of speeds": round(
            sum(row[0] / row[1] for row in rows) / sum(row[0] / row[2] for row in rows), 3
        ),
    }


# ---------------------------------------------------------------------------------------------- all of it


def killed(recipe: Path, processes: int, seconds: float) -> dict[str, Any]:
    """A preparation that is killed after so many seconds and called again, against the one that was not."""
    again = recipe.parent / "again"
    command = [sys.executable, str(HERE), "--child", "prepared", str(recipe), str(again), str(processes)]
    victim = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    time.sleep(seconds)
    os.killpg(victim.pid, signal.SIGKILL)
    victim.wait()
    left = len(list((recipe.parent / "again.partial" / "notes").glob("*.json")))
    result = child("prepared", recipe, again, processes)
    folders = [recipe.parent / "prepared", again]
    names = [sorted(path.name for path in folder.iterdir()) for folder in folders]
    same = names[0] == names[1] and all(
        (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes() for name in names[0]
    )
    shutil.rmtree(again)
    return {"tasks finished before the kill": left, "seconds of the second call": result["seconds"], "same files": same}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a few hundred pairs: to see whether it runs")
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--datasets", type=int, default=100)
    parser.add_argument("--vocabulary", type=int, default=8000, help="subwords")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--shards", type=int, default=6, help="shards per process that are encoded by turns")
    parser.add_argument("--rounds", type=int, default=21, help="turns of ten steps on each corpus")
    parser.add_argument("--steps", type=int, default=100, help="of each training, whose memory is measured")
    parser.add_argument("--folder", type=Path, help="where the text is, and stays; by default a temporary one")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.tiny:
        options.pairs, options.datasets, options.vocabulary = 600, 2, 400
        options.processes = options.shards = options.rounds = options.steps = 1
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        found = run(folder, options)
    print(json.dumps(found, indent=1))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def run(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    began = time.monotonic()
    large = write_text(folder / "large", options.pairs, options.datasets, options.vocabulary)
    small = write_text(
        folder / "small", max(options.pairs // 100, 100 * options.datasets), options.datasets, options.vocabulary
    )
    say(f"{options.pairs:,} pairs in {options.datasets} datasets written in {time.monotonic() - began:.0f} s")
    found: dict[str, Any] = {"pairs": options.pairs, "datasets": options.datasets, "processes": options.processes}
    for recipe in (large, small):
        shutil.rmtree(recipe.parent / "prepared", ignore_errors=True)
        result = child("prepared", recipe, recipe.parent / "prepared", options.processes)
        if recipe == large:
            found["prepare"] = result | {"pairs/s": round(options.pairs / result["seconds"])}
            say(f"prepared: {found['prepare']}")
    found["encoding"] = encoding(large, options.processes, options.shards)
    say(f"encoding: {found['encoding']}")
    found["killed"] = killed(large, options.processes, 0.6 * found["prepare"]["seconds"])
    say(f"killed: {found['killed']}")
    runs = folder / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    starts = {
        name: child("trained", recipe, runs / name, options.steps)
        for name, recipe in (("large", large), ("small", small))
    }
    memory = round(starts["large"]["MB"] / starts["small"]["MB"], 3)
    found["training"] = {**starts, "memory / that of a hundredth": memory}
    say(f"training: {found['training']}")
    found["steps"] = child("compared", large, small, runs, options.rounds, min(30, options.steps))
    return found


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps({"prepared": prepared, "trained": trained, "compared": compared}[sys.argv[2]](*sys.argv[3:])))
    else:
        main()
