"""An ordinary Hugging Face Trainer script over three unequal domains, and the lines that balance them.

A small causal language model, built from a config, on the text of `language_model.py`, whose largest domain no dev set
contains. Needs no download. The same script without its callback is the static baseline. It uses one seed;
language_model.py has more seeds and more static mixtures. Needs `pip install 'multidds[hf]'`.

    python examples/huggingface_trainer.py
"""

import tempfile

import torch
from language_model import ASKED_FOR, LENGTH, SIZES, examples
from torch.utils.data import Dataset, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainingArguments, set_seed

from multidds import Mixture
from multidds.integrations.huggingface import BalanceCallback, MixedDataset


class Lines(Dataset):
    """Text as the Trainer wants it, one token per character."""

    def __init__(self, data: TensorDataset) -> None:
        (self.ids,) = data.tensors

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


def train(balance: bool, steps: int, folder: str) -> tuple[Trainer, dict[str, float]]:
    set_seed(0)
    data = {name: examples(name) for name in SIZES}
    train_sets = {name: Lines(splits["train"]) for name, splits in data.items()}
    dev_sets, test_sets = ({name: Lines(data[name][split]) for name in ASKED_FOR} for split in ("dev", "test"))
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=LENGTH + 1,
        use_cache=False,
    )
    args = TrainingArguments(
        folder,
        max_steps=steps,
        per_device_train_batch_size=16,
        learning_rate=5e-3,
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
        trainer.add_callback(BalanceCallback(trainer, every=10, batch_size=64))
    trainer.train()
    metrics = trainer.evaluate(test_sets)
    return trainer, {name: metrics[f"eval_{name}_loss"] for name in ASKED_FOR}


def main(steps: int = 200) -> dict[str, dict[str, float]]:
    torch.set_num_threads(1)
    losses, lines = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for method in ("proportional", "learned"):
            trainer, losses[method] = train(method == "learned", steps, folder)
            mixture = " ".join(f"{p:7.1%}" for p in trainer.train_dataset.mixture.probabilities.values())
            lines.append(f"{method:14}{''.join(f'{loss:8.3f}' for loss in losses[method].values())}   {mixture}")
    print(f"test loss of {', '.join(ASKED_FOR)}; final mixture of {', '.join(SIZES)}")
    print("\n".join(lines))
    return losses


if __name__ == "__main__":
    main()
