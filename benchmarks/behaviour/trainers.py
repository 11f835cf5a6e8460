"""Cases of loaders, trainers, recipes and examples for `behaviour.py`."""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from core import (
    FAST,
    MOVES,
    ROOT,
    SIZES,
    Cases,
    Lines,
    balancer_arguments,
    by_two,
    digest,
    each,
    exit_with,
    facts_of,
    join_group,
    line,
    lines_of,
    parameters,
    reloaded,
    same,
    shown,
)
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import multidds
from multidds import Mixture
from multidds.rules import Scorer
from multidds.sampling import MixedDataset, mixed_loader


def in_folders(function: Callable[..., Lines], cases: Cases) -> Callable[[Path], Lines]:
    """Returns a section: the lines that a function returns for each case, in a folder of its own."""
    return lambda folder: {what: function(folder / what, **case) for what, case in cases.items()}


# ------------------------------------------------------------------------------------------ data


class Places(Dataset[Any]):
    """A dataset of examples with consecutive numbers, which identify them in a batch."""

    def __init__(self, first: int, size: int) -> None:
        self.first, self.size = first, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, place: int) -> Any:
        number = self.first + place
        x = torch.tensor([number % 7, number % 11], dtype=torch.float32)
        return {"number": number, "x": x, "labels": 0.1 * (number % 7) + (number % 5 if self.first == 0 else 0.0)}


class NoisyPlaces(Places):
    """The same with random numbers, as of a dataset that augments."""

    def __getitem__(self, place: int) -> Any:
        return super().__getitem__(place) | {"noise": torch.rand(())}


class Flow(IterableDataset[Any]):
    """A stream of the same examples that divides itself among workers and keeps its place."""

    def __init__(self, first: int, size: int) -> None:
        self.rows, self.num_shards = Places(first, size), 4
        self.place, self.start = 0, 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        places = range(0 if info is None else info.id, len(self.rows), 1 if info is None else info.num_workers)
        self.place, self.start = self.start, 0
        for place in places[self.place :]:
            self.place += 1
            yield self.rows[place]

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.start = state["place"]


def arrow(first: int, size: int) -> Any:
    """Returns a stream of the same examples by the library of Hugging Face."""
    from datasets import Dataset as ArrowDataset

    rows = [Places(first, size)[place] for place in range(size)]
    columns = {key: [row[key] for row in rows] for key in ("number", "labels")}
    made = ArrowDataset.from_dict({**columns, "x": [row["x"].tolist() for row in rows]})
    return made.with_format("torch").to_iterable_dataset(num_shards=2)


def datasets(kind: Callable[[int, int], Any] = Places) -> dict[str, Any]:
    return {name: kind(1_000_000 * i, size) for i, (name, size) in enumerate(SIZES.items())}


def loader_line(workers: int) -> str:
    """Returns a line of the batches of a `mixed_loader`, resumed in the middle."""
    mixture = Mixture.proportional(SIZES)
    make = partial(mixed_loader, datasets(NoisyPlaces), batch_size=20, seed=1, num_workers=workers)
    loader, drawn = make(mixture), []
    for epoch in range(4):
        if epoch == 2:
            loader, mixture = reloaded(loader, mixture, make)
        for i, batch in enumerate(loader):
            drawn.append([batch["number"].tolist(), batch["noise"].tolist()])
            if i == 30:
                mixture.move(list(MOVES.values())[epoch % 2])
    return f"{line(drawn)}  of {len(drawn)}; {shown(loader.passes)}"


def mixed_dataset_line(kind: Callable[[int, int], Any], workers: int) -> str:
    """Returns a line of the batches that a DataLoader reads of a `MixedDataset`."""
    mixture = Mixture.proportional(SIZES)
    mixed = MixedDataset(datasets(kind), mixture, seed=1, batch_size=20)
    drawn = []
    for epoch in range(2):
        order = None
        if kind is Places:
            mixed.set_epoch(epoch)
            order = torch.randperm(len(mixed), generator=torch.Generator().manual_seed(epoch)).tolist()
        batches = DataLoader(mixed, 20, sampler=order, num_workers=workers)
        drawn += [batch["number"].tolist() for _, batch in zip(range(60), batches, strict=False)]
        mixture.move(MOVES[3_000])
    return f"{line(drawn)}  of {len(drawn)}"


