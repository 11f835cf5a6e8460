"""An ordinary sentence-transformers script over three unequal datasets, and the two lines that balance them.

Made-up words: an anchor and its positive say the same in two ways. "web" is large and uses one half of the vocabulary,
"rare" is small and uses the other, and the pairs of "junk", which is the largest, have nothing to do with each other.
Only the first two are asked for. The model is an embedding per word; needs no download. The same script without its
callback is the static baseline. Needs `pip install 'multidds[st]'`.

    python examples/sentence_transformers_fit.py
"""

import os
import random
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing comes from a hub

import datasets
import torch
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PrinterCallback, set_seed

from multidds import Mixture
from multidds.integrations.sentence_transformers import BalanceCallback, mixed_batches

SIZES = {"web": 1200, "rare": 150, "junk": 3000}
ASKED_FOR = ("web", "rare")
MEANINGS = {"web": range(150), "rare": range(150, 300), "junk": range(300)}  # each has a word in two vocabularies


def pairs(name: str, size: int, seed: int) -> datasets.Dataset:
    draw = random.Random(f"{name} {seed}")
    said = [draw.sample(MEANINGS[name], 4) for _ in range(size)]
    meant = [draw.sample(MEANINGS[name], 4) for _ in range(size)] if name == "junk" else said
    columns = {
        "anchor": [[f"a{m}" for m in row] for row in said],
        "positive": [[f"b{m}" for m in row] for row in meant],
    }
    return datasets.Dataset.from_dict({column: [" ".join(row) for row in rows] for column, rows in columns.items()})


def model() -> SentenceTransformer:
    words = ["?", *(f"{side}{m}" for side in "ab" for m in range(300))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=32)], device="cpu")


def accuracy(model: SentenceTransformer, test: datasets.Dataset) -> float:
    """How often the positive of an anchor is the nearest of all positives."""
    options = {"convert_to_tensor": True, "normalize_embeddings": True, "show_progress_bar": False}
    anchors, positives = model.encode(test["anchor"][:], **options), model.encode(test["positive"][:], **options)
    return (anchors @ positives.T).argmax(dim=1).eq(torch.arange(len(test))).float().mean().item()


def train(learn: bool, steps: int, folder: str) -> tuple[dict[str, float], dict[str, float]]:
    set_seed(0)
    train_sets = {name: pairs(name, size, seed=1) for name, size in SIZES.items()}
    dev_sets = {name: pairs(name, 200, seed=2) for name in ASKED_FOR}
    mixture = Mixture.proportional(SIZES)
    args = SentenceTransformerTrainingArguments(
        folder,
        max_steps=steps,
        per_device_train_batch_size=32,
        learning_rate=0.1,
        batch_sampler="no_duplicates",
        multi_dataset_batch_sampler=mixed_batches(mixture, seed=1),
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
        dataloader_pin_memory=False,
    )
    made = model()
    loss = MultipleNegativesRankingLoss(made)
    trainer = SentenceTransformerTrainer(made, args, train_dataset=train_sets, eval_dataset=dev_sets, loss=loss)
    trainer.remove_callback(PrinterCallback)  # the table at the end says enough
    if learn:
        trainer.add_callback(BalanceCallback(trainer, every=5))
    trainer.train()
    return {name: accuracy(made, pairs(name, 300, seed=3)) for name in ASKED_FOR}, mixture.probabilities


def main(steps: int = 150) -> dict[str, dict[str, float]]:
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    found, lines = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for method in ("proportional", "learned"):
            found[method], mixture = train(method == "learned", steps, folder)
            shares = " ".join(f"{p:7.1%}" for p in mixture.values())
            lines.append(f"{method:14}{''.join(f'{score:8.1%}' for score in found[method].values())}   {shares}")
    print(f"test accuracy of {', '.join(ASKED_FOR)}; final mixture of {', '.join(SIZES)}")
    print("\n".join(lines))
    return found


if __name__ == "__main__":
    main()
