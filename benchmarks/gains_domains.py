"""The language model of experiments/domains.py as a training of marginal_gains.py."""

from collections.abc import Iterator

import domains
import torch
from domains_text import REGIMES, read_corpus
from gains_tasks import Part, Training
from torch import Tensor, nn

from multidds import Mixture, MixtureSampler


class Domains(Training):
    embeddings = ("bytes", "before", "places")

    def __init__(self, regime: str, average: int, seed: int) -> None:
        self.config = domains.Config(regime, "temperature-3", seed, domains.STEPS[regime])
        corpus = read_corpus(REGIMES[regime])
        self.data = {"train": corpus.train, "dev": corpus.dev}
        self.sizes = {name: len(windows) for name, windows in corpus.train.items()}
        self.names = list(self.sizes)
        torch.manual_seed(seed)
        self.model = domains.LanguageModel(self.config)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=self.config.lr, betas=(0.9, 0.98), weight_decay=0.01
        )
        self._windows = torch.cat([corpus.train[name] for name in self.names])
        super().__init__(average)

    def stream(self, mixture: Mixture, seed: int) -> Iterator[list[int]]:
        return iter(MixtureSampler(self.sizes, mixture, batch_size=self.config.batch, seed=seed))

    def go(self, stream: Iterator[list[int]], steps: int) -> None:
        for _ in range(steps):
            for group in self.optimizer.param_groups:
                group["lr"] = self.config.lr * domains.rate(self.config, self.step)
            domains.loss(self.model, self._windows[next(stream)]).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.stepped()

    def dev_parts(self, name: str) -> Iterator[Part]:
        return map(self._part, self.data["dev"][name].split(64))

    def probe(self, role: str, name: str, tokens: int, draw: torch.Generator) -> list[Part]:
        windows = self.data[role][name]
        chosen = torch.randint(len(windows), (max(1, tokens // (windows.shape[1] - 1)),), generator=draw)
        return [self._part(windows[chosen])]

    @staticmethod
    def _part(windows: Tensor) -> Part:
        ids = windows.long()
        return Part(
            lambda model: model(ids[:, :-1]).flatten(0, 1),
            ids[:, 1:].flatten(),
            lambda values: values.view(len(ids), -1),
        )
