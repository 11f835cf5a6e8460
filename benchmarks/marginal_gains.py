"""Which signal predicts what a dataset really does? Measured gains of more of each dataset, beside candidate signals.

    python benchmarks/marginal_gains.py recipes/catalogues.toml --moments 150,450,750 --json gains.json

One run is trained with a static temperature. At every moment, and for every dataset, a copy of it goes on for
`--horizon` steps with that dataset's share raised by `--more` (the others scaled down), with common random numbers.
The gain is what the averaged weights then score on the dev sets, less what they score without a change. Signals are
taken from gradients at the same moment. The file is written after every moment, and a second call goes on behind
them. A moment costs repeats x (datasets + 1) x horizon steps: about ten minutes for the recipe above on one core.
"""

import argparse
import copy
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from multidds import Mixture
from multidds.nmt.batches import Batch, Sentences, Stream, evaluation_batches, probe_batches
from multidds.nmt.config import Config, load_config
from multidds.nmt.model import make_model
from multidds.nmt.prepare import Prepared
from multidds.nmt.schedule import learning_rate

MEASURES = ("loss", "accuracy", "expected", "soft_bleu")
ORDERS = 4  # of the n-grams of soft BLEU
Objective = Callable[[Tensor, Batch], Tensor]  # of logits [R, V], to be made small

# ---------------------------------------------------------------------------------------------- measures


