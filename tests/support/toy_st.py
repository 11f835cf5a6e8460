"""A small trainer of sentence-transformers with its data, tokenizer and model: nothing is downloaded."""

import datasets
import torch
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.modules import Dense, Dropout, Pooling, StaticEmbedding, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from toy_trainers import MOVING
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from multidds import Mixture
from multidds.integrations.sentence_transformers import BalanceCallback, mixed_batches

datasets.disable_progress_bars()

SIZES = {"a": 10, "b": 26, "c": 15}  # of batches of 4, that is 3 + 7 + 4 = 14
WORDS = [f"w{i}" for i in range(60)]


def model(dropout=0.2, bert=None):
    """bert: a folder for a BERT, in place of the embeddings of words."""
    torch.manual_seed(0)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["<unk>", *WORDS])}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if bert is None:
        layers = [StaticEmbedding(tokenizer, embedding_dim=8), Dropout(dropout), Dense(8, 6)]
    else:
        shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        BertModel(BertConfig(vocab_size=61, max_position_embeddings=16, **shape)).save_pretrained(bert)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<unk>").save_pretrained(bert)
        layers = [Transformer(str(bert)), Pooling(8)]
    return SentenceTransformer(modules=layers, device="cpu")


def pairs(count, seed, name="", repeated=False):
    """Numbered pairs of texts; with `repeated`, every second one has the anchor of the one before."""
    generator = torch.Generator().manual_seed(seed)

    def text():
        return " ".join(WORDS[i] for i in torch.randint(0, 60, (5,), generator=generator))

    anchors = [text() for _ in range(count)]
    if repeated:
        anchors[1::2] = anchors[: count // 2 * 2 : 2]
    return datasets.Dataset.from_dict({"anchor": anchors, "positive": [text() for _ in range(count)]})


def labelled(count, seed):
    labels = {"label": [i % 3 for i in range(count)]}
    return datasets.Dataset.from_dict({**pairs(count, seed).to_dict(), **labels})


def train_sets(kind=pairs):
    return {name: kind(size, seed) for seed, (name, size) in enumerate(SIZES.items(), start=1)}


def dev_sets():
    return {name: pairs(8, seed) for seed, name in enumerate("ab", start=10)}


class Watched(SentenceTransformerTrainer):
    """Remembers which batches training has really seen, by their tokens."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        self.__dict__.setdefault("seen", []).append(inputs["anchor_input_ids"].tolist())
        return super().training_step(model, inputs, num_items_in_batch)


def arguments(folder, mixture, seed=1, **settings):
    defaults = {
        "per_device_train_batch_size": 4,
        "max_steps": 20,
        "learning_rate": 0.05,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "multi_dataset_batch_sampler": mixed_batches(mixture, seed=seed),
    }
    return SentenceTransformerTrainingArguments(str(folder), **{**defaults, **settings})


def trainer_of(
    folder,
    every=2,
    loss=losses.MultipleNegativesRankingLoss,
    data=None,
    eval_dataset=None,
    kind=Watched,
    dropout=0.2,
    bert=False,
    settings=None,
    **options,
):
    """A trainer and its callback; with every=0 it has none."""
    made = model(dropout, folder / "bert" if bert else None)
    trainer = kind(
        made,
        arguments(folder, Mixture.proportional(SIZES), **(settings or {})),
        train_dataset=data or train_sets(),
        eval_dataset=eval_dataset or dev_sets(),
        loss={name: part(made) for name, part in loss.items()} if isinstance(loss, dict) else loss(made),
    )
    if every == 0:
        return trainer, None
    callback = BalanceCallback(trainer, every, **{**MOVING, "seed": 5, **options})
    trainer.add_callback(callback)
    return trainer, callback
