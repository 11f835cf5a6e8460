"""What a refactoring must not change, as digests: draws, mixtures, rewards, losses, parameters.

Run it with the code before and after (PYTHONPATH says which; the examples and recipes are those beside this file), and
compare the two outputs with `diff`. Draws are the same on every machine; parameters only on the same one.

    python benchmarks/behaviour.py > before.json
"""

import hashlib
import json
import logging
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "examples"))

from multidds import Balancer, Mixture, MixtureSampler, interleave
from multidds.rules import Scorer  # noqa: E402

SIZES = {"a": 37, "b": 410, "c": 1501}
MOVES = {3_000: {"a": 0.5, "b": 0.3, "c": 0.2}, 7_000: {"a": 0.1, "b": 0.1, "c": 0.8}}
DRAWS = 10_000


def digest(values: Iterable[Any]) -> str:
    hashed = hashlib.sha256()
    for value in values:
        hashed.update(value.detach().cpu().numpy().tobytes() if isinstance(value, Tensor) else repr(value).encode())
    return hashed.hexdigest()[:16]


def parameters(model: nn.Module) -> str:
    return digest(tensor for _, tensor in sorted(model.state_dict().items()))


class Places(Dataset[int]):
    """Each example is its own number, so that a batch says what was drawn."""

    def __init__(self, first: int, size: int) -> None:
        self.first, self.size = first, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, place: int) -> Any:
        number = self.first + place
        return {"number": number, "x": torch.tensor([number % 7, number % 11], dtype=torch.float32), "labels": 1.0}


def datasets() -> dict[str, Places]:
    return {name: Places(1_000_000 * i, size) for i, (name, size) in enumerate(SIZES.items())}


def resumed_draws(stream_of: Callable[[Mixture], Any], per_item: int, consumed: int) -> dict[str, str]:
    """Draws 1 to 10,000 with two moves, and 10,001 to 20,000 of another stream that has loaded the state."""
    digests = {}
    mixture = Mixture.proportional(SIZES)
    stream = stream_of(mixture)
    for part in ("first", "second"):
        if part == "second":
            state, moved = json.loads(json.dumps([stream.state_dict(), mixture.state_dict()]))
            mixture = Mixture.proportional(SIZES)
            mixture.load_state_dict(moved)
            stream = stream_of(mixture)
            stream.load_state_dict(state)
        drawn, items = [], iter(stream)
        for i in range(0, DRAWS, per_item):
            for at, probabilities in MOVES.items():
                if i <= at < i + per_item:
                    mixture.move(probabilities)
            drawn.append(next(items))
        digests[part] = digest(drawn)
        digests[f"{part}, counts"] = digest([stream.examples, stream.passes])
    if consumed:  # what a loader with workers would save
        stream.load_state_dict(stream.state_dict(consumed=consumed))
        items = iter(stream)
        digests["after rewinding"] = digest(next(items) for _ in range(500))
    return digests


def sampler_draws() -> dict[str, Any]:
    return {
        "indices": resumed_draws(lambda m: MixtureSampler(SIZES, m, seed=3), 1, 19_000),
        "batches": resumed_draws(lambda m: MixtureSampler(SIZES, m, batch_size=10, seed=3), 10, 1_900),
        "rank 1 of 3": resumed_draws(lambda m: MixtureSampler(SIZES, m, 10, 3, rank=1, world_size=3), 10, 1_950),
    }


def interleaved_draws() -> dict[str, Any]:
    def stream(mixture: Mixture, **ranks: int) -> Any:
        loaders = {name: [torch.tensor([i, i]) for i in range(size)] for name, size in SIZES.items()}
        return interleave(loaders, mixture, seed=5, **ranks)

    whole = resumed_draws(lambda m: stream(m), 1, 0)
    return {"whole": whole, "rank 1 of 3": resumed_draws(lambda m: stream(m, rank=1, world_size=3), 1, 0)}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))

    def forward(self, x: Tensor, labels: Tensor | None = None, number: Any = None) -> dict[str, Tensor]:
        out = self.layers(x / 10)[:, 0]
        return {"loss": (out - labels.float()).square().mean(), "logits": out}


