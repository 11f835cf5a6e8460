"""The snippet of each trainer's section, run as it stands, with nothing around it but what its reader has already.

`python tests/support/snippets.py hf` runs one in an environment that has only that extra (`make nightly
PART=extras`), so each function imports what its extra brings and no more.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

ROOT = Path(__file__).parents[2]
SIZES = {"code": 24, "manual": 60, "tables": 120}
ENOUGH = 500  # steps, for an update within the default budget


def blocks(page: Path, language: str, section: str = "") -> list[str]:
    """The code blocks of a page or of one section, without the indentation of a list around them."""
    text = page.read_text(encoding="utf-8")
    if section:
        (text,) = re.findall(rf"(?ms)^## {section}$(.*?)(?=^## |\Z)", text)
    found = re.findall(rf"(?ms)^( *)```{language}\n(.*?)^\1```", text)
    return [re.sub(f"(?m)^{indent}", "", block) for indent, block in found]


def the_block(page: str, section: str = "") -> str:
    (code,) = blocks(ROOT / "docs" / page, "python", section)
    return code


class Rows(Dataset[Any]):
    """Made-up examples of a classification task."""

    def __init__(self, size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(size, 4, generator=generator)
        self.labels = (self.x.sum(1) > 0).long()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[i], "labels": self.labels[i]}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def rows() -> dict[str, Any]:
    return {
        "train_sets": {name: Rows(size, seed) for seed, (name, size) in enumerate(SIZES.items())},
        "dev_sets": {name: Rows(16, seed) for seed, name in enumerate(("code", "manual"), start=10)},
    }


def settings(folder: str, steps: int) -> dict[str, Any]:
    """Of any kind of TrainingArguments: small, quiet, on the CPU."""
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "dataloader_pin_memory": False}
    return {"output_dir": folder, "max_steps": steps, "per_device_train_batch_size": 4, "save_strategy": "no", **quiet}


def check(trainer: Any, steps: int) -> None:
    assert trainer.state.global_step == steps
    updated = any("mixture/code" in log and log["step"] > 0 for log in trainer.state.log_history)
    assert updated == (steps >= ENOUGH), "the updates are not those of the default budget"


def hf(folder: str, steps: int = ENOUGH) -> None:
    from transformers import Trainer, TrainingArguments

    args = TrainingArguments(**settings(folder, steps))
    names = {"Trainer": Trainer, "model": Classifier(), "args": args, "collator": None, **rows()}
    exec(the_block("integrations.md", "Hugging Face Trainer"), names)
    check(names["trainer"], steps)


def words(count: int = 40) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: i for i, word in enumerate(["<pad>", "<eos>", *(f"w{i}" for i in range(count))])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def sentences(count: int, seed: int) -> list[str]:
    drawn = torch.randint(0, 40, (count, 6), generator=torch.Generator().manual_seed(seed))
    return [" ".join(f"w{i}" for i in row) for row in drawn.tolist()]


def trl(folder: str, steps: int = ENOUGH) -> None:
    import datasets
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    datasets.disable_progress_bars()
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    special = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1}
    config = LlamaConfig(vocab_size=42, max_position_embeddings=64, use_cache=False, **shape, **special)
    texts = {name: {"text": sentences(size, seed)} for seed, (name, size) in enumerate(SIZES.items())}
    sets = {name: datasets.Dataset.from_dict(columns) for name, columns in texts.items()}
    names = {
        "SFTTrainer": SFTTrainer,
        "model": LlamaForCausalLM(config),
        "args": SFTConfig(**settings(folder, steps), bf16=False, max_length=32),
        "train_sets": sets,
        "dev_sets": {name: sets[name].select(range(8)) for name in ("code", "manual")},
        "tokenizer": PreTrainedTokenizerFast(tokenizer_object=words(), pad_token="<pad>", eos_token="<eos>"),
    }
    exec(the_block("integrations.md", "TRL"), names)
    check(names["trainer"], steps)


def st(folder: str, steps: int = ENOUGH) -> None:
    from functools import partial

    import datasets
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    datasets.disable_progress_bars()
    model = SentenceTransformer(modules=[StaticEmbedding(words(), embedding_dim=8)], device="cpu")
    pairs = {
        name: {"anchor": sentences(size, seed), "positive": sentences(size, 100 + seed)}
        for seed, (name, size) in enumerate(SIZES.items())
    }
    sets = {name: datasets.Dataset.from_dict(columns) for name, columns in pairs.items()}
    quiet = {key: value for key, value in settings(folder, steps).items() if key not in ("output_dir", "max_steps")}
    names = {
        "SentenceTransformerTrainingArguments": partial(SentenceTransformerTrainingArguments, **quiet),
        "SentenceTransformerTrainer": SentenceTransformerTrainer,
        "model": model,
        "loss": MultipleNegativesRankingLoss(model),
        "folder": folder,
        "steps": steps,
        "train_sets": sets,
        "dev_sets": {name: sets[name].select(range(8)) for name in ("code", "manual")},
    }
    exec(the_block("integrations.md", "sentence-transformers"), names)
    check(names["trainer"], steps)


def lightning(folder: str) -> None:
    from functools import partial

    from lightning import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Classifier()

        def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = partial(Trainer, **quiet, default_root_dir=folder, enable_checkpointing=False)
    names = {"Trainer": trainer, "module": Module(), **rows()}
    exec(the_block("integrations.md", "Lightning"), names)
    assert names["mixture"].version >= 10  # ten updates, and the plan if it is another mixture than the prior


def balanced(folder: str) -> dict[str, Any]:
    """A balancer with ten updates, and a folder."""
    from multidds import Balancer, Mixture, batches_of

    sets = rows()
    given = {name: {n: batches_of(d, 8) for n, d in sets[f"{name}_sets"].items()} for name in ("train", "dev")}
    mixture = Mixture.proportional(SIZES)
    balancer = Balancer(mixture, Classifier(), lambda model, batch: model(**batch)["loss"], **given, every=2)
    for _ in range(20):
        balancer.step()
    return {"balancer": balancer, "folder": Path(folder)}


def plot(folder: str) -> None:
    exec(the_block("report.md"), balanced(folder))
    assert (Path(folder) / "mixture.svg").exists()


def report(folder: str) -> None:
    from multidds.history import save_history

    (home := Path(folder) / "folder").mkdir()
    save_history(balanced(folder)["balancer"], home)
    (commands,) = blocks(ROOT / "docs" / "report.md", "console")
    for command in commands.splitlines():
        subprocess.run([sys.executable, "-m", *command.split()], cwd=folder, check=True)
    assert (Path(folder) / "report" / "report.html").exists()


SNIPPETS = {"hf": hf, "trl": trl, "st": st, "lightning": lightning, "plot": plot, "report": report}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        SNIPPETS[sys.argv[1]](temporary)
    print(f"{sys.argv[1]}: the snippet runs")