LOADERS: Cases = {
    f"{what} as one, {workers} workers": {"kind": kind, "workers": workers}
    for what, kind in {"examples": Places, "streams": Flow, "streams of Hugging Face": arrow}.items()
    for workers in (0, 2)
}


def loaders_section(folder: Path) -> Lines:
    """Loaders of mixed batches, and datasets and streams as one, without a callback."""
    lines: Lines = {f"loader, {workers} workers": loader_line(workers) for workers in (0, 2)}
    return lines | each(mixed_dataset_line, LOADERS)(folder)


# ------------------------------------------------------------------------------------------ transformers, Lightning


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))

    def forward(self, x: Tensor, labels: Tensor | None = None, number: Any = None) -> dict[str, Tensor]:
        out = self.layers(x / 10)[:, 0]
        return {"loss": (out - labels.float()).square().mean(), "logits": out}


Run = tuple[Any, nn.Module, list[Any]]  # the callback, the model, and what the trainer has seen at every step


def trainer_lines(train: Callable[[Path | None], Run], checkpoint: Path | None) -> Lines:
    """Returns lines of a training by a trainer, and whether it continues in the same way from its checkpoint.

    train: trains from a checkpoint, or from the start.
    checkpoint: of the first training; None: it is not resumed.
    """
    callback, model, seen = train(None)
    updates = [facts_of(update) for update in callback.balancer.history]
    lines = lines_of(updates) | {"parameters": parameters(model), "seen": digest(seen)}
    if checkpoint is not None:
        callback, model, again = train(checkpoint)
        rest = [facts_of(update) for update in callback.balancer.history]
        whole = [updates[len(updates) - len(rest) :], lines["parameters"], seen[-len(again) :]]
        resumed = same(whole, [rest, parameters(model), again])
        lines["resumed"] = f"after {len(seen) - len(again)}: {resumed}"
    return lines


def watched(trainer: Any, key: str) -> Any:
    """Returns a class of trainers that keep one value of the inputs of every step, as `seen`."""

    class Watched(trainer):
        def training_step(self, model: nn.Module, inputs: Any, *rest: Any, **named: Any) -> Tensor:
            self.__dict__.setdefault("seen", []).append(inputs[key].tolist())
            return super().training_step(model, inputs, *rest, **named)

    return Watched


