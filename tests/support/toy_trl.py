"""Small trainers of TRL with their data, tokenizer and models, made here: nothing is downloaded."""

import os

os.environ.setdefault("TQDM_DISABLE", "1")

import copy

import datasets
import torch
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer

datasets.disable_progress_bars()

SIZES = {"a": 12, "b": 30, "c": 20}
WORDS = [f"w{i}" for i in range(40)]
RANGES = {"a": (0, 40), "b": (10, 20), "c": (20, 40)}  # of the words in each dataset


def tokenizer():
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def model(kind=LlamaForCausalLM, dropout=0.1, **settings):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS) + 3,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
        attention_dropout=dropout,
        **settings,
    )
    return kind(config)


def texts(count, seed, low=0, high=40):
    generator = torch.Generator().manual_seed(seed)

    def text():
        length = int(torch.randint(3, 9, (), generator=generator))
        return " ".join(WORDS[i] for i in torch.randint(low, high, (length,), generator=generator))

    return [text() for _ in range(count)]


def rows(kind, count, seed, name):
    columns = {
        "text": ["text"],
        "completion": ["prompt", "completion"],
        "preference": ["prompt", "chosen", "rejected"],
    }[kind]
    texts_of = {column: texts(count, 100 * seed + i, *RANGES[name]) for i, column in enumerate(columns)}
    return datasets.Dataset.from_dict(texts_of)


def train_sets(kind="text"):
    return {name: rows(kind, size, seed, name) for seed, (name, size) in enumerate(SIZES.items(), start=1)}


def dev_sets(kind="text"):
    return {name: rows(kind, 8, seed, name) for seed, name in enumerate("ab", start=10)}


def settings_of(folder, **settings):
    defaults = {
        "per_device_train_batch_size": 4,
        "max_steps": 6,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "max_length": 16,
        "dataloader_pin_memory": False,
    }
    return {"output_dir": str(folder), **defaults, **settings}


def sft(folder, train, dev, lora=False, dropout=0.1, **settings):
    return SFTTrainer(
        model(dropout=dropout),
        SFTConfig(**settings_of(folder, **settings)),
        train_dataset=train,
        eval_dataset=dev,
        processing_class=tokenizer(),
        peft_config=LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.1) if lora else None,
    )


def dpo(folder, train, dev, lora=False, dropout=0.1, **settings):
    policy = model(dropout=dropout)
    return DPOTrainer(
        policy,
        None if lora or settings.get("precompute_ref_log_probs") else copy.deepcopy(policy),
        DPOConfig(**settings_of(folder, **settings)),
        train_dataset=train,
        eval_dataset=dev,
        processing_class=tokenizer(),
        peft_config=LoraConfig(r=2, target_modules=["q_proj", "v_proj"]) if lora else None,
    )


def reward(folder, train, dev, **settings):
    return RewardTrainer(
        model(LlamaForSequenceClassification, num_labels=1),
        RewardConfig(**settings_of(folder, **settings)),
        train_dataset=train,
        eval_dataset=dev,
        processing_class=tokenizer(),
    )
