"""An ordinary Hugging Face Trainer script over four unequal domains, and the lines that balance them.

A small causal language model, built from a config, on the made-up text of `language_model.py`. Needs no download.
The same script without its callback is the static baseline. Needs `pip install 'multidds[hf]'`.

    python examples/huggingface_trainer.py
"""

import random
import tempfile

import torch
from language_model import ALPHABET, LENGTH, SIZES, sentence
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainingArguments, set_seed

from multidds import Mixture
from multidds.huggingface import BalanceCallback, MixedDataset


class Domain(Dataset):
    """Lines of one domain, one token per character."""

    def __init__(self, name: str, size: int, seed: int) -> None:
        rng, index = random.Random(f"{name} {seed}"), {character: i for i, character in enumerate(ALPHABET)}
        texts = ["".join(sentence(name, rng) for _ in range(12))[:LENGTH] for _ in range(size)]
        self.ids = torch.tensor([[index[character] for character in text] for text in texts])

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


def train(balance: bool, steps: int, folder: str) -> tuple[Trainer, dict[str, float]]:
    set_seed(0)
    train_sets = {name: Domain(name, size, seed=0) for name, size in SIZES.items()}
    dev_sets = {name: Domain(name, 100, seed=1) for name in SIZES}
    config = LlamaConfig(
        vocab_size=len(ALPHABET),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=LENGTH,
        use_cache=False,
    )
    args = TrainingArguments(
        folder,
        max_steps=steps,
        per_device_train_batch_size=16,
        learning_rate=5e-3,
        train_sampling_strategy="sequential",  # a MixedDataset does the drawing; with the callback this is set for you
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
    )
    mixture = Mixture.proportional({name: len(d) for name, d in train_sets.items()})
    train_dataset = MixedDataset(train_sets, mixture, seed=1)
    trainer = Trainer(LlamaForCausalLM(config), args, train_dataset=train_dataset, eval_dataset=dev_sets)
    trainer.remove_callback(PrinterCallback)  # the table at the end says enough
    if balance:
        trainer.add_callback(BalanceCallback(trainer, every=10))
    trainer.train()
    metrics = trainer.evaluate()
    return trainer, {name: metrics[f"eval_{name}_loss"] for name in SIZES}


def main(steps: int = 200) -> dict[str, dict[str, float]]:
    torch.set_num_threads(1)
    losses, lines = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for method in ("proportional", "multidds-s"):
            trainer, losses[method] = train(method == "multidds-s", steps, folder)
            mixture = trainer.train_dataset.mixture
            shown = [f"{mixture[name]:>9.1%} {losses[method][name]:>6.3f}" for name in SIZES]
            lines.append(f"{method:14}{''.join(shown)}{sum(losses[method].values()) / len(SIZES):>10.3f}")
    print(f"{'':14}{''.join(f'{name:>16}' for name in SIZES)}{'mean':>10}\n{'':14}" + "  mixture   loss" * len(SIZES))
    print("\n".join(lines))
    return losses


if __name__ == "__main__":
    main()
