"""Two trainings of a user: fine-tuning with TRL, and sentence embeddings with sentence-transformers.

trl-goal: a small causal model. Prompts and completions are made from text that every machine has. There are six
    datasets and one goal, the purpose of a function of torch, with 100 examples of its own. The score is the test
    loss of the completions, in nats per character.
embeddings-noise: word embeddings that find the English message for one in another language (the demo's corpus). There
    are six unequal datasets. The pairs of the largest have nothing to do with each other, and it has no dev set. The
    score is the share of test messages whose translation is not the nearest.

A run takes at most a minute of one core. Every run becomes a line of results.jsonl. Existing runs are skipped.

    python experiments/study/trainers.py --text data/catalogues
"""

import argparse
import ast
import math
import os
import random
import sysconfig
import tempfile
import time
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from statistics import fmean
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing comes from a hub

import datasets
import torch
from domains import RESULTS, versions
from domains_text import DOMAINS
from results_file import Key, add_run, read_runs
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback, set_seed
from trl import SFTConfig, SFTTrainer

from multidds import Mixture
from multidds.integrations.sentence_transformers import BalanceCallback, mixed_batches
from multidds.integrations.trl import balance

METHODS = ("learned", "proportional", "temperature-3", "temperature-5", "uniform", "planned", "by-hand-1", "by-hand-2")
TEMPERATURES = {"temperature-3": 3.0, "temperature-5": 5.0, "uniform": math.inf}
QUIET: dict[str, Any] = {
    "save_strategy": "no",
    "logging_strategy": "no",
    "report_to": [],
    "use_cpu": True,
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
}


@dataclass(frozen=True)
class Result:
    """What a training ended with."""

    found: dict[str, dict[str, dict[str, float]]]  # {split: {dataset: {measure: score}}}
    mixture: dict[str, float]
    sizes: dict[str, int]
    updates: int


def start_of(method: str, sizes: dict[str, int], draws: int, by_hand: list[dict[str, float]]) -> Mixture:
    """Returns the mixture that a run begins with."""
    if method == "planned":
        return Mixture.planned(sizes, draws=draws)
    if method.startswith("by-hand"):
        shares = by_hand[int(method[-1]) - 1]
        return Mixture({name: shares.get(name, 0.0) for name in sizes}, sizes)
    return Mixture.temperature(sizes, TEMPERATURES.get(method, 1.0))


def updates_of(callback: Any) -> int:
    """Returns the number of updates that a callback made; 0 if there is none, or if it did not train."""
    return len(callback.balancer.history) if callback is not None and callback.balancer is not None else 0


# ------------------------------------------------------------------------------------------------------ TRL

TRL_SIZES = {"hashes": 4000, "characters": 3000, "code": 2000, "stdlib": 1200, "manual": 300, "torch": 100}
TRL_BY_HAND = [
    {"torch": 0.25, "stdlib": 0.6, "manual": 0.15},
    {"torch": 0.15, "stdlib": 0.55, "manual": 0.15, "code": 0.15},
]
GOAL, HELD_OUT, STEPS, BATCH, LENGTH = "torch", 150, 400, 16, 160
Example = tuple[str, str]  # prompt, completion


def _described(root: Path, pattern: str, asks: str) -> Iterator[Example]:
    """Yields the signature of a documented function, and the first line of its docstring."""
    for path in sorted(root.glob(pattern)):
        try:
            tree = ast.parse(path.read_bytes())
        except SyntaxError:  # of a newer Python, or broken on purpose
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and (text := ast.get_docstring(node)):
                yield f"{asks} {node.name}({ast.unparse(node.args)})?", " " + text.splitlines()[0]


def _manual() -> Iterator[Example]:
    for topic, text in topics.items():
        for paragraph in text.split("\n\n")[1:]:
            words = " ".join(paragraph.split())
            yield f"Python's manual on {topic}?", " " + words.partition(". ")[0]


def _code() -> Iterator[Example]:
    for _, read in sorted(DOMAINS["python"]()):
        lines = [line for line in read().splitlines() if line.strip()]
        for i in range(0, len(lines) - 3, 12):
            yield f"Go on: {lines[i].strip()}", "\n" + "\n".join(lines[i + 1 : i + 3])


def _hashes() -> Iterator[Example]:
    for _, read in sorted(DOMAINS["hashes"]()):
        for line in read().splitlines():
            name, _, rest = line.partition(",")
            yield f"The hash of {Path(name).name}?", " " + rest


def _characters() -> Iterator[Example]:
    for code in range(0x20, 0x3000):
        name = unicodedata.name(chr(code), "")
        if name:
            yield f"Which character is U+{code:04X}?", f" {name.lower()}, {unicodedata.category(chr(code))}"


