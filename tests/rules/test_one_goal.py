"""One goal said in three ways, on real text: all lead to one mixture."""

from dataclasses import replace

import pytest
import torch
from domains import Config, LanguageModel, loss
from domains_text import read_corpus

from multidds import Balancer, Mixture, MixtureSampler, Probes, batches_of

SIZES = {"cpp": 600, "python": 400, "docstrings": 300, "manual": 40}
GOAL = "manual"
CONFIG = replace(Config("goal", "learned", 1, 220), layers=1, width=48, heads=2, batch=8, probe=8)


def learned(corpus, dev, priority):
    """Returns the mixture after twenty updates."""
    torch.manual_seed(1)
    model = LanguageModel(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    sizes = {name: len(text) for name, text in corpus.train.items()}
    mixture = Mixture.proportional(sizes)
    balancer = Balancer(
        mixture,
        model,
        loss,
        train={name: batches_of(text, CONFIG.probe) for name, text in corpus.train.items()},
        dev={name: batches_of(text, CONFIG.probe) for name, text in dev.items()},
        steps=CONFIG.steps,
        examples_per_step=CONFIG.batch,
        every=CONFIG.steps // 20,
        priority=priority,
        probes=Probes(batches=8),
        seed=1,
    )
    windows = torch.cat([corpus.train[name] for name in sizes])
    sampler = MixtureSampler(sizes, mixture, batch_size=CONFIG.batch, seed=1)
    for _, indices in zip(range(CONFIG.steps), sampler, strict=False):
        loss(model, windows[indices]).backward()
        optimizer.step()
        optimizer.zero_grad()
        balancer.step()
    assert len(balancer.history) == 20
    assert balancer.history[-1].signal > 0.7  # names alone would say different mixtures
    return mixture.probabilities


@pytest.mark.slow
@pytest.mark.claim("The method", "one goal said in three ways gives one mixture")
def test_three_ways_to_say_one_goal_lead_to_one_mixture():
    """One dev set; all dev sets, of which one has a weight; the same dev set under a name of its own."""
    corpus = read_corpus(SIZES)
    goal = corpus.dev[GOAL]
    ways = [
        learned(corpus, {GOAL: goal}, "regular"),
        learned(corpus, corpus.dev, {GOAL: 1.0}),
        learned(corpus, {"prose": goal}, "regular"),
    ]
    for i, one in enumerate(ways):
        for other in ways[:i]:
            assert sum(abs(one[name] - other[name]) for name in SIZES) / 2 < 0.1, ways
        assert one[GOAL] * CONFIG.steps * CONFIG.batch / SIZES[GOAL] <= 16 + 1e-6