def trainer_arguments(folder: Path, steps: int, **more: Any) -> dict[str, Any]:
    """Returns arguments for trainers of transformers, TRL and sentence-transformers."""
    logs = {"report_to": [], "disable_tqdm": True, "logging_steps": 1}
    saves = {"output_dir": str(folder), "save_strategy": "steps", "save_steps": steps // 2}
    devices = {"use_cpu": True, "dataloader_pin_memory": False, "per_device_train_batch_size": 4}
    return {"max_steps": steps, "learning_rate": 1e-2, **logs, **saves, **devices, **more}


def by_trainer(folder: Path, length: int, data: Any = datasets, workers: int = 0, **choices: Any) -> Lines:
    """Returns lines of a Trainer of transformers; with workers over streams it is not resumed."""
    from transformers import PrinterCallback, Trainer, TrainingArguments

    from multidds.integrations.huggingface import BalanceCallback

    own = {"remove_unused_columns": False, "lr_scheduler_type": "constant", "logging_strategy": "no"}
    own |= {"per_device_train_batch_size": 20, "dataloader_num_workers": workers}
    settings = trainer_arguments(folder, length, **own)

    def train(resume: Path | None) -> Run:
        mixture = Mixture(Mixture.proportional(SIZES).probabilities)  # sizes only of datasets, which have a length
        mixed = MixedDataset(data(), mixture, seed=1)
        dev = {name: datasets()[name] for name in ("a", "b")}
        arguments = TrainingArguments(**settings)
        trainer = watched(Trainer, "number")(Net(), arguments, train_dataset=mixed, eval_dataset=dev)
        trainer.remove_callback(PrinterCallback)
        callback = BalanceCallback(trainer, batch_size=64, **balancer_arguments(**choices))
        trainer.add_callback(callback)
        trainer.train(resume_from_checkpoint=resume and str(resume))
        return callback, trainer.model, trainer.seen

    resumable = not workers or data is datasets
    return trainer_lines(train, folder / f"checkpoint-{length // 2}" if resumable else None)


TRAINERS: Cases = {
    "paper, 0 workers": {"length": 400, "every": 50, **FAST},
    "paper, 2 workers": {"length": 400, "every": 50, "workers": 2, **FAST},
    "default, by its budget": {"length": 300, "budget": 0.3},
    "default, 2 workers, groups": {"length": 300, "every": 40, "workers": 2, "groups": {"a": "one", "b": "one"}},
    "default, passes": {"length": 300, "every": 40, "passes": {"a": 20.0}},
}
STREAMS: dict[str, Callable[[], Any]] = {
    "streams": partial(datasets, Flow),
    "streams of Hugging Face": partial(datasets, arrow),
    "streams and examples": lambda: datasets() | {"b": datasets(Flow)["b"]},
}
STREAM_TRAINERS: Cases = {
    f"{kind}, {what}": {"length": 120, "data": data, "every": 20, **form}
    for kind, data in STREAMS.items()
    for what, form in {"paper": FAST, "default": {}, "default, 2 workers": {"workers": 2}}.items()
}


def by_lightning(folder: Path, length: int, workers: int = 0, **choices: Any) -> Lines:
    """Returns lines of a Trainer of Lightning."""
    from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything

    from multidds.integrations.lightning import BalanceCallback

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return self.net(batch["x"], batch["labels"])["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    class Watch(Callback):
        def __init__(self) -> None:
            self.seen: list[list[int]] = []

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            self.seen.append(batch["number"].tolist())

        def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:
            if trainer.global_step == length // 2:
                trainer.save_checkpoint(folder / "saved.ckpt")

    quiet = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    settings: dict[str, Any] = {"max_steps": length, "accelerator": "cpu", "default_root_dir": folder}
    settings |= dict.fromkeys(quiet, False)
    if dist.is_initialized():
        settings |= {"devices": 2, "strategy": "ddp"}

    def train(resume: Path | None) -> Run:
        seed_everything(0, verbose=False)
        mixture, watch = Mixture.proportional(SIZES), Watch()
        dev = {name: datasets()[name] for name in ("a", "b")}
        callback = BalanceCallback(mixture, dev=dev, batch_size=64, **balancer_arguments(**choices))
        trainer = Trainer(callbacks=[callback, watch], **settings)
        module = Module()
        loader = mixed_loader(datasets(), mixture, batch_size=20, seed=1, num_workers=workers)
        trainer.fit(module, loader, ckpt_path=resume, weights_only=False)
        return callback, module, watch.seen

    return trainer_lines(train, folder / "saved.ckpt")


LIGHTNING: Cases = {
    "paper, 0 workers": {"length": 400, "every": 50, **FAST},
    "paper, 2 workers": {"length": 400, "every": 50, "workers": 2, **FAST},
    "default, by its budget": {"length": 300, "budget": 0.3},
    "default, passes": {"length": 300, "every": 40, "passes": {"a": 20.0}},
    "default, 2 workers, bounds": {"length": 300, "every": 40, "workers": 2, "bounds": {"a": (0.2, 0.3)}},
}


# ------------------------------------------------------------------------------------------ TRL, sentence-transformers

FEW = {"a": 12, "b": 30, "c": 20}
VOCABULARY = [f"w{i}" for i in range(40)]
RANGES = {"a": (0, 40), "b": (10, 20), "c": (20, 40)}  # of the words of each dataset
FASTER = {"rule": Scorer(lr=2.0), "every": 2}


def texts(count: int, seed: int, low: int, high: int) -> list[str]:
    """Returns texts of three to eight words."""
    generator = torch.Generator().manual_seed(seed)

    def text() -> str:
        length = int(torch.randint(3, 9, (), generator=generator))
        return " ".join(VOCABULARY[i] for i in torch.randint(low, high, (length,), generator=generator))

    return [text() for _ in range(count)]


def columns(names: Sequence[str], sizes: Mapping[str, int], seed: int) -> dict[str, Any]:
    """Returns {dataset: rows of texts with these columns}."""
    from datasets import Dataset as ArrowDataset

    return {
        name: ArrowDataset.from_dict(
            {column: texts(size, 100 * number + i, *RANGES[name]) for i, column in enumerate(names)}
        )
        for number, (name, size) in enumerate(sizes.items(), start=seed)
    }


def word_tokenizer(specials: Sequence[str]) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: i for i, word in enumerate([*specials, *VOCABULARY])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def language_model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    specials = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1}
    more = {"max_position_embeddings": 64, "use_cache": False, "attention_dropout": 0.1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(VOCABULARY) + 3, **shape, **specials, **more))


