"""How well a run's trust in sentence pairs finds the damage of `damaged_corpus.py`, compared with its losses.

The final model and scorers of a run judge every training pair of the damaged datasets. Printed are the area under the
ROC curve (AUC) of damaged pairs, by low trust and by high loss per token, and the mean probability of each kind to be
trained on.

    python experiments/dirty/damage_found.py data/catalogues-damaged runs/dirty/*/dds/*
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from multidds.nmt.batches.batch import Batch, assemble, evaluation_items
from multidds.nmt.batches.sentences import Sentences
from multidds.nmt.common.processes import Processes
from multidds.nmt.config.config import Config, read_run
from multidds.nmt.model.transformer import Transformer, make_model
from multidds.nmt.noisy_pairs.noisy_pairs import NoisyPairs
from multidds.nmt.noisy_pairs.pair_features import per_sentence
from multidds.nmt.prepare import Prepared
from multidds.nmt.prepare.encode import Encoder
from multidds.nmt.runs import checkpoints
from multidds.nmt.training.start_mixture import prior_of

KINDS = ("right", "other", "copy")


def kinds_of(config: Config, prepared: Prepared, folder: Path, pair: int) -> list[str]:
    """What each prepared training pair is: `prepare` leaves out pairs that are too long."""
    of = config.data.pairs[pair]
    there = folder / of.name
    kinds = (there / "train.damage").read_text(encoding="utf-8").split()
    fits = np.ones(len(kinds), bool)
    for language, side in ((of.source, "source"), (of.target, "target")):
        lines = (there / f"train.{language}").read_text(encoding="utf-8").splitlines()
        encoded = Encoder.load(config, prepared.folder, language, side).encode(lines)
        fits &= np.array([0 < len(tokens) <= config.data.max_length for tokens in encoded])
    return [kind for kind, fit in zip(kinds, fits, strict=True) if fit]


def auc(suspicion: np.ndarray, wrong: np.ndarray) -> float:
    """The probability that a wrong pair is more suspicious than a right one; ties count half."""
    values, places = np.unique(suspicion, return_inverse=True)
    counts = np.bincount(places, minlength=len(values))
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    count = int(wrong.sum())
    return float((ranks[wrong].sum() - count * (count + 1) / 2) / (count * (len(wrong) - count)))


def opened(folder: Path) -> tuple[Config, Transformer, NoisyPairs | None, dict[str, Sentences]]:
    """The final model of a run, as it was trained, with what it knows of its examples."""
    config, _ = read_run(folder)
    prepared = Prepared(config)
    model = make_model(config, prepared.vocabulary).eval()
    tensors, state = checkpoints.read(checkpoints.listed(folder)[-1])
    parts: dict[str, dict[str, torch.Tensor]] = {"model": {}, "examples": {}}
    for name, tensor in tensors.items():
        kind, _, key = name.partition(".")
        parts.setdefault(kind, {})[key] = tensor
    model.load_state_dict(parts["model"])
    data, dev = ({name: Sentences(prepared, name, split) for name in config.data.names} for split in ("train", "dev"))
    if config.examples.method != "dds":
        return config, model, None, data
    prior = prior_of(config, data)
    examples = NoisyPairs(
        config, model, losses_of(config), data, dev, prior, prepared.vocabulary, math.inf, Processes()
    )
    examples.load_state_dict({**state["examples"], "tensors": parts["examples"]})
    return config, model, examples, data


def losses_of(config: Config) -> Callable[[Transformer, Batch], torch.Tensor]:
    return lambda model, batch: model(batch, config.train.label_smoothing, True)


@torch.no_grad()
def judged(folder: Path, corpus: Path) -> dict[str, object]:
    config, model, examples, data = opened(folder)
    prepared, losses = Prepared(config), losses_of(config)
    loss, trust, kinds = [], [], []
    for place, sentences in enumerate(data.values()):
        own = kinds_of(config, prepared, corpus, place)
        if set(own) == {"right"}:
            continue
        for items in evaluation_items(sentences, config.train.batch_tokens):
            batch = assemble(items)
            each = losses(model, batch)
            loss += per_sentence(batch, each).tolist()
            trust += [] if examples is None else examples.trust(batch.origins).tolist()
            kinds += [own[i] for _, i in items]
    kind = np.array(kinds)
    found: dict[str, object] = {"run": str(folder), "auc of loss": auc(np.array(loss), kind != "right")}
    if trust:
        found |= by_kind(np.array(trust), kind, config.examples.sharpness)
    return found


def by_kind(trust: np.ndarray, kind: np.ndarray, sharpness: float) -> dict[str, object]:
    found: dict[str, object] = {"auc of trust": auc(-trust, kind != "right")}
    for one in KINDS[1:]:
        among = (kind == one) | (kind == "right")
        found[f"auc of trust, {one}"] = auc(-trust[among], kind[among] == one)
    return found | {"chance": {one: float((trust[kind == one] ** sharpness).mean()) for one in KINDS}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    given = parser.parse_args()
    for folder in given.runs:
        print(json.dumps(judged(folder, given.corpus)))


if __name__ == "__main__":
    main()
