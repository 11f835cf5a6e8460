"""An ordinary supervised fine-tuning script with TRL over three unequal domains, and the line that balances them.

A small causal language model, built from a config, with adapters (LoRA), packed rows, and a tokenizer of characters, on
the text of `language_model.py`, whose largest domain no dev set contains. Needs no download. The same script without
`balance` trains on all of them, as they are. Needs `pip install 'multidds[trl]' peft`.

    python examples/trl_sft.py
"""

import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing comes from a hub, and nothing goes there

import datasets
import torch
from language_model import ASKED_FOR, LENGTH, SIZES, examples
from peft import LoraConfig
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback, set_seed
from trl import SFTConfig, SFTTrainer

from multidds import Mixture
from multidds.integrations.trl import balance


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per character, by its number below 128."""
    characters = {chr(i): i for i in range(2, 128)} | {"<pad>": 0, "<eos>": 1}
    made = Tokenizer(models.WordLevel(characters, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="?")


def texts(name: str, split: str) -> datasets.Dataset:
    (ids,) = examples(name)[split].tensors
    return datasets.Dataset.from_dict({"text": ["".join(map(chr, row)) for row in ids.clamp(2, 127).tolist()]})


def train(learn: bool, steps: int, folder: str) -> tuple[dict[str, float], dict[str, float]]:
    set_seed(0)
    train_sets = {name: texts(name, "train") for name in SIZES}
    dev_sets, test_sets = ({name: texts(name, split) for name in ASKED_FOR} for split in ("dev", "test"))
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=4 * LENGTH,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    args = SFTConfig(
        folder,
        max_steps=steps,
        per_device_train_batch_size=8,
        learning_rate=2e-2,
        max_length=2 * LENGTH,
        packing=True,
        packing_strategy="wrapped",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        logging_strategy="no",
        dataloader_pin_memory=False,
    )
    trainer = SFTTrainer(
        LlamaForCausalLM(config),
        args,
        train_dataset=datasets.concatenate_datasets(list(train_sets.values())),  # for `balance` any of them will do
        eval_dataset=dev_sets,
        processing_class=tokenizer(),
        peft_config=LoraConfig(r=8, target_modules="all-linear", modules_to_save=["embed_tokens", "lm_head"]),
    )
    trainer.remove_callback(PrinterCallback)  # the table at the end says enough
    mixture = Mixture.proportional(SIZES)
    if learn:
        mixture = balance(trainer, train_sets, every=5).mixture
    trainer.train()
    metrics = trainer.evaluate(test_sets)
    return {name: metrics[f"eval_{name}_loss"] for name in ASKED_FOR}, mixture.probabilities


def main(steps: int = 80) -> dict[str, dict[str, float]]:
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    losses, lines = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for method in ("proportional", "learned"):
            losses[method], mixture = train(method == "learned", steps, folder)
            shares = " ".join(f"{p:7.1%}" for p in mixture.values())
            lines.append(f"{method:14}{''.join(f'{loss:8.3f}' for loss in losses[method].values())}   {shares}")
    print(f"test loss of {', '.join(ASKED_FOR)}; final mixture of {', '.join(SIZES)}")
    print("\n".join(lines))
    return losses


if __name__ == "__main__":
    main()