def by_trl(folder: Path, kind: str, lora: bool = False, others: Any = None, more: Any = None, **choices: Any) -> Lines:
    """Returns lines of a trainer of TRL.

    kind: "text", "completions" or "preferences".
    lora: whether adapters are trained.
    others: {name: size} of dev sets that the trainer does not have.
    more: settings of the trainer.
    """
    from peft import LoraConfig
    from transformers import PreTrainedTokenizerFast, PrinterCallback
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    from multidds.integrations.trl import balance

    names = {"text": ["text"], "completions": ["prompt", "completion"], "preferences": ["prompt", "chosen", "rejected"]}
    train_sets, dev_sets = columns(names[kind], FEW, 1), columns(names[kind], {"a": 8, "b": 8}, 10)
    if others:
        choices["dev"] = columns(names[kind], others, 20)
    specials = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=word_tokenizer(list(specials.values())), **specials)
    settings = trainer_arguments(folder, 8, bf16=False, max_length=16, **(more or {}))
    given: dict[str, Any] = {"train_dataset": train_sets["a"], "eval_dataset": dev_sets, "processing_class": tokenizer}

    def train(resume: Path | None) -> Run:
        model = language_model()
        adapters = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.1) if lora else None
        if kind == "preferences":
            reference = None if lora else copy.deepcopy(model)
            trainer = DPOTrainer(model, reference, DPOConfig(**settings), **given, peft_config=adapters)
        else:
            trainer = SFTTrainer(model, SFTConfig(**settings), **given, peft_config=adapters)
        trainer.remove_callback(PrinterCallback)
        callback = balance(trainer, train_sets, seed=3, **balancer_arguments(**choices))
        trainer.train(resume_from_checkpoint=resume and str(resume))
        logged = [row["loss"] for row in trainer.state.log_history if "loss" in row]
        return callback, trainer.model, logged[4 if resume else 0 :]

    return trainer_lines(train, folder / "checkpoint-4")


PACKED, TWICE = {"packing": True, "eval_packing": False}, {"gradient_accumulation_steps": 2}
TRL: Cases = {
    "text, default": {"kind": "text", "every": 2},
    "packed text, paper": {"kind": "text", "more": {"packing": True}, **FASTER},
    "packed text, other dev sets, default": {"kind": "text", "more": PACKED, "every": 2, "others": {"a": 8, "c": 8}},
    "completions, default, low": {"kind": "completions", "more": TWICE, "every": 2, "priority": "low"},
    "completions, adapters, default": {"kind": "completions", "lora": True, "every": 2},
    "preferences, paper": {"kind": "preferences", **FASTER},
}


