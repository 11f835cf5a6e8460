"""A byte-level causal language model over eight very unequal domains: static, scheduled and learned mixtures compared.

One small transformer, one core, half a minute per run. Every run becomes a line of results.jsonl, with scores, curves,
config, versions and seconds. There is no text and no path in it. Existing runs are skipped.

    python experiments/study/domains.py --regime goal --method temperature-5 learned --seed 1 2 3
"""

import argparse
import math
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from domains_text import ALIKE, BY_HAND, ELSEWHERE, GOALS, REGIMES, RENAMED, WINDOW, Corpus, read_corpus
from results_file import add_run, read_runs
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import multidds
from multidds import Balancer, Budget, Mixture, MixtureSampler, Probes, batches_of
from multidds.mixture import Replay
from multidds.rules import Cosine, RelevancePlan, Rule, Scorer

sys.path.append(str(Path(__file__).resolve().parents[1] / "rivals"))
from rivals import Doge, MirrorAscent, OnlineDataMixing, constant

RESULTS = Path(__file__).with_name("results.jsonl")
STEPS = dict.fromkeys(REGIMES, 800)  # 1.5, 1 and 10 passes over all data; less than one in the regimes with a goal
MAX_PASSES = 16  # of UniMax: about what repeated text is worth
STATIC: dict[str, float] = {  # temperatures
    "proportional": 1,
    "temperature-3": 3,
    "temperature-5": 5,
    "temperature-10": 10,
    "uniform": math.inf,
}
SCHEDULED = ("proportional-to-uniform", "cooldown", "reverse-cooldown")
_LR = 0.5  # of the paper's rule, as in experiments/demo/catalogues.toml
RULES: dict[str, Rule] = {  # the paper's and other papers'
    "multidds-s": Scorer(lr=_LR),
    "multidds": Scorer(Cosine(ahead=0.001), lr=_LR),
    "constant": Scorer(constant, lr=_LR),  # the control: equal rewards only drift from the prior to uniform
    "doge": Doge(),
    "odm": OnlineDataMixing(),
    "mirror-ascent": MirrorAscent(),
}
STEP_SIZES: dict[str, tuple[str, tuple[float, ...]]] = {  # {rule: (setting, other values of it)}: METHOD@VALUE
    "multidds-s": ("lr", (0.2, 1.0)),
    "multidds": ("lr", (0.2, 1.0)),
    "doge": ("lr", (0.1, 2.0)),
    "odm": ("smoothing", (0.5, 0.98)),
    "mirror-ascent": ("lr", (0.1, 1.0)),
}
RULES |= {
    f"{name}@{value:g}": replace(RULES[name], **{setting: value})  # type: ignore[type-var]
    for name, (setting, values) in STEP_SIZES.items()
    for value in values
}
# The default, with 20 updates; as many as the default budget buys; the first with the probes of other datasets.
OURS = ("learned", "learned-in-budget", "shuffled")
HAND = tuple(f"by-hand-{number}" for number in range(1, 7))
METHODS = (*STATIC, "unimax", "planned", *HAND, *SCHEDULED, *RULES, *OURS)
_LEFT_OUT = 1e-4  # share of what a mixture by hand leaves out


@dataclass(frozen=True)
class Config:
    regime: str
    method: str
    seed: int
    steps: int
    lr: float = 4e-3  # of 0.004 and 0.008 the better for temperature 5 (dev loss 1.913 and 1.924, under-trained)
    batch: int = 8  # windows
    layers: int = 2
    width: int = 96
    heads: int = 3
    dropout: float = 0.1
    warmup: int = 50
    average: float = 0.98  # decay of the averaged weights, which are the ones that are scored
    updates: int = 20
    probe: int = 8  # windows of a probe batch; the default has two of each set
    at_most: float = 0.15  # share of the training that probes of learned-in-budget may take
    curve: int = 4  # points


TINY = {"batch": 4, "layers": 1, "width": 8, "heads": 2, "warmup": 5, "updates": 2, "probe": 2, "curve": 2}


