"""`[examples]`: how much single sentence pairs count in a training, and what is remembered of that.

A step multiplies the losses of target tokens by the weights of their sentence pairs, relative over all processes.
Weights are learned (`ExampleScorer`: DDS), or 0 for the highest losses of each batch, which is the usual remedy.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from multidds import ExampleScorer

from .batches import Batch
from .config import Config
from .pair_numbers import PairNumbers, per_sentence, sentence_of
from .probes import DevPart, dev_batches
from .processes import Processes
from .records import ExampleFacts, Scored
from .sentences import Sentences

EDGES = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)  # between the bins of weights
SHOWN = 8  # sentence pairs of the highest and of the lowest weights, in a record
_LARGEST = 1e6
_LR, _FADING, _INNER_STEPS = 0.01, 0.01, 20  # of the scorer's network at each update; _FADING: its weight decay

Losses = Callable[[nn.Module, Batch], Tensor]  # of target tokens: [R]


def make_examples(
    config: Config,
    model: nn.Module,
    losses: Losses,
    data: Mapping[str, Sentences],
    dev: Mapping[str, Sentences],
    vocabulary: Mapping[str, Sequence[str]],
    processes: Processes,
) -> "Examples | None":
    """None where all sentence pairs count the same. losses: of the target tokens of a batch, as in training."""
    if config.examples.method == "none":
        return None
    return Examples(config, model, losses, PairNumbers(data, vocabulary), dev, processes)


class Examples:
    """The weights of the sentence pairs of a training. All processes call the same methods in the same order."""

    def __init__(
        self,
        config: Config,
        model: nn.Module,
        losses: Losses,
        numbers: PairNumbers,
        dev: Mapping[str, Sentences],
        processes: Processes,
    ) -> None:
        self._settings, self._numbers, self._processes = config.examples, numbers, processes
        self._losses = losses
        self._weights = {name: np.full(n, -1, np.float32) for name, n in numbers.sizes.items()}  # given last; -1: never
        self.scorer = None
        if self._settings.method == "dds":
            self.scorer = self._scorer(config, model, dev)
        self._skipped: str | None = None  # why the last update changed nothing
        self._begin()

    def _scorer(self, config: Config, model: nn.Module, dev: Mapping[str, Sentences]) -> ExampleScorer:
        settings = config.examples
        self._params = _parameters(model, settings.parameters)
        return ExampleScorer(
            None,
            model,
            self._sentence_losses,
            dev={"dev": dev_batches(config, dev)},
            every=settings.every,
            optimizer=partial(torch.optim.Adam, lr=_LR, weight_decay=_FADING),
            features=self._rows,
            own_loss=False,
            dev_loss=self.dev_loss,
            decay=settings.decay,
            replay=settings.replay,
            inner_steps=_INNER_STEPS,
            params=self._params,
            seed=config.train.seed,
        )

    # ------------------------------------------------------------------------------------------ what the scorer sees

    def _rows(self, batches: list[Batch]) -> Tensor:
        return torch.cat([self._numbers.rows(batch) for batch in batches])

    def _sentence_losses(self, model: nn.Module, batches: list[Batch]) -> Tensor:
        """Per target token. # [B]"""
        return torch.cat([per_sentence(batch, self._losses(model, batch)) for batch in batches])

    def dev_loss(self, model: nn.Module, parts: list[DevPart]) -> Tensor:
        """The mean loss of target tokens; its gradient less `contrast` times that of the loss behind other sources. []

        The difference is what only right pairs teach: wrong ones teach the target language, too.
        """
        total = torch.zeros(())
        for own, shuffled in parts:
            total = total + self._losses(model, own).sum()
            if shuffled is not None:
                other = self._losses(model, shuffled).sum()
                total = total - self._settings.contrast * (other - other.detach())
        return total / sum(own.tokens for own, _ in parts)

    # ------------------------------------------------------------------------------------------ a step

    def look(self, batches: list[Batch], step: int) -> None:
        """After `step` steps, if an update is due: learn from what the next one is about to train on."""
        if self.scorer is not None and step and step % self._settings.every == 0:
            self._skipped = self.scorer.update(batches).skipped

    def _begin(self) -> None:
        """Of a step: sentence pairs and their weights; weighted tokens."""
        self._seen: list[tuple[tuple[tuple[str, int], ...], Tensor]] = []
        self._weighted_tokens = 0.0

    def weighted(self, batch: Batch, token_losses: Tensor) -> Tensor:
        """The sum of the losses of a batch, each times its weight; `settle` makes the mean weight 1. []"""
        weights = self._weights_of(batch, token_losses.detach())
        self._seen.append((batch.origins, weights.cpu()))
        of_tokens = weights[sentence_of(batch).to(weights.device)]
        self._weighted_tokens += float(of_tokens.sum())
        return (of_tokens.to(token_losses.dtype) * token_losses).sum()

    def _weights_of(self, batch: Batch, token_losses: Tensor) -> Tensor:
        if self.scorer is None:
            means = per_sentence(batch, token_losses)
            return (means <= means.quantile(1 - self._settings.drop)).double()
        return self.scorer.trust([batch]).double() ** self._settings.sharpness

    def settle(self, parameters: Iterable[nn.Parameter], tokens: int) -> None:
        """After the backward passes of a step: gradients as if the mean weight of its `tokens` target tokens were 1."""
        everyone = self._processes.gathered((self._seen, self._weighted_tokens))
        scale = min(tokens / max(math.fsum(total for _, total in everyone), 1e-300), _LARGEST)
        gradients = [p.grad for p in parameters if p.grad is not None]
        torch._foreach_mul_(gradients, scale)
        for origins, weights in (part for parts, _ in everyone for part in parts):
            for (name, i), weight in zip(origins, weights.tolist(), strict=True):
                self._weights[name][i] = weight * scale
        self._begin()

    # ------------------------------------------------------------------------------------------ records, states

    def record(self, step: int) -> Scored:
        """What the weights are now, of the sentence pairs seen so far, each by its last one."""
        seen = {name: w[w >= 0] for name, w in self._weights.items()}
        bins = {name: np.digitize(w, EDGES) for name, w in seen.items()}
        ranked = self._ranked()
        return Scored(
            step=step,
            edges=list(EDGES),
            histogram={name: np.bincount(b, minlength=len(EDGES) + 1).tolist() for name, b in bins.items()},
            weight={name: float(w.mean()) for name, w in seen.items() if len(w)},
            highest=[self._facts(*example) for example in reversed(ranked[-SHOWN:])],
            lowest=[self._facts(*example) for example in ranked[:SHOWN]],
            skipped=self._skipped,
        )

    def _ranked(self) -> list[tuple[str, int]]:
        """The sentence pairs of the lowest and of the highest weights, the lowest first; ties by dataset and number."""
        found = []
        for name, weights in self._weights.items():
            seen = np.flatnonzero(weights >= 0)
            order = seen[np.argsort(weights[seen], kind="stable")]
            ends = order if len(order) <= 2 * SHOWN else np.concatenate([order[:SHOWN], order[-SHOWN:]])
            found += [(float(weights[i]), name, int(i)) for i in ends]
        return [(name, i) for _, name, i in sorted(found)]

    def _facts(self, name: str, i: int) -> ExampleFacts:
        source, target = self._numbers.text(name, i)
        weight = float(self._weights[name][i])
        return ExampleFacts(dataset=name, number=i, weight=weight, source=source, target=target)

    def state_dict(self) -> dict[str, Any]:
        """Plain values, and under "tensors" what is not."""
        tensors = {f"weights.{name}": torch.from_numpy(w.copy()) for name, w in self._weights.items()}
        scorer = None if self.scorer is None else self.scorer.state_dict()
        if scorer is not None:
            tensors |= {f"scorer.{key}": tensor for key, tensor in scorer.pop("tensors").items()}
        return {"scorer": scorer, "skipped": self._skipped, "tensors": tensors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        parts: dict[str, dict[str, Tensor]] = {"weights": {}, "scorer": {}}
        for name, tensor in state["tensors"].items():
            kind, _, key = name.partition(".")
            parts[kind][key] = tensor
        for name, kept in parts["weights"].items():
            if name in self._weights and len(kept) == len(self._weights[name]):  # else the data have changed
                self._weights[name] = kept.numpy().copy()
        self._skipped = state["skipped"]
        if self.scorer is not None:
            like = {f"direction.{place}": p for place, p in enumerate(self._params)}
            self.scorer.load_state_dict({**state["scorer"], "tensors": _padded(parts["scorer"], like)})


def _padded(tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """With zeros at their ends as large as those like them: for a vocabulary that has grown."""
    found = dict(tensors)
    for key in found.keys() & like.keys():
        more = [(0, wanted - size) for size, wanted in zip(found[key].shape, like[key].shape, strict=True)]
        found[key] = nn.functional.pad(found[key], [count for both in reversed(more) for count in both])
    return found


def _parameters(model: nn.Module, which: str) -> list[nn.Parameter]:
    """ "source": what reads the source. The rest of the model learns the target language, from wrong targets too."""
    if which == "all":
        return list(model.parameters())
    reads = ("source_embedding", "encoder", "cross")
    return [p for name, p in model.named_parameters() if any(word in name for word in reads)]