SOURCES: dict[str, Callable[[], Iterator[Example]]] = {
    "hashes": _hashes,
    "characters": _characters,
    "code": _code,
    "stdlib": lambda: _described(Path(sysconfig.get_path("stdlib")), "[a-z]*.py", "What does Python do in"),
    "manual": _manual,
    "torch": lambda: _described(Path(torch.__file__).parent, "nn/**/*.py", "What does torch do in"),
}


def instructions() -> dict[str, dict[str, list[Example]]]:
    """Returns {dataset: {split: examples}}: distinct, of a fixed random order, the splits of distinct completions."""
    found = {}
    for name, source in SOURCES.items():
        distinct = {
            completion: (prompt[:70], completion[:80]) for prompt, completion in source() if len(completion) > 12
        }
        examples = [pair for _, pair in sorted(distinct.items())]
        random.Random(name).shuffle(examples)
        held = HELD_OUT if name == GOAL else 0
        found[name] = {"dev": examples[:held], "test": examples[held : 2 * held], "train": examples[2 * held :]}
        found[name]["train"] = found[name]["train"][: TRL_SIZES[name]]
        assert len(found[name]["train"]) == TRL_SIZES[name], (name, len(found[name]["train"]))
    return found


def columns(examples: list[Example]) -> datasets.Dataset:
    return datasets.Dataset.from_dict(
        dict(zip(("prompt", "completion"), map(list, zip(*examples, strict=True)), strict=True))
    )


def characters() -> PreTrainedTokenizerFast:
    """Returns a tokenizer with one token per character, by its number below 128."""
    known = {chr(i): i for i in range(2, 128)} | {"<pad>": 0, "<eos>": 1}
    made = Tokenizer(models.WordLevel(known, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="?")


def small_llama() -> tuple[Any, Any]:
    """Returns a causal model of 0.2 million parameters, and its tokenizer."""
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=3,
        max_position_embeddings=LENGTH,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config), characters()


def fine_tune(
    method: str, seed: int, steps: int, folder: str, load: Callable[[], tuple[Any, Any]] = small_llama, **changes: Any
) -> Result:
    """Runs a training.

    method: one of METHODS, or "untrained".
    load: returns the model and its tokenizer.
    changes: of the arguments of `SFTConfig` below.
    """
    set_seed(seed)
    text = instructions()
    train_sets = {name: columns(splits["train"]) for name, splits in text.items()}
    model, tokenizer = load()
    arguments: dict[str, Any] = {
        "max_steps": steps,
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": BATCH,
        "learning_rate": 4e-3,
        "warmup_steps": 30,
        "lr_scheduler_type": "cosine",
        "max_length": LENGTH,
        "completion_only_loss": True,
        "bf16": False,
        "seed": seed,
        "gradient_checkpointing": False,
    }
    args = SFTConfig(folder, **(arguments | QUIET | changes))
    trainer = SFTTrainer(
        model,
        args,
        train_dataset=train_sets[GOAL],
        eval_dataset=columns(text[GOAL]["dev"]),  # one goal: one dev set, as it is
        processing_class=tokenizer,
    )
    trainer.remove_callback(PrinterCallback)
    draws = steps * args.per_device_train_batch_size * args.gradient_accumulation_steps
    mixture = start_of(method, TRL_SIZES, draws, TRL_BY_HAND)
    callback = balance(trainer, train_sets, mixture, seed=seed)
    if method != "learned":
        trainer.remove_callback(callback)
    if method != "untrained":
        trainer.train()
    splits = {split: columns(text[GOAL][split]) for split in ("dev", "test")}
    metrics = trainer.evaluate(splits)
    found = {s: {GOAL: {"loss": metrics[f"eval_{s}_loss"]}} for s in splits}
    return Result(found, mixture.probabilities, TRL_SIZES, updates_of(callback))


# ----------------------------------------------------------------------------------------- sentence-transformers

NOISE = "por"
ST_BY_HAND = [
    {"tur": 0.25, "rus": 0.25, "glg": 0.2, "bel": 0.15, "aze": 0.15},
    {"tur": 0.2, "rus": 0.2, "glg": 0.2, "bel": 0.2, "aze": 0.2},
]
ST_STEPS, ST_BATCH = 600, 64
LANGUAGES = ("por", "tur", "rus", "glg", "bel", "aze")