def by_sentence_trainer(folder: Path, more: Mapping[str, Any] | None = None, **choices: Any) -> Lines:
    """Returns lines of a trainer of sentence-transformers. more: its settings. choices: none: there is no balancer."""
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import Dense, Dropout, StaticEmbedding
    from transformers import PrinterCallback

    from multidds.integrations.sentence_transformers import BalanceCallback, mixed_batches

    def train(resume: Path | None) -> Run:
        torch.manual_seed(0)
        layers = [StaticEmbedding(word_tokenizer(["<unk>"]), embedding_dim=8), Dropout(0.2), Dense(8, 6)]
        model = SentenceTransformer(modules=layers, device="cpu")
        drawn = mixed_batches(Mixture.proportional(FEW), seed=1)
        settings = trainer_arguments(folder, 20, multi_dataset_batch_sampler=drawn, **(more or {}))
        trainer = watched(SentenceTransformerTrainer, "anchor_input_ids")(
            model,
            Arguments(**settings),
            train_dataset=columns(["anchor", "positive"], FEW, 1),
            eval_dataset=columns(["anchor", "positive"], {"a": 8, "b": 8}, 10),
            loss=MultipleNegativesRankingLoss(model),
        )
        trainer.remove_callback(PrinterCallback)
        callback = None
        if choices:
            callback = BalanceCallback(trainer, seed=5, **balancer_arguments(**choices))
            trainer.add_callback(callback)
        trainer.train(resume_from_checkpoint=resume and str(resume))
        return callback, trainer.model, trainer.seen

    if not choices:
        _, model, seen = train(None)
        return {"parameters": parameters(model), "seen": digest(seen)}
    return trainer_lines(train, folder / "checkpoint-10")


SENTENCES: Cases = {
    "without a balancer": {},
    "default": {"every": 2},
    "default, by its budget": {"budget": 3.0},
    "paper, no duplicates": {"more": {"batch_sampler": "no_duplicates"}, **FASTER},
    "paper, 2 workers": {"more": {"dataloader_num_workers": 2}, **FASTER},
}


# ------------------------------------------------------------------------------------------ two ranks


def one_rank_of_trainers(rank: int, folder: str) -> None:
    join_group(rank, folder)
    lines = {}
    for what, choices in (("default", {"every": 5}), ("paper", {"every": 10, **FAST})):
        run = Path(folder, what)
        lines[f"transformers, {what}"] = by_trainer(run / "trainer", 60, **choices)
        lines[f"lightning, {what}"] = by_lightning(run / "lightning", 60, **choices)
    exit_with(rank, folder, lines)


def trainer_ranks_section(folder: Path) -> Lines:
    """Trainers in two processes with gloo, resumed in the middle."""
    return by_two(one_rank_of_trainers, folder)


# ------------------------------------------------------------------------------------------ recipes and examples

TINY = ROOT / "recipes" / "tiny.toml"
METHODS = {
    "anchored": ["method=learned"],
    "anchored, low": ["method=learned", "priority=low", "probe_batches=2"],
    "cosines": ["method=multidds-s"],
    "moving averages": ["method=moving-average"],
    "schedule": ["method=static", "schedule=cooldown"],
}
LEARNED = ["method=dds", "every=2", "learn=0.9", "replay=2", "probe_tokens=100"]  # [examples]