def trainer_draws(workers: int, folder: Path) -> dict[str, str]:
    from transformers import PrinterCallback, Trainer, TrainingArguments

    from multidds.integrations.huggingface import BalanceCallback, MixedDataset

    digests: dict[str, str] = {}
    for part, steps, resume in (("first", 500, None), ("second", 1000, True)):
        seen: list[list[int]] = []

        class Watched(Trainer):
            def training_step(self, model: nn.Module, inputs: Any, *rest: Any, **named: Any) -> Tensor:
                seen.append(inputs["number"].tolist())  # noqa: B023
                return super().training_step(model, inputs, *rest, **named)

        args = TrainingArguments(
            str(folder), max_steps=steps, per_device_train_batch_size=20, save_steps=500, report_to=[], use_cpu=True,
            disable_tqdm=True, logging_strategy="no", dataloader_num_workers=workers, remove_unused_columns=False,
            learning_rate=1e-2, lr_scheduler_type="constant",
        )  # fmt: skip
        mixture = Mixture.proportional(SIZES)
        dev = {name: datasets()[name] for name in ("a", "b")}
        trainer = Watched(Net(), args, train_dataset=MixedDataset(datasets(), mixture, seed=1), eval_dataset=dev)
        trainer.remove_callback(PrinterCallback)
        options = {"reward": "multidds-s", "scorer": Scorer(lr=1.0)}
        trainer.add_callback(BalanceCallback(trainer, every=150, batch_size=64, **options))
        trainer.train(resume_from_checkpoint=resume)
        digests |= {part: digest(seen), f"{part}, mixture": digest([mixture.probabilities])}
        digests[f"{part}, parameters"] = parameters(trainer.model)
    return digests


def lightning_draws(workers: int, folder: Path) -> dict[str, str]:
    from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything

    from multidds.integrations.lightning import BalanceCallback, mixed_loader

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

    digests: dict[str, str] = {}
    for part, steps, resume in (("first", 500, None), ("second", 1000, folder / "saved.ckpt")):
        seed_everything(0, verbose=False)
        mixture, watch = Mixture.proportional(SIZES), Watch()
        dev = {name: datasets()[name] for name in ("a", "b")}
        options = {"reward": "multidds-s", "scorer": Scorer(lr=1.0)}
        callback = BalanceCallback(mixture, dev=dev, every=150, batch_size=64, **options)
        trainer = Trainer(
            max_steps=steps, callbacks=[callback, watch], accelerator="cpu", logger=False, enable_progress_bar=False,
            enable_model_summary=False, enable_checkpointing=False,
        )  # fmt: skip
        module = Module()
        loader = mixed_loader(datasets(), mixture, batch_size=20, seed=1, num_workers=workers)
        trainer.fit(module, loader, ckpt_path=resume)
        trainer.save_checkpoint(folder / "saved.ckpt")
        digests |= {part: digest(watch.seen), f"{part}, mixture": digest([mixture.probabilities])}
        digests[f"{part}, parameters"] = parameters(module)
    return digests


