"""What measuring costs: a validation against one of losses alone, averaged weights against a step.

Everything takes turns in one process, on a prepared recipe; figures are medians of ratios of neighbouring turns, in CPU
time of one thread, so that what else the machine does falls on both alike.

    cd FOLDER  # where recipes/catalogues.toml was prepared
    python benchmarks/measuring_cost.py recipes/catalogues.toml [--turns 9]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from multidds import Mixture
from multidds.nmt.batches.batch import evaluation_batches
from multidds.nmt.batches.sentences import Sentences
from multidds.nmt.batches.stream import Stream
from multidds.nmt.config.config import Config, load_config
from multidds.nmt.model.averaged_weights import AveragedWeights
from multidds.nmt.model.freed_memory import keep_freed_memory
from multidds.nmt.model.transformer import Transformer
from multidds.nmt.prepare import Prepared
from multidds.nmt.training.validation import measure

CPU = torch.device("cpu")
AVERAGES = (20, 100, 1000)  # steps


def spent(function: Callable[[], object]) -> float:
    began = time.process_time()
    function()
    return time.process_time() - began


@torch.no_grad()
def losses_alone(model: Transformer, dev: dict[str, Sentences], batch_tokens: int) -> list[float]:
    found = []
    for sentences in dev.values():
        batches = list(evaluation_batches(sentences, batch_tokens))
        found.append(sum(model(batch, 0.0) for batch in batches).item() / sum(batch.tokens for batch in batches))
    return found


def validation(model: Transformer, dev: dict[str, Sentences], batch_tokens: int, turns: int) -> None:
    model.eval()
    ratios = []
    for _ in range(turns):
        plain = spent(lambda: losses_alone(model, dev, batch_tokens))
        ratios.append(spent(lambda: measure(model, dev, batch_tokens, CPU)) / plain)
    model.train()
    print(
        f"validation: {statistics.median(ratios):.3f} of one of losses alone ({min(ratios):.3f} to {max(ratios):.3f})"
    )


def averaging(model: Transformer, train: dict[str, Sentences], config: Config, turns: int) -> None:
    settings = config.train
    mixture = Mixture.proportional({name: len(sentences) for name, sentences in train.items()})
    stream = Stream(
        train,
        mixture,
        tokens=settings.tokens,
        accumulate=settings.accumulate,
        pool=settings.pool,
        mixing=settings.mixing,
        seed=1,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    averaged = {steps: AveragedWeights(model, steps) for steps in AVERAGES}
    shares: dict[int, list[float]] = {steps: [] for steps in AVERAGES}

    def step() -> None:
        batches, _, tokens = stream.next(settings.pool)
        for batch in batches:
            (model(batch, settings.label_smoothing) / tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(turns):
        one = spent(step)
        for steps, average in averaged.items():
            # Step 1 takes the weights up; of all steps every so many do.
            shares[steps].append(spent(lambda average=average: average.update(1)) / average.every / one)
    for steps, found in shares.items():
        print(f"average = {steps}: {statistics.median(found):.2%} of a step ({min(found):.2%} to {max(found):.2%})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--turns", type=int, default=9)
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    config = load_config(args.recipe)
    prepared = Prepared(config)
    torch.manual_seed(1)
    sizes = {side: len(tokens) for side, tokens in prepared.vocabulary.items()}
    model = Transformer(sizes["source"], sizes["target"], config.data.max_length + 2, **config.model.model_dump())
    train, dev = ({name: Sentences(prepared, name, split) for name in config.data.names} for split in ("train", "dev"))
    print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")
    averaging(model, train, config, 3 * args.turns)
    validation(model, dev, config.train.batch_tokens, args.turns)


if __name__ == "__main__":
    main()