def windows(batch: Batch, log_p: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """For n = 1 .. ORDERS: the probabilities of n right tokens in a row [B, L - n + 1], and which places have n."""
    rows = batch.target_rows
    padded = log_p.new_full((rows.sentences * rows.longest,), -math.inf).index_copy(0, rows.places, log_p)
    padded = padded.view(rows.sentences, rows.longest)
    for n in range(1, min(ORDERS, rows.longest) + 1):
        total = padded.unfold(1, n, 1).sum(-1)
        yield total.exp(), torch.isfinite(total)


@torch.no_grad()
def measured(model: nn.Module, batches: list[Batch]) -> dict[str, float]:
    """Loss, token accuracy, mean probability of the right token, and soft BLEU, of one dev set."""
    model.eval()
    loss = right = tokens = 0.0
    sums, counts = np.zeros(ORDERS), np.zeros(ORDERS)
    for batch in batches:
        log_p = F.log_softmax(model.logits(batch), -1)  # type: ignore[operator]
        correct = log_p.gather(1, batch.target_out[:, None])[:, 0]
        loss -= correct.sum().item()
        right += (log_p.argmax(-1) == batch.target_out).sum().item()
        tokens += batch.tokens
        for n, (p, there) in enumerate(windows(batch, correct)):
            sums[n] += p.sum().item()
            counts[n] += there.sum().item()
    model.train()
    means = sums / np.maximum(counts, 1)
    soft_bleu = float(np.exp(np.log(np.maximum(means, 1e-12)).mean()))
    return {"loss": loss / tokens, "accuracy": right / tokens, "expected": float(means[0]), "soft_bleu": soft_bleu}


# ---------------------------------------------------------------------------------------------- the training


class Training:
    """A run without its surroundings: steps, the average of the weights, and copies of all of it."""

    def __init__(self, config: Config, average: int) -> None:
        prepared = Prepared(config)
        self.config, self.names = config, list(config.data.names)
        self.data = {name: Sentences(config, prepared, name, "train") for name in self.names}
        self.dev = {name: Sentences(config, prepared, name, "dev") for name in self.names}
        self.dev_batches = {name: list(evaluation_batches(sentences, 4096)) for name, sentences in self.dev.items()}
        torch.manual_seed(config.train.seed)
        self.model = make_model(config, prepared.vocabulary)
        settings = config.train
        self.optimizer = torch.optim.Adam(
            self.model.parameters(),
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
            fused=True,
        )
        self.averaged = copy.deepcopy(self.model)
        self.decay = 1 - 1 / average
        self.step = 0

    def stream(self, mixture: Mixture, seed: int) -> Stream:
        settings = self.config.train
        return Stream(
            self.data, mixture, tokens=settings.tokens, accumulate=settings.accumulate, pool=settings.pool,
            mixing=settings.mixing, seed=seed,
        )  # fmt: skip

    def go(self, stream: Stream, steps: int) -> None:
        settings = self.config.train
        for left in range(steps, 0, -1):
            batches, _, tokens = stream.next(left)
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(settings.lr, settings.warmup, settings.warmup_from, self.step + 1)
            for batch in batches:
                (self.model(batch, settings.label_smoothing) / tokens).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip or math.inf)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.step += 1
            decay = min(self.decay, self.step / (self.step + 10))  # the first weights are soon forgotten
            with torch.no_grad():
                for average, parameter in zip(self.averaged.parameters(), self.model.parameters(), strict=True):
                    average.lerp_(parameter, 1 - decay)

    def scores(self) -> dict[str, dict[str, float]]:
        return {name: measured(self.averaged, batches) for name, batches in self.dev_batches.items()}

    def copied(self) -> dict[str, Any]:
        state = (self.model.state_dict(), self.averaged.state_dict(), self.optimizer.state_dict(), self.step)
        return dict(zip(("model", "averaged", "optimizer", "step"), copy.deepcopy(state), strict=True))

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.averaged.load_state_dict(state["averaged"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.step = state["step"]


def gains(training: Training, mixture: Mixture, horizon: int, more: float, repeats: int) -> dict[str, Any]:
    """{measure: [repeat][dev set][dataset]}: what more of a dataset adds. A smaller loss is a gain."""
    here = training.copied()
    found = {measure: np.zeros((repeats, len(training.names), len(training.names))) for measure in MEASURES}
    for repeat in range(repeats):
        scores = []
        for raised in (None, *training.names):
            shares = {name: (1 - more) * p for name, p in mixture.probabilities.items()}
            if raised is not None:
                shares[raised] += more
            seed = 1000 * (repeat + 1) + training.step  # the same draws and dropout, as far as the shares are the same
            torch.manual_seed(seed)
            training.go(training.stream(mixture if raised is None else Mixture(shares), seed), horizon)
            scores.append(training.scores())
            training.restore(here)
        for i, after in enumerate(scores[1:]):
            for k, name in enumerate(training.names):
                for measure in MEASURES:
                    change = after[name][measure] - scores[0][name][measure]
                    found[measure][repeat, k, i] = -change if measure == "loss" else change
    return {measure: table.tolist() for measure, table in found.items()}


# ---------------------------------------------------------------------------------------------- objectives


def correct_log_p(logits: Tensor, batch: Batch) -> Tensor:
    return F.log_softmax(logits, -1).gather(1, batch.target_out[:, None])[:, 0]


def at_fitted_scale(logits: Tensor, batch: Batch, weights: Tensor) -> Tensor:
    """The weighted loss of scale x logits at the scale that makes it smallest: mere confidence does not move it."""
    low, high = -1.5, 1.5  # logarithms of the scale
    with torch.no_grad():
        for _ in range(18):  # thirds: the loss is convex in the scale
            one, two = low + (high - low) / 3, high - (high - low) / 3
            losses = [-(weights * correct_log_p(math.exp(x) * logits, batch)).sum() for x in (one, two)]
            low, high = (low, two) if losses[0] < losses[1] else (one, high)
    return -(weights * correct_log_p(math.exp((low + high) / 2) * logits, batch)).mean()


def expected_weights(logits: Tensor, batch: Batch) -> Tensor:
    """What d log p of each token weighs in the gradient of the mean of p. [R]"""
    return correct_log_p(logits, batch).detach().exp()


def soft_bleu_weights(logits: Tensor, batch: Batch) -> Tensor:
    """What d log p of each token weighs in the gradient of log soft BLEU. [R]"""
    log_p = correct_log_p(logits, batch).detach().requires_grad_()
    means = [p.sum() / there.sum() for p, there in windows(batch, log_p)]
    value = torch.stack([mean.clamp_min(1e-12).log() for mean in means]).mean()
    return torch.autograd.grad(value, log_p)[0] * len(log_p)


def objectives(smoothing: float) -> dict[str, Objective]:
    return {
        "loss": lambda z, b: F.cross_entropy(z, b.target_out, label_smoothing=smoothing),
        "expected accuracy": lambda z, b: -correct_log_p(z, b).exp().mean(),
        "expected accuracy, fitted": lambda z, b: at_fitted_scale(z, b, expected_weights(z, b)),
        "soft BLEU, fitted": lambda z, b: at_fitted_scale(z, b, soft_bleu_weights(z, b)),
    }


# ---------------------------------------------------------------------------------------------- signals


def gradient(model: nn.Module, parts: list[Batch], objective: Objective, kept: list[bool]) -> Tensor:
    """Of the mean over the target tokens of the parts, as one vector."""
    tokens = sum(part.tokens for part in parts)
    parameters = [p for p, keep in zip(model.parameters(), kept, strict=True) if keep]
    total = torch.zeros(sum(p.numel() for p in parameters))
    for part in parts:
        value = objective(model.logits(part), part) * (part.tokens / tokens)  # type: ignore[operator]
        total += torch.cat([g.flatten() for g in torch.autograd.grad(value, parameters)])
    return total


def forms(dev: Tensor, train: Tensor, shares: Tensor, adam: Tensor) -> dict[str, Tensor]:
    """Rewards of the datasets, [n], from gradients [K, P] and [n, P]."""
    unit = F.normalize(dev, dim=1)
    mean = shares @ train
    aside = train - (train @ mean / (mean @ mean))[:, None] * mean
    stepped = train * adam
    return {
        "mean of cosines": (F.normalize(train, dim=1) @ unit.T).mean(1),
        "cosine with the sum": F.normalize(train, dim=1) @ F.normalize(dev.sum(0), dim=0),
        "inner product": train @ dev.mean(0),
        "inner product, Adam": stepped @ dev.mean(0),
        "mean of cosines, Adam": (F.normalize(stepped, dim=1) @ F.normalize(dev * adam.sqrt(), dim=1).T).mean(1),
        "mean of cosines, Adam on both": (
            F.normalize(train * adam.sqrt(), dim=1) @ F.normalize(dev * adam.sqrt(), dim=1).T
        ).mean(1),
        "mean of cosines, mixture projected out": (F.normalize(aside, dim=1) @ unit.T).mean(1),
        "norm": train.norm(dim=1),
    }


def signals(training: Training, mixture: Mixture, tokens: int, redraws: int) -> dict[str, list[list[float]]]:
    """{signal: [redraw][dataset]}"""
    found: dict[str, list[list[float]]] = {}
    shares = torch.tensor([mixture[name] for name in training.names])
    settings = training.config.train
    here = torch.get_rng_state()
    for redraw in range(redraws):
        for place, model in (("raw", training.model), ("averaged", training.averaged)):
            torch.manual_seed(redraw)
            draw = torch.Generator().manual_seed(10_000 * training.step + redraw)
            train_parts = [probe_batches(data, tokens)(draw) for data in training.data.values()]
            dev_parts = [probe_batches(data, tokens)(draw) for data in training.dev.values()]
            everything = objectives(settings.label_smoothing)
            kept = [True for _ in model.parameters()]
            model.train()
            train = torch.stack([gradient(model, parts, everything["loss"], kept) for parts in train_parts])
            model.eval()
            adam = torch.cat([
                training.optimizer.state[p]["exp_avg_sq"].flatten() for p in training.model.parameters()
            ])  # fmt: skip
            adam = 1 / ((adam / (1 - settings.beta2**training.step)).sqrt() + settings.eps)
            inner = torch.cat([
                torch.full((p.numel(),), "embedding" not in name) for name, p in model.named_parameters()
            ])  # fmt: skip
            for objective, function in everything.items():
                dev = torch.stack([gradient(model, parts, function, kept) for parts in dev_parts])
                for part, where in (("all", slice(None)), ("without embeddings", inner)):
                    for form, values in forms(dev[:, where], train[:, where], shares, adam[where]).items():
                        name = f"{objective} | {form} | {place} | {part}"
                        found.setdefault(name, []).append(values.tolist())
            model.train()
    torch.set_rng_state(here)
    sizes = [-math.log(len(data)) for data in training.data.values()]
    return found | {"size: the smaller, the better": [sizes] * redraws}


# ---------------------------------------------------------------------------------------------- what it says


def correlation(a: Any, b: Any) -> float:
    a, b = np.asarray(a, float), np.asarray(b, float)
    return 0.0 if a.std() == 0 or b.std() == 0 else float(np.corrcoef(a, b)[0, 1])


def summary(moments: list[dict[str, Any]], measure: str) -> list[tuple[str, float, float, float, list[float]]]:
    """(signal, mean and worst correlation with the gains, agreement of two redraws, all correlations), best first."""
    lines = []
    for name in moments[0]["signals"]:
        with_truth, agreement = [], []
        for moment in moments:
            truth = np.asarray(moment["gains"][measure]).mean((0, 1))  # over repeats and dev sets
            drawn = np.asarray(moment["signals"][name])
            with_truth.append(correlation(drawn.mean(0), truth))
            agreement.append(correlation(drawn[0], drawn[-1]))
        lines.append((name, float(np.mean(with_truth)), min(with_truth), float(np.mean(agreement)), with_truth))
    return sorted(lines, key=lambda line: -line[1])


def show(moments: list[dict[str, Any]], names: list[str], rows: int) -> None:
    for measure in ("expected", "soft_bleu", "loss"):
        print(f"\nTrue gain in {measure} x 1000, of more of each dataset; agreement of the repeats")
        for moment in moments:
            truth = np.asarray(moment["gains"][measure]).mean(1)  # over dev sets: [repeat, dataset]
            values = "  ".join(f"{name} {1000 * v:+.1f}" for name, v in zip(names, truth.mean(0), strict=True))
            print(f"  step {moment['step']:>5}  {values}   ({correlation(truth[0], truth[-1]):.2f})")
        print(f"  {'correlation with the signal:':<84} mean  worst  redraws  every moment")
        for name, mean, worst, agreement, every in summary(moments, measure)[:rows]:
            print(f"  {name:<84} {mean:.2f}  {worst:5.2f}  {agreement:7.2f}  {' '.join(f'{c:.2f}' for c in every)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--moments", default="150,300,450,600,750", help="steps of the run, ascending")
    parser.add_argument("--temperature", type=float, default=3.0, help="of the run's mixture")
    parser.add_argument("--horizon", type=int, default=40, help="steps with more of a dataset")
    parser.add_argument("--more", type=float, default=0.2, help="what its share is raised by")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--redraws", type=int, default=2, help="of the probes of the signals")
    parser.add_argument("--probe-tokens", type=int, default=2048)
    parser.add_argument("--average", type=int, default=20, help="steps that the average of the weights is about")
    parser.add_argument("--rows", type=int, default=24, help="signals to show")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--json", type=Path, required=True, help="results; with some in it, the rest is measured")
    given = parser.parse_args()
    config = load_config(given.recipe, given.set)
    training = Training(config, given.average)
    mixture = Mixture.temperature({name: len(data) for name, data in training.data.items()}, given.temperature)
    stream = training.stream(mixture, config.train.seed)
    asked = {key: str(value) for key, value in vars(given).items() if key not in ("json", "moments", "rows")}
    results: dict[str, Any] = {"asked": asked, "names": training.names, "moments": []}
    if given.json.exists():
        results = json.loads(given.json.read_text(encoding="utf-8"))
        if results["asked"] != asked:
            raise SystemExit(f"{given.json}: is of other options: {results['asked']}.")
    done = {moment["step"] for moment in results["moments"]}
    torch.manual_seed(config.train.seed)
    for step in map(int, given.moments.split(",")):
        training.go(stream, step - training.step)
        if step in done:
            continue
        random, began = torch.get_rng_state(), time.perf_counter()
        found = signals(training, mixture, given.probe_tokens, given.redraws)
        truth = gains(training, mixture, given.horizon, given.more, given.repeats)
        torch.set_rng_state(random)
        seconds = time.perf_counter() - began
        results["moments"].append({"step": step, "seconds": seconds, "gains": truth, "signals": found})
        given.json.write_text(json.dumps(results) + "\n", encoding="utf-8")
        show(results["moments"][-1:], training.names, 8)
    print(f"\n==== {len(results['moments'])} moments")
    show(results["moments"], training.names, given.rows)


if __name__ == "__main__":
    main()
