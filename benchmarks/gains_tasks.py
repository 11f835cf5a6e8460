"""What marginal_gains.py trains: a run without its surroundings, of the translation application or of another task.

Steps, the average of the weights, copies of all of it, and text as parts, which say what is right where. Nothing here
knows of gains or signals.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from multidds import Mixture
from multidds.nmt.batches.batch import Batch, evaluation_batches
from multidds.nmt.batches.probe_batches import probe_batches
from multidds.nmt.batches.sentences import Sentences
from multidds.nmt.batches.stream import Stream
from multidds.nmt.config.config import Config
from multidds.nmt.model.transformer import make_model
from multidds.nmt.prepare import Prepared
from multidds.nmt.training.length import learning_rate


@dataclass(frozen=True)
class Part:
    """Some text."""

    logits: Callable[[nn.Module], Tensor]  # [R, V]
    right: Tensor  # [R], the tokens that follow
    rows: Callable[[Tensor], Tensor]  # values [R] -> [sentences, length], -inf where a sentence has ended


class Training:
    """What both have in common. `names`, `model` and `optimizer` are the subclass's to make."""

    names: list[str]
    sizes: dict[str, int]
    smoothing: float = 0.0  # of the labels of the training loss
    embeddings: ClassVar[tuple[str, ...]]  # parameters whose names hold one of these words
    model: nn.Module
    optimizer: torch.optim.Adam | torch.optim.AdamW

    def __init__(self, average: int) -> None:
        self.averaged = copy.deepcopy(self.model)
        self.decay = 1 - 1 / average
        self.step = 0

    def stepped(self) -> None:
        """After the gradients of a step have been taken."""
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        decay = min(self.decay, self.step / (self.step + 10))  # the first weights are soon forgotten
        with torch.no_grad():
            for average, parameter in zip(self.averaged.parameters(), self.model.parameters(), strict=True):
                average.lerp_(parameter, 1 - decay)

    def adam(self) -> Tensor:
        """What Adam multiplies each gradient by, all parameters in one row."""
        group = self.optimizer.param_groups[0]
        second = torch.cat([self.optimizer.state[p]["exp_avg_sq"].flatten() for p in self.model.parameters()])
        return 1 / ((second / (1 - group["betas"][1] ** self.step)).sqrt() + group["eps"])

    def is_inner(self) -> Tensor:
        """Which of all parameters in one row are not of an embedding."""
        of_inner = {
            name: not any(word in name for word in self.embeddings) for name, _ in self.model.named_parameters()
        }
        return torch.cat([torch.full((p.numel(),), of_inner[name]) for name, p in self.model.named_parameters()])

    def copied(self) -> dict[str, Any]:
        state = (self.model.state_dict(), self.averaged.state_dict(), self.optimizer.state_dict(), self.step)
        return dict(zip(("model", "averaged", "optimizer", "step"), copy.deepcopy(state), strict=True))

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.averaged.load_state_dict(state["averaged"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.step = state["step"]

    def stream(self, mixture: Mixture, seed: int) -> Any:
        """Where the batches of some steps come from."""
        raise NotImplementedError

    def go(self, stream: Any, steps: int) -> None:
        raise NotImplementedError

    def dev_parts(self, name: str) -> Iterable[Part]:
        """A whole dev set."""
        raise NotImplementedError

    def probe(self, role: str, name: str, tokens: int, draw: torch.Generator) -> list[Part]:
        """About so many tokens of a dataset ("train") or a dev set ("dev")."""
        raise NotImplementedError


class Translation(Training):
    embeddings = ("embedding",)

    def __init__(self, config: Config, average: int) -> None:
        prepared = Prepared(config)
        self.config, self.names = config, list(config.data.names)
        self.data = {role: {name: Sentences(prepared, name, role) for name in self.names} for role in ("train", "dev")}
        self.sizes = {name: len(sentences) for name, sentences in self.data["train"].items()}
        self._dev = {name: list(evaluation_batches(data, 4096)) for name, data in self.data["dev"].items()}
        torch.manual_seed(config.train.seed)
        self.model = make_model(config, prepared.vocabulary)
        settings = config.train
        self.smoothing, betas = settings.label_smoothing, (settings.beta1, settings.beta2)
        self.optimizer = torch.optim.Adam(self.model.parameters(), settings.lr, betas, settings.eps, fused=True)
        super().__init__(average)

    def stream(self, mixture: Mixture, seed: int) -> Stream:
        settings = self.config.train
        return Stream(
            self.data["train"],
            mixture,
            tokens=settings.tokens,
            accumulate=settings.accumulate,
            pool=settings.pool,
            mixing=settings.mixing,
            seed=seed,
        )

    def go(self, stream: Stream, steps: int) -> None:
        settings = self.config.train
        for left in range(steps, 0, -1):
            batches, _, tokens = stream.next(left)
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(settings.lr, settings.warmup, settings.warmup_from, self.step + 1)
            for batch in batches:
                (self.model(batch, settings.label_smoothing) / tokens).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip or math.inf)
            self.stepped()

    def dev_parts(self, name: str) -> Iterator[Part]:
        return map(self._part, self._dev[name])

    def probe(self, role: str, name: str, tokens: int, draw: torch.Generator) -> list[Part]:
        return [self._part(batch) for batch in probe_batches(self.data[role][name], tokens)(draw)]

    @staticmethod
    def _part(batch: Batch) -> Part:
        rows = batch.target_rows

        def padded(values: Tensor) -> Tensor:
            empty = values.new_full((rows.sentences * rows.longest,), -math.inf)
            return empty.index_copy(0, rows.places, values).view(rows.sentences, rows.longest)

        return Part(lambda model: model.logits(batch), batch.target_out, padded)  # type: ignore[operator]
