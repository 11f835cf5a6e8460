"""The commands around training: encoding against sentencepiece, translation against CTranslate2, start-up.

Encoding: the whole encoding phase of `prepare` (hashing, reading, tokens, dropping, shards) against `encode` of
sentencepiece on the same lines with the same models in as many processes. Translation: what `multidds translate` does
after loading (tokens, translation, text) against CTranslate2 alone on tokens made before, same batch and threads.
Measurements are interleaved, and a figure is the median of the ratios. Start-up: seconds of CPU and wall time of whole
processes. Text that is too short to measure is repeated.

    python benchmarks/front.py [RECIPE] [--run RUN] [--tiny] [--json FILE]

Without a recipe and a run, those of the made-up languages are prepared and trained in a temporary folder.
"""

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from multidds.nmt.config.config import Config, load_config, read_run
from multidds.nmt.evaluation import Translator, export
from multidds.nmt.evaluation.export import longest_translation
from multidds.nmt.evaluation.translate import BATCH_TOKENS
from multidds.nmt.prepare import Prepared
from multidds.nmt.prepare.encode import ShardEncoder
from multidds.nmt.prepare.resumable_tasks import start_worker
from multidds.nmt.prepare.shard_plan import Shard, shards_of
from multidds.nmt.prepare.text_files import read_pairs, scan_inputs
from multidds.nmt.prepare.vocabulary import load_model, model_of

ROOT = Path(__file__).resolve().parent.parent


def seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def ratios(ours: Callable[[], object], theirs: Callable[[], object], repeat: int) -> tuple[float, float, float]:
    """Median seconds of both, and the median of theirs / ours: our speed as a part of theirs."""
    ours()  # warm up
    theirs()
    measured = [(seconds(ours), seconds(theirs)) for _ in range(repeat)]
    a, b = (statistics.median(column) for column in zip(*measured, strict=True))
    return a, b, statistics.median(y / x for x, y in measured)


# ---------------------------------------------------------------------------------------------- encoding


def repeated(config: Config, folder: Path, lines: int) -> Config:
    """The training text of a config in plain files, over and over up to about this many lines, for the same pairs."""
    texts = {pair: list(read_pairs(config.data, pair, "train")) for pair in config.data.pairs}
    times = max(1, lines // sum(map(len, texts.values())))
    for pair, rows in texts.items():
        for column, language in enumerate((pair.source, pair.target)):
            text = "".join(str(row[column]) + "\n" for row in rows)
            (folder / f"{pair.name}.{language}").write_text(text * times, encoding="utf-8")
    files = str(folder / "{pair}.{lang}")
    data = config.data.model_copy(update={"train": files, "dev": files, "format": "text"})
    return config.model_copy(update={"data": data})


@cache
def encoder_of(table: str, folder: Path) -> ShardEncoder:
    return ShardEncoder(Config.model_validate_json(table), folder)


def our_encoding(table: str, shard: Shard, folder: Path) -> float:
    began = time.process_time()
    encoder_of(table, folder).encode(shard)
    return time.process_time() - began


def encode_phase(pool: ProcessPoolExecutor, config: Config, folder: Path) -> float:
    """Returns the CPU seconds of all processes; the pass that hashes the text is one of this."""
    began = time.process_time()
    table = config.model_dump_json()
    shards = [shard for shard in shards_of(config, scan_inputs(config)) if shard.split == "train"]
    futures = [pool.submit(our_encoding, table, shard, folder) for shard in shards]
    spent = sum(future.result() for future in futures)
    return time.process_time() - began + spent


@cache
def texts_of(table: str, folder: Path) -> list[tuple[Any, list[str]]]:
    """(sentencepiece model, lines) of every side of every pair: once per process, before the clock runs."""
    config = Config.model_validate_json(table)
    result: list[tuple[Any, list[str]]] = []
    for pair in config.data.pairs:
        rows = list(read_pairs(config.data, pair, "train"))
        for column, language in enumerate((pair.source, pair.target)):
            result.append((load_model(folder, model_of(config, language)), [str(row[column]) for row in rows]))
    return result


def their_encoding(table: str, folder: Path) -> tuple[int, float, float]:
    """(lines, seconds, CPU seconds). Of new strings, as a reader makes them: old ones keep their UTF-8."""
    taken = cpu = 0.0
    texts = texts_of(table, folder)
    for model, lines in texts:
        new = [(line + " ")[:-1] for line in lines]
        began = time.process_time()
        taken += seconds(lambda model=model, new=new: model.encode(new, out_type=int, num_threads=1))
        cpu += time.process_time() - began
    return sum(len(lines) for _, lines in texts), taken, cpu


def encoding(config: Config, lines: int, processes: list[int], repeat: int) -> list[dict[str, Any]]:
    models = config.data.folder
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = repeated(config, folder, lines)
        table = config.model_dump_json()
        for path in [*models.glob("*.spm.model"), models / "vocabulary.json"]:
            (folder / path.name).write_bytes(path.read_bytes())
        spawn = multiprocessing.get_context("spawn")
        for workers in processes:
            with ProcessPoolExecutor(workers, mp_context=spawn, initializer=start_worker) as pool:
                measured = []
                for _ in range(repeat + 1):
                    began = time.perf_counter()
                    cpu = encode_phase(pool, config, folder)
                    ours = time.perf_counter() - began
                    # Theirs: every process encodes everything, all at the same time.
                    futures = [pool.submit(their_encoding, table, folder) for _ in range(workers)]
                    theirs = [future.result() for future in futures]
                    summed = sum(count / taken for count, taken, _ in theirs)
                    work = statistics.fmean(cpu for _, _, cpu in theirs) / cpu
                    measured.append((theirs[0][0] / ours, summed, work))
            speeds = measured[1:]  # the first warms up
            rows.append(
                {
                    "processes": workers,
                    "lines": theirs[0][0],
                    "lines/s": round(statistics.median(a for a, _, _ in speeds)),
                    "sentencepiece lines/s": round(statistics.median(b for _, b, _ in speeds)),
                    "ratio": statistics.median(a / b for a, b, _ in speeds),
                    "ratio of CPU time": statistics.median(work for _, _, work in speeds),
                }
            )
    return rows


# ---------------------------------------------------------------------------------------------- translation


def translation(run: Path, sentences: int, threads: list[int], repeat: int) -> list[dict[str, Any]]:
    config, _ = read_run(run)
    pair = config.data.pairs[-1]
    prepared = Prepared(config)
    lines = list(islice(cycle(line for line in prepared.test_lines(pair.name, "source") if line.strip()), sentences))
    rows = []
    for count in threads:
        translator = Translator(run, count)
        tokens = [
            part for line in lines for part in translator._parts(translator.tokens(line, pair.source, pair.target))
        ]
        settings = {
            "beam_size": config.translate.beam,
            "length_penalty": config.translate.length_penalty,
            "max_batch_size": BATCH_TOKENS,
            "batch_type": "tokens",
            "max_input_length": 0,
            "max_decoding_length": longest_translation(config),
            "disable_unk": True,
        }
        a, b, ratio = ratios(
            lambda t=translator: list(t.translate(lines, pair.source, pair.target)),
            lambda t=translator, k=tokens, s=settings: t.model.translate_batch(k, **s),
            repeat,
        )
        rows.append(
            {
                "threads": count,
                "sentences": len(lines),
                "sentences/s": len(lines) / a,
                "CTranslate2 sentences/s": len(lines) / b,
                "ratio": ratio,
            }
        )
    return rows


# ---------------------------------------------------------------------------------------------- start-up


def starting(run: Path, repeat: int) -> list[dict[str, Any]]:
    config, _ = read_run(run)
    pair = config.data.pairs[-1]
    line = Prepared(config).test_lines(pair.name, "source")[0]
    export(run)
    commands = {
        "python -c pass": ["-c", "pass"],
        "multidds --help": ["-m", "multidds", "--help"],
        "multidds translate, one line": [
            *("-m", "multidds", "translate", str(run)),
            *("--from", pair.source, "--to", pair.target),
        ],
    }
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(repeat):
        for name, command in commands.items():
            before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            subprocess.run([sys.executable, *command], input=line, text=True, capture_output=True, check=True)
            wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
            figures[name].append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall))
    return [
        {
            "command": name,
            "CPU seconds": statistics.median(cpu for cpu, _ in measured),
            "wall seconds": statistics.median(wall for _, wall in measured),
        }
        for name, measured in figures.items()
    ]