# --------------------------------------------------------------------------------------------------- model


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:  # [batch, length, width]
        q, k, v = self.qkv(self.norms[0](x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + nn.functional.dropout(self.out(attended), self.dropout, self.training)
        return x + nn.functional.dropout(self.inner(self.norms[1](x)), self.dropout, self.training)


class LanguageModel(nn.Module):
    """Bytes are their own vocabulary, and the output layer is the embedding.

    A place starts with its byte and the three before it: in a short training attention learns too late to look there.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, config.width)
        self.before = nn.ModuleList(nn.Embedding(256, config.width) for _ in range(3))
        self.places = nn.Embedding(WINDOW, config.width)
        self.blocks = nn.Sequential(*(Block(config.width, config.heads, config.dropout) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.width)
        for embedding in (self.bytes, self.places, *self.before):
            nn.init.normal_(embedding.weight, std=config.width**-0.5)  # logits of about 1 at the start

    def forward(self, ids: Tensor) -> Tensor:  # [batch, length] -> [batch, length, 256]
        x = self.bytes(ids) + self.places.weight[: ids.shape[1]]
        for back, embedding in enumerate(self.before, start=1):
            x = x + embedding(nn.functional.pad(ids[:, :-back], (back, 0)))
        logits: Tensor = self.norm(self.blocks(x)) @ self.bytes.weight.mT
        return logits


def loss(model: nn.Module, windows: Tensor) -> Tensor:
    """Nats per byte."""
    ids = windows.long()  # [batch, WINDOW + 1]
    return nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


@torch.no_grad()
def scores(model: nn.Module, texts: Mapping[str, Tensor]) -> dict[str, dict[str, float]]:
    """{domain: loss in nats per byte, share of right guesses, mean probability of the right byte}."""
    model.eval()
    found = {}
    for domain, windows in texts.items():
        total = torch.zeros(3, dtype=torch.float64)
        for part in windows.long().split(64):
            logs, right = model(part[:, :-1]).log_softmax(-1), part[:, 1:]
            of_right = logs.gather(-1, right.unsqueeze(-1)).double()
            total += torch.stack([-of_right.sum(), (logs.argmax(-1) == right).sum(), of_right.exp().sum()])
        means = (total / (len(windows) * WINDOW)).tolist()
        found[domain] = dict(zip(("loss", "accuracy", "expected_accuracy"), means, strict=True))
    return found


# -------------------------------------------------------------------------------------------------- methods


def prior(config: Config, sizes: Mapping[str, int]) -> Mixture:
    """The mixture that a run starts with."""
    if config.method == "unimax":
        return Mixture.unimax(sizes, budget=config.steps * config.batch, max_passes=MAX_PASSES)
    if config.method == "planned":
        return Mixture.planned(sizes, draws=config.steps * config.batch)
    if config.method in HAND:
        by_hand = BY_HAND[config.regime][HAND.index(config.method)]
        shares = {name: by_hand.get(name, _LEFT_OUT * sum(by_hand.values())) for name in sizes}
        return Mixture({name: share / sum(shares.values()) for name, share in shares.items()}, sizes)
    return Mixture.temperature(sizes, {**STATIC, "cooldown": 5}.get(config.method, 1))


def schedule(config: Config, sizes: Mapping[str, int]) -> list[tuple[int, dict[str, float]]]:
    """The history of a scheduled method; empty for others."""
    half = config.steps // 2
    proportional, five = Mixture.proportional(sizes).probabilities, Mixture.temperature(sizes, 5).probabilities
    if config.method == "cooldown":
        return [(0, five), (half, proportional)]
    if config.method == "reverse-cooldown":
        return [(0, proportional), (half, five)]
    if config.method != "proportional-to-uniform":
        return []
    steps = sorted({half * i // 50 for i in range(51)})
    return [(k, {name: p + (1 / len(sizes) - p) * k / half for name, p in proportional.items()}) for k in steps]


def balancer(config: Config, mixture: Mixture, model: nn.Module, corpus: Corpus) -> Balancer:
    """model: where it probes."""
    averaged = config.method in OURS
    rule = RelevancePlan() if averaged else RULES[config.method]
    in_budget = config.method == "learned-in-budget"
    probe = config.batch // 2 if in_budget else config.probe
    probed = dict(corpus.train)
    if config.method == "shuffled":  # every dataset is rewarded for what another one does
        names = sorted(probed)
        random.Random(config.seed).shuffle(names)
        probed = {name: corpus.train[names[i - 1]] for i, name in enumerate(names)}
    return Balancer(
        mixture,
        model,
        loss,
        train={name: batches_of(probed[name], probe) for name in corpus.train},
        dev={name: batches_of(windows, probe) for name, windows in corpus.dev.items()},
        every=Budget(at_most=config.at_most) if in_budget else max(1, config.steps // config.updates),
        steps=config.steps,
        examples_per_step=config.batch,
        rule=rule,
        probes=Probes(
            batches=(None if in_budget else 2) if averaged else 1, average=0
        ),  # the model is an average already, where one is wanted
        seed=config.seed,
    )


# ------------------------------------------------------------------------------------------------------ run


class Clock:
    """Seconds of the processor by what they were spent on: other processes do not count, where there is one thread."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.process_time()

    def charge(self, what: str) -> None:
        now = time.process_time()
        self.seconds[what] = self.seconds.get(what, 0.0) + now - self._last
        self._last = now


def rate(config: Config, step: int) -> float:
    """Of the first step on: a linear rise, then half a cosine down to a tenth."""
    if step < config.warmup:
        return (step + 1) / config.warmup
    done = (step - config.warmup) / max(1, config.steps - config.warmup)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


def run(config: Config, corpus: Corpus, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Train once. Everything that is written about it."""
    torch.manual_seed(config.seed)
    model = LanguageModel(config)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(config.average))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, betas=(0.9, 0.98), weight_decay=0.01)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(config, step))
    sizes = {name: len(windows) for name, windows in corpus.train.items()}
    mixture = prior(config, sizes)
    history = schedule(config, sizes)
    learned = config.method in (*RULES, *OURS)
    place = averaged.module if config.method in OURS else model
    mover = balancer(config, mixture, place, corpus) if learned else Replay(mixture, history)
    sampler = MixtureSampler(sizes, mixture, batch_size=config.batch, seed=config.seed)
    windows = torch.cat([corpus.train[name] for name in sizes])
    marks = {config.steps * i // config.curve for i in range(1, config.curve + 1)}
    updates, curve, clock = [], [], Clock()
    for step, indices in zip(range(1, config.steps + 1), sampler, strict=False):
        model.train()
        loss(model, windows[indices]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rates.step()
        optimizer.zero_grad()
        averaged.update_parameters(model)
        clock.charge("steps")
        update = mover.step()
        clock.charge("updates")
        if update is not None and learned:
            updates.append(
                {
                    "step": step,
                    "mixture": update.mixture,
                    "rewards": update.rewards,
                    "noise": update.noise,
                    "signal": update.signal,
                }
            )
        if step in marks:
            dev = scores(averaged, corpus.dev)
            curve.append({"step": step, "mixture": mixture.probabilities, "passes": sampler.passes, "dev": dev})
            mean = sum(one["loss"] for one in dev.values()) / len(dev)
            say(f"{config.regime} {config.method} {config.seed}: step {step}, mean dev loss {mean:.4f}")
            clock.charge("evaluation")
    test = scores(averaged, corpus.test)
    clock.charge("evaluation")
    return {
        "config": asdict(config) | {"parameters": sum(p.numel() for p in model.parameters())},
        "sizes": sizes,
        "corpus": corpus.digest,
        "versions": versions(),
        "seconds": clock.seconds,
        "dev": curve[-1]["dev"],
        "test": test,
        "curve": curve,
        "updates": updates,
    }


def with_goal(corpus: Corpus, regime: str) -> Corpus:
    """Returns the corpus with the dev and test sets that count in a regime, and the training text that it has."""
    if regime == "alike":
        ((_, text),) = corpus.train.items()
        return replace(corpus, train={f"part-{i + 1}": text[i::ALIKE] for i in range(ALIKE)})
    if regime not in GOALS:
        return corpus
    goal = GOALS[regime]
    train = {name: text for name, text in corpus.train.items() if regime not in ELSEWHERE or name != goal}
    name = RENAMED.get(regime, goal)
    return replace(corpus, train=train, dev={name: corpus.dev[goal]}, test={name: corpus.test[goal]})


def commit(folder: Path) -> str:
    """Of the checkout that a folder is in."""
    asked = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    found = subprocess.run(asked, cwd=folder, capture_output=True, text=True, check=False).stdout
    return found.strip() or "unknown"


def versions() -> dict[str, str]:
    return {
        "multidds": multidds.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit(Path(__file__).parent),
    }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file to add lines to")
    parser.add_argument("--regime", nargs="+", choices=list(REGIMES), default=list(REGIMES))
    parser.add_argument("--method", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seed", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, help="instead of the regime's own number")
    parser.add_argument("--at-most", type=float, default=Config.at_most, help="share of the training for probes")
    parser.add_argument("--lr", type=float, default=Config.lr)
    parser.add_argument("--dropout", type=float, default=Config.dropout)
    parser.add_argument("--tiny", action="store_true", help="a tiny model and little text, to check that it runs")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    there = read_runs(given.results)
    for seed in given.seed:  # one seed of everything first
        for regime in given.regime:
            corpus = None
            for method in given.method:
                steps = given.steps or STEPS[regime]
                name = method if steps == STEPS[regime] else f"{method}-{steps}-steps"
                if given.at_most != Config.at_most:
                    name += f"-at-{given.at_most:g}"
                if (regime, name, seed) in there or (
                    method in HAND and HAND.index(method) >= len(BY_HAND.get(regime, []))
                ):
                    continue
                if corpus is None:
                    sizes = REGIMES[regime]
                    corpus = read_corpus(dict.fromkeys(sizes, 9), 2, 3) if given.tiny else read_corpus(sizes)
                    corpus = with_goal(corpus, regime)
                config = Config(regime, method, seed, steps, given.lr, dropout=given.dropout, at_most=given.at_most)
                if given.tiny:
                    config = replace(config, **TINY)
                add_run(given.results, (regime, name, seed), run(config, corpus))


if __name__ == "__main__":
    main(sys.argv[1:])