def messages(text: Path, language: str, split: str) -> datasets.Dataset:
    sides = [
        (text / f"{language}-eng" / f"{split}.{side}").read_text(encoding="utf-8").splitlines()
        for side in (language, "eng")
    ]
    if language == NOISE:
        random.Random(language).shuffle(sides[1])
    return datasets.Dataset.from_dict({"anchor": sides[0], "positive": sides[1]})


def not_nearest(model: SentenceTransformer, pairs: datasets.Dataset) -> float:
    """Returns the share of anchors whose positive is not the nearest of all positives."""
    options = {"convert_to_tensor": True, "normalize_embeddings": True, "show_progress_bar": False}
    anchors, positives = model.encode(pairs["anchor"][:], **options), model.encode(pairs["positive"][:], **options)
    return 1 - (anchors @ positives.T).argmax(dim=1).eq(torch.arange(len(pairs))).float().mean().item()


def word_embeddings(train_sets: dict[str, datasets.Dataset]) -> SentenceTransformer:
    """Returns a bag of 8000 subwords of these texts."""
    tokenizer = Tokenizer(models.BPE(unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    lines = (line for pairs in train_sets.values() for column in ("anchor", "positive") for line in pairs[column])
    tokenizer.train_from_iterator(
        lines, trainers.BpeTrainer(vocab_size=8000, special_tokens=["?"], show_progress=False)
    )
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=128)], device="cpu")


def embed(
    method: str,
    seed: int,
    steps: int,
    folder: str,
    text: Path,
    load: Callable[[dict[str, datasets.Dataset]], SentenceTransformer] = word_embeddings,
    **changes: Any,
) -> Result:
    """Runs a training; the arguments are those of `fine_tune`, and the corpus of program messages."""
    set_seed(seed)
    train_sets = {language: messages(text, language, "train") for language in LANGUAGES}
    wanted = [language for language in LANGUAGES if language != NOISE]
    held = {split: {language: messages(text, language, split) for language in wanted} for split in ("dev", "test")}
    sizes = {language: len(pairs) for language, pairs in train_sets.items()}
    model = load(train_sets)
    batch = changes.get("per_device_train_batch_size", ST_BATCH) * changes.get("gradient_accumulation_steps", 1)
    mixture = start_of(method, sizes, steps * batch, ST_BY_HAND)
    arguments: dict[str, Any] = {
        "max_steps": steps,
        "per_device_train_batch_size": ST_BATCH,
        "learning_rate": 0.05,
        "warmup_steps": 50,
        "batch_sampler": "no_duplicates",
        "multi_dataset_batch_sampler": mixed_batches(mixture, seed=seed),
        "seed": seed,
    }
    args = SentenceTransformerTrainingArguments(folder, **(arguments | QUIET | changes))
    trainer = SentenceTransformerTrainer(
        model, args, train_dataset=train_sets, eval_dataset=held["dev"], loss=MultipleNegativesRankingLoss(model)
    )
    trainer.remove_callback(PrinterCallback)
    callback = BalanceCallback(trainer) if method == "learned" else None
    if callback is not None:
        trainer.add_callback(callback)
    if method != "untrained":
        trainer.train()
    found = {
        split: {language: {"error": not_nearest(model, pairs)} for language, pairs in sets.items()}
        for split, sets in held.items()
    }
    return Result(found, mixture.probabilities, sizes, updates_of(callback))


def run(path: Path, key: Key, steps: int, train: Callable[..., Result], *rest: Any, **changes: Any) -> None:
    """Adds a run to a file of results, unless it is there: train(method, seed, steps, folder, *rest, **changes)."""
    if key in read_runs(path):
        return
    (regime, method, seed), began = key, time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        result = train(method, seed, steps, folder, *rest, **changes)
    config = {"regime": regime, "method": method, "seed": seed, "steps": steps}
    facts = {"config": config, "sizes": result.sizes, "versions": versions(), "mixture": result.mixture}
    facts |= {"seconds": {"all": time.process_time() - began}, "update_count": result.updates, **result.found}
    add_run(path, key, facts)
    test = fmean(score for one in result.found["test"].values() for score in one.values())
    seconds = f"{facts['seconds']['all']:.0f} s"
    print(f"{regime} {method} {seed}: test {test:.4f}, {result.updates} updates, {seconds}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file to add lines to")
    parser.add_argument("--text", type=Path, help="the corpus of program messages; without it only trl-goal")
    parser.add_argument("--method", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seed", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, help="fewer, to check that it runs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    for seed in given.seed:
        for method in given.method:
            run(given.results, ("trl-goal", method, seed), given.steps or STEPS, fine_tune)
            if given.text:
                run(given.results, ("embeddings-noise", method, seed), given.steps or ST_STEPS, embed, given.text)


if __name__ == "__main__":
    main()