# ---------------------------------------------------------------------------------------------- all


def made_up(folder: Path, steps: int) -> tuple[Path, Path]:
    """(recipe, run) of the made-up languages after some steps, in a folder that becomes the current one: paths of the
    recipe are relative."""
    os.chdir(folder)
    recipe = ROOT / "recipes" / "tiny.toml"
    subprocess.run([sys.executable, ROOT / "examples" / "made_up_languages.py", "data/made-up"], check=True)
    for command in (["prepare", recipe], ["train", recipe, "--run", "run", "--set", f"train.max_steps={steps}"]):
        subprocess.run([sys.executable, "-m", "multidds", *command], check=True, stdout=subprocess.DEVNULL)
    return recipe, Path("run")


def show(title: str, rows: list[dict[str, Any]]) -> None:
    print(title)
    cells = [[f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(list(rows[0]), *cells, strict=True)]
    for row in [list(rows[0]), *cells]:
        print("  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)))
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "recipe", type=Path, nargs="?", help="a prepared recipe, for the encoding; by default the run's"
    )
    parser.add_argument("--run", type=Path, help="a trained run, for translation and start-up")
    parser.add_argument("--lines", type=int, default=100_000, help="training pairs to encode, at least about this many")
    parser.add_argument("--sentences", type=int, default=300, help="to translate")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="a few lines, once: to see whether it runs")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    args = parser.parse_args()
    if args.tiny:
        args.lines, args.sentences, args.repeat = 100, 3, 1
    output = args.json.resolve() if args.json else None
    cores = [1] if args.tiny else sorted({1, min(2, os.cpu_count() or 1), os.cpu_count() or 1})
    with tempfile.TemporaryDirectory() as name:
        recipe, run = args.recipe, args.run
        if recipe is None and run is None:
            recipe, run = made_up(Path(name), 4 if args.tiny else 200)
        figures: dict[str, list[dict[str, Any]]] = {}
        config = load_config(recipe) if recipe else read_run(run)[0]
        figures["encoding"] = encoding(config, args.lines, cores, args.repeat)
        show("prepare against sentencepiece", figures["encoding"])
        if run is not None:
            figures["translation"] = translation(run, args.sentences, cores, args.repeat)
            show("translate against CTranslate2", figures["translation"])
            figures["start-up"] = starting(run, args.repeat)
            show("start-up", figures["start-up"])
        os.chdir(ROOT)
    if output:
        output.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