def balancers() -> dict[str, Any]:
    """Every reward, priority, rule and form of the paper on a small model: rewards and mixtures to the last bit."""
    digests = {}
    for reward in ("multidds", "multidds-s", "moving-average"):
        for options in (
            {}, {"step_ahead": 0.01}, {"priority": "low"}, {"sketch": "exact", "batches": 2}, {"sketch": 64},
            {"scorer": Scorer.authors()}, {"scorer": Scorer(rule="policy"), "mode": "eval"},
            {"step_ahead": 0.01, "sketch": 64},
        ):  # fmt: skip
            model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
            torch.manual_seed(1)
            for p in model.parameters():
                nn.init.normal_(p)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

            def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
                return (model(batch[0])[:, 0] - batch[1]).square().mean()

            generator = torch.Generator().manual_seed(2)
            data = {
                name: [(torch.randn(8, 3, generator=generator), torch.randn(8, generator=generator)) for _ in range(5)]
                for name in SIZES
            }
            mixture = Mixture.proportional(SIZES)
            sources = {"train": data, "dev": {name: data[name] for name in ("b", "c")}}
            balancer = Balancer(mixture, model, loss, every=3, reward=reward, seed=7, **sources, **options)
            found = []
            for name, batch in interleave(data, mixture, seed=1):
                loss(model, batch).backward()
                balancer.observe(name)
                optimizer.step()
                optimizer.zero_grad()
                if update := balancer.step():
                    found.append((update.step, update.mixture, update.rewards, update.dev_losses, update.train_losses))
                    if len(found) == 5:
                        break
            shown = {k: v if isinstance(v, (int, float, str)) else "scorer" for k, v in options.items()}
            digests[f"{reward} {shown} {getattr(options.get('scorer'), 'rule', '')}"] = [
                digest(found), parameters(model)
            ]  # fmt: skip
    return digests


def recipe(mixing: str, method: str, folder: Path) -> dict[str, str]:
    import made_up_languages
    from safetensors.torch import load_file

    made_up_languages.write(folder / "data" / "made-up")
    settings = [f"train.mixing={mixing}", "train.max_steps=60", "mixture.every=10", f"mixture.method={method}"]
    sets = [word for setting in settings for word in ("--set", setting)]
    for command in (["prepare"], ["train", "--run", "runs/a"]):
        full = [sys.executable, "-m", "multidds", command[0], str(ROOT / "recipes" / "tiny.toml"), *command[1:], *sets]
        subprocess.run(full, cwd=folder, check=True, capture_output=True)
    records = [json.loads(line) for line in (folder / "runs" / "a" / "records.jsonl").read_text().splitlines()]
    (newest,) = sorted((folder / "runs" / "a" / "checkpoints").glob("*.safetensors"))[-1:]
    tensors = {k: v for k, v in sorted(load_file(newest).items()) if k.startswith(("model.", "optimizer."))}
    updates = [record for record in records if record["kind"] == "update"]
    validations = [record for record in records if record["kind"] == "validation"]
    return {
        "updates": digest((r["step"], r["mixture"], r["reward"], r["dev_loss"], r["train_loss"]) for r in updates),
        "validations": digest((r["dev_loss"], r["passes"], r["sentences"], r["tokens"]) for r in validations),
        "losses": digest(record["loss"] for record in records if record["kind"] == "step"),
        "parameters": digest(tensors.values()),
        "how many": f"{len(updates)} updates, {len(validations)} validations",
    }


def example_trainings() -> dict[str, Any]:
    import huggingface_trainer
    import lightning_fit

    with tempfile.TemporaryDirectory() as folder:
        trainer, losses = huggingface_trainer.train(True, 60, folder)
        mixture = trainer.train_dataset.mixture.probabilities
        hugging_face = [parameters(trainer.model), digest([losses, mixture])]
    with tempfile.TemporaryDirectory() as folder:
        module, mixture = lightning_fit.fit(Path(folder), 60)
    return {"huggingface_trainer": hugging_face, "lightning_fit": [parameters(module), digest([mixture])]}


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    found: dict[str, Any] = {"sampler": sampler_draws(), "interleave": interleaved_draws(), "balancers": balancers()}
    for workers in (0, 2):
        with tempfile.TemporaryDirectory() as folder:
            found[f"Trainer, {workers} workers"] = trainer_draws(workers, Path(folder))
        with tempfile.TemporaryDirectory() as folder:
            found[f"Lightning, {workers} workers"] = lightning_draws(workers, Path(folder))
    for mixing, method in (("example", "multidds-s"), ("batch", "multidds-s"), ("batch", "moving-average")):
        with tempfile.TemporaryDirectory() as folder:
            found[f"tiny recipe, {mixing}, {method}"] = recipe(mixing, method, Path(folder))
    found["examples"] = example_trainings()
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