def run_recipe(command: str, folder: Path, *options: str, processes: int = 1) -> None:
    """Runs a command of the smallest recipe in a folder."""
    torchrun = [str(Path(sys.executable).parent / "torchrun"), "--standalone", "--nproc-per-node", str(processes)]
    launcher = [sys.executable] if processes == 1 else torchrun
    called = [*launcher, "-m", "multidds", command, str(TINY), *options]
    source = Path(multidds.__file__).resolve().parent.parent  # in any folder, the same code
    environment = os.environ | {"PYTHONPATH": str(source)}
    done = subprocess.run(called, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{' '.join(called)}: {done.stderr[-3000:]}")


def recipe_lines(run: Path) -> Lines:
    """Returns lines of the records and of the last checkpoint of a run."""
    from safetensors.torch import load_file

    records = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    moments = [json.loads(line) for line in (run / "mixture.jsonl").read_text().splitlines()]
    of = {"update": [moment for moment in moments if moment["step"] and "mixture" in moment]}
    of |= {kind: [r for r in records if r["kind"] == kind] for kind in ("validation", "step", "examples")}
    facts = {
        "mixture": [r["mixture"] for r in of["update"]],
        "rewards": [r["reward"] for r in of["update"]],
        "noise": [r.get("noise", {}) for r in of["update"]],
        "signal": [r.get("signal") for r in of["update"]],
        "probe losses": [[r["step"], r["dev_loss"], r["train_loss"], r["dev_weight"]] for r in of["update"]],
        "dev losses": [r["dev_loss"] for r in of["validation"]],
        "seen": [[r["passes"], r["sentences"], r["tokens"], r["mixture"]] for r in of["validation"]],
        "losses": [r["loss"] for r in of["step"]],
        "doubted": [[r["weight"], r["histogram"], r["highest"], r["lowest"]] for r in of["examples"]],
    }
    newest = sorted((run / "checkpoints").glob("*.safetensors"))[-1]
    tensors = [v for k, v in sorted(load_file(newest).items()) if k.startswith(("model.", "optimizer."))]
    lines = {key: line(values) for key, values in facts.items()}
    if facts["doubted"]:
        lines["doubted"] = f"{digest(facts['doubted'])}  {shown(facts['doubted'][-1][0])}"
    return lines | {"parameters": digest(tensors), "how many": shown({kind: len(of[kind]) for kind in of})}


def recipes_section(folder: Path) -> Lines:
    """Short trainings of the smallest recipe, by commands."""
    import made_up_languages

    made_up_languages.write(folder / "data" / "made-up")
    run_recipe("prepare", folder)
    cases = [
        ("example", "cosines", False, 1),
        ("batch", "cosines", False, 1),
        ("batch", "moving averages", False, 1),
        ("example", "anchored", False, 1),
        ("batch", "anchored", False, 1),
        ("example", "anchored, low", False, 1),
        ("example", "schedule", False, 1),
        ("example", "anchored", True, 1),
        ("batch", "anchored", True, 1),
        ("example", "anchored", True, 2),
    ]
    lines = {}
    for mixing, method, learned, processes in cases:
        what = f"{mixing}, {method}" + ", doubts: learned" * learned + ", two processes" * (processes > 1)
        settings = [f"train.mixing={mixing}", "train.max_steps=40", "train.log_every=10", "mixture.every=5"]
        settings += [f"mixture.{setting}" for setting in METHODS[method]]
        settings += [f"examples.{setting}" for setting in LEARNED * learned]
        options = [word for setting in settings for word in ("--set", setting)]
        run_recipe("train", folder, "--folder", f"runs/{what}", *options, processes=processes)
        lines[what] = recipe_lines(folder / "runs" / what)
    return lines


def scripts_section(folder: Path) -> Lines:
    """Short trainings of two examples."""
    import huggingface_trainer
    import lightning_fit

    trainer, losses = huggingface_trainer.train(True, 60, str(folder / "trainer"))
    module, mixture = lightning_fit.fit(folder / "lightning", 60)
    learned = [losses, trainer.train_dataset.mixture.probabilities]
    return {
        "transformers": {"parameters": parameters(trainer.model), "mixture": line(learned)},
        "lightning": {"parameters": parameters(module), "mixture": line([mixture])},
    }


SECTIONS: dict[str, Callable[[Path], Lines]] = {
    "loaders": loaders_section,
    "trainer": in_folders(by_trainer, TRAINERS),
    "trainer-streams": in_folders(by_trainer, STREAM_TRAINERS),
    "lightning": in_folders(by_lightning, LIGHTNING),
    "trl": in_folders(by_trl, TRL),
    "sentence-transformers": in_folders(by_sentence_trainer, SENTENCES),
    "trainer-ranks": trainer_ranks_section,
    "recipes": recipes_section,
    "example-scripts": scripts_section,
}
