"""Which signal predicts what a dataset really does? Measured gains of more of each dataset, beside candidate signals.

    python benchmarks/marginal_gains.py recipes/catalogues.toml --moments 150,450,750 --json gains.json
    python benchmarks/marginal_gains.py under-trained --json gains.json  # the model of experiments/domains.py

One run is trained with a static temperature. At every moment, and for every dataset, a copy of it goes on for
`--horizon` steps with that dataset's share raised by `--more` (the others scaled down), with common random numbers.
The gain is what the averaged weights then score on the dev sets, less what they score without a change. Signals are
taken from gradients at the same moment. The file is written after every moment, and a second call goes on behind
them. A moment costs repeats x (datasets + 1) x horizon steps: about ten minutes for the recipe above on one core.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from gains_tasks import Part, Training, Translation
from torch import Tensor, nn

from multidds import Mixture
from multidds.nmt.config.config import load_config

MEASURES = ("loss", "accuracy", "expected", "soft_bleu")
ORDERS = 4  # of the n-grams of soft BLEU
Objective = Callable[[Tensor, Part], Tensor]  # of logits [R, V], to be made small

# ---------------------------------------------------------------------------------------------- measures


def windows(part: Part, log_p: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """For n = 1 .. ORDERS: the probabilities of n right tokens in a row [B, L - n + 1], and which places have n."""
    rows = part.rows(log_p)
    for n in range(1, min(ORDERS, rows.shape[1]) + 1):
        total = rows.unfold(1, n, 1).sum(-1)
        yield total.exp(), torch.isfinite(total)


@torch.no_grad()
def measured(model: nn.Module, parts: Iterable[Part]) -> dict[str, float]:
    """Loss, token accuracy, mean probability of the right token, and soft BLEU, of one dev set."""
    model.eval()
    loss = right = tokens = 0.0
    sums, counts = np.zeros(ORDERS), np.zeros(ORDERS)
    for part in parts:
        logits = part.logits(model)
        correct = correct_log_p(logits, part)
        loss -= correct.sum().item()
        right += (logits.argmax(-1) == part.right).sum().item()
        tokens += len(part.right)
        for n, (p, there) in enumerate(windows(part, correct)):
            sums[n] += p.sum().item()
            counts[n] += there.sum().item()
    model.train()
    means = sums / np.maximum(counts, 1)
    soft_bleu = float(np.exp(np.log(np.maximum(means, 1e-12)).mean()))
    return {"loss": loss / tokens, "accuracy": right / tokens, "expected": float(means[0]), "soft_bleu": soft_bleu}


def scores(training: Training) -> dict[str, dict[str, float]]:
    return {name: measured(training.averaged, training.dev_parts(name)) for name in training.names}


# ---------------------------------------------------------------------------------------------- the truth


def gains(training: Training, mixture: Mixture, horizon: int, more: float, repeats: int) -> dict[str, Any]:
    """{measure: [repeat][dev set][dataset]}: what more of a dataset adds. A smaller loss is a gain."""
    here = training.copied()
    found = {measure: np.zeros((repeats, len(training.names), len(training.names))) for measure in MEASURES}
    for repeat in range(repeats):
        found_scores = []
        for raised in (None, *training.names):
            shares = {name: (1 - more) * p for name, p in mixture.probabilities.items()}
            if raised is not None:
                shares[raised] += more
            seed = 1000 * (repeat + 1) + training.step  # the same draws and dropout, as far as the shares are the same
            torch.manual_seed(seed)
            training.go(training.stream(mixture if raised is None else Mixture(shares), seed), horizon)
            found_scores.append(scores(training))
            training.restore(here)
        for i, after in enumerate(found_scores[1:]):
            for k, name in enumerate(training.names):
                for measure in MEASURES:
                    change = after[name][measure] - found_scores[0][name][measure]
                    found[measure][repeat, k, i] = -change if measure == "loss" else change
    return {measure: table.tolist() for measure, table in found.items()}


# ---------------------------------------------------------------------------------------------- objectives


def correct_log_p(logits: Tensor, part: Part) -> Tensor:
    return F.log_softmax(logits, -1).gather(1, part.right[:, None])[:, 0]


def at_fitted_scale(logits: Tensor, part: Part, weights: Tensor) -> Tensor:
    """The weighted loss of scale x logits at the scale that makes it smallest: mere confidence does not move it."""
    low, high = -1.5, 1.5  # logarithms of the scale
    with torch.no_grad():
        for _ in range(18):  # thirds: the loss is convex in the scale
            one, two = low + (high - low) / 3, high - (high - low) / 3
            losses = [-(weights * correct_log_p(math.exp(x) * logits, part)).sum() for x in (one, two)]
            low, high = (low, two) if losses[0] < losses[1] else (one, high)
    return -(weights * correct_log_p(math.exp((low + high) / 2) * logits, part)).mean()


def expected_weights(logits: Tensor, part: Part) -> Tensor:
    """What d log p of each token weighs in the gradient of the mean of p. [R]"""
    return correct_log_p(logits, part).detach().exp()


def soft_bleu_weights(logits: Tensor, part: Part) -> Tensor:
    """What d log p of each token weighs in the gradient of log soft BLEU. [R]"""
    log_p = correct_log_p(logits, part).detach().requires_grad_()
    means = [p.sum() / there.sum() for p, there in windows(part, log_p)]
    value = torch.stack([mean.clamp_min(1e-12).log() for mean in means]).mean()
    return torch.autograd.grad(value, log_p)[0] * len(log_p)


def objectives(smoothing: float) -> dict[str, Objective]:
    return {
        "loss": lambda z, b: F.cross_entropy(z, b.right, label_smoothing=smoothing),
        "expected accuracy": lambda z, b: -correct_log_p(z, b).exp().mean(),
        "expected accuracy, fitted": lambda z, b: at_fitted_scale(z, b, expected_weights(z, b)),
        "soft BLEU, fitted": lambda z, b: at_fitted_scale(z, b, soft_bleu_weights(z, b)),
    }


# ---------------------------------------------------------------------------------------------- signals


def gradient(model: nn.Module, parts: list[Part], objective: Objective) -> Tensor:
    """Of the mean over the target tokens of the parts, as one vector."""
    tokens = sum(len(part.right) for part in parts)
    parameters = list(model.parameters())
    total = torch.zeros(sum(p.numel() for p in parameters))
    for part in parts:
        value = objective(part.logits(model), part) * (len(part.right) / tokens)
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


def gradients(training: Training, place: str, role: str, objective: Objective, tokens: int, key: int) -> Tensor:
    """[datasets or dev sets, P], at the raw or the averaged weights; dropout is on for datasets, as in training."""
    model = training.model if place == "raw" else training.averaged
    draw = torch.Generator().manual_seed(key + (role == "dev"))
    torch.manual_seed(key)
    model.train(role == "train")
    found = [gradient(model, training.probe(role, name, tokens, draw), objective) for name in training.names]
    model.train()
    return torch.stack(found)


def signals(training: Training, mixture: Mixture, tokens: int, redraws: int) -> dict[str, list[list[float]]]:
    """{signal: [redraw][dataset]}"""
    found: dict[str, list[list[float]]] = {}
    shares = torch.tensor([mixture[name] for name in training.names])
    everything = objectives(training.smoothing)
    adam, inner = training.adam(), training.is_inner()
    for redraw in range(redraws):
        key = 10_000 * training.step + 10 * redraw
        for place in ("raw", "averaged"):
            train = gradients(training, place, "train", everything["loss"], tokens, key)
            for objective, function in everything.items():
                dev = gradients(training, place, "dev", function, tokens, key)
                for part, where in (("all", slice(None)), ("without embeddings", inner)):
                    for form, values in forms(dev[:, where], train[:, where], shares, adam[where]).items():
                        name = f"{objective} | {form} | {place} | {part}"
                        found.setdefault(name, []).append(values.tolist())
    sizes = [-math.log(size) for size in training.sizes.values()]
    return found | {"size: the smaller, the better": [sizes] * redraws}


def used(training: Training, tokens: int, redraw: int) -> Tensor:
    """The signal of the default alone: mean of cosines, of losses, at the raw weights. [n]"""
    loss, key = objectives(training.smoothing)["loss"], 10_000 * training.step + 10 * redraw
    train, dev = (gradients(training, "raw", role, loss, tokens, key) for role in ("train", "dev"))
    return (F.normalize(train, dim=1) @ F.normalize(dev, dim=1).T).mean(1)


def neighbours(training: Training, stream: Any, step: int, tokens: int, redraws: int) -> dict[str, list[list[float]]]:
    """Go on to a moment; on the way the signal of the default, averaged over it and two moments just before it; and
    there the same with less and with more text.
    """
    on_the_way = []
    for back in (20, 10, 0):
        training.go(stream, step - back - training.step)
        kept = torch.get_rng_state()
        on_the_way.append(torch.stack([used(training, tokens, redraw) for redraw in range(redraws)]))
        torch.set_rng_state(kept)
    name = "loss | mean of cosines{} | raw | all"
    found = {name.format(", three moments"): torch.stack(on_the_way).mean(0).tolist()}
    for size in (tokens // 4, tokens * 4):
        kept = torch.get_rng_state()
        drawn = [used(training, size, redraw).tolist() for redraw in range(redraws)]
        torch.set_rng_state(kept)
        found[name.format(f", {size:,} tokens")] = drawn
    return found


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
    parser.add_argument("task", type=Path, help="a recipe, or a regime of experiments/domains.py")
    parser.add_argument("--seed", type=int, default=1)
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
    torch.set_num_threads(1)
    training = training_of(given)
    mixture = Mixture.temperature(training.sizes, given.temperature)
    stream = training.stream(mixture, given.seed)
    asked = {key: str(value) for key, value in vars(given).items() if key not in ("json", "moments", "rows")}
    results: dict[str, Any] = {"asked": asked, "names": training.names, "moments": []}
    if given.json.exists():
        results = json.loads(given.json.read_text(encoding="utf-8"))
        if results["asked"] != asked:
            raise SystemExit(f"{given.json}: is of other options: {results['asked']}.")
    done = {moment["step"] for moment in results["moments"]}
    torch.manual_seed(given.seed)
    for step in map(int, given.moments.split(",")):
        if step in done:
            training.go(stream, step - training.step)
            continue
        began = time.perf_counter()
        found = neighbours(training, stream, step, given.probe_tokens, given.redraws)
        random = torch.get_rng_state()
        found = signals(training, mixture, given.probe_tokens, given.redraws) | found
        truth = gains(training, mixture, given.horizon, given.more, given.repeats)
        torch.set_rng_state(random)
        seconds = time.perf_counter() - began
        results["moments"].append({"step": step, "seconds": seconds, "gains": truth, "signals": found})
        given.json.write_text(json.dumps(rounded(results)) + "\n", encoding="utf-8")
        show(results["moments"][-1:], training.names, 8)
    print(f"\n==== {len(results['moments'])} moments")
    show(results["moments"], training.names, given.rows)


def training_of(given: argparse.Namespace) -> Training:
    if given.task.suffix == ".toml":
        return Translation(load_config(given.task, [*given.set, f"train.seed={given.seed}"]), given.average)
    sys.path.append(str(Path(__file__).parent.parent / "experiments"))  # the language model is there
    from gains_domains import Domains

    return Domains(str(given.task), given.average, given.seed)


def rounded(value: Any) -> Any:
    """Six digits are more than are known, and small files."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
