"""`multidds train --dry-run`: the size, the cost and the passes over each language pair of a training to come."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from rich.console import Console

from multidds import Mixture
from multidds._base.terminal import say
from multidds.mixture import MixtureTable

from ..batches.sentences import Sentences
from ..config.config import Config
from ..model.transformer import make_model
from ..prepare import Prepared
from ..runs.earlier_run import earlier_run
from ..training.balancing import planned_pace, probe_shape
from ..training.schedule import planned_sentences, planned_steps
from ..training.start_mixture import plan_weights, prior_of


def recipe_table(config: Config) -> MixtureTable:
    """Returns share and passes of each language pair under several mixtures, that of the recipe first."""
    prepared = Prepared(config)
    return _table(config, prepared, {name: Sentences(prepared, name, "train") for name in config.data.names})


def _table(config: Config, prepared: Prepared, data: Mapping[str, Sentences]) -> MixtureTable:
    sizes = {name: len(sentences) for name, sentences in data.items()}
    table = Mixture.table(sizes, planned_sentences(config, data), plan_weights(config))
    start = prior_of(config, data, earlier_run(config, prepared)).probabilities
    return replace(table, shares={"this recipe": start, **table.shares})


def describe(config: Config, console: Console, whole_config: bool = False) -> None:
    """Prints the table of mixtures, then size and cost, then the whole config if it is wanted."""
    prepared = Prepared(config)
    data = {name: Sentences(prepared, name, "train") for name in config.data.names}
    for line in str(_table(config, prepared, data)).split("\n"):
        say(line, console)
    steps = planned_steps(config, data)
    settings = config.mixture
    with torch.device("meta"):  # counted, not made
        model = make_model(config, prepared.vocabulary)
    parameters = sum(p.numel() for p in model.parameters())
    tokens = sum(float(sentences.all_tokens) for sentences in data.values())
    pairs = sum(len(sentences) for sentences in data.values())
    console.print(f"{config.data.direction}, {parameters:,} parameters, {pairs:,} training pairs")
    console.print(
        f"{tokens / config.train.tokens:,.0f} steps per epoch "
        f"({'one batch' if config.train.accumulate == 1 else f'{config.train.accumulate} batches'} of about "
        f"{config.train.batch_tokens:,} tokens each), {steps:,.0f} in all"
    )
    console.print(f"memory: about {_gigabytes(config, parameters, prepared):.2f} GB (an estimate)")
    if settings.method == "static":
        console.print("the mixture is static: no updates")
    else:
        pace = planned_pace(config, steps)
        when = "at growing distances" if pace.at else f"one every {pace.every:,} steps"
        part = "" if pace.part is None else f", each of {pace.part[0]} language pairs and {pace.part[1]} dev sets"
        console.print(
            f"{pace.updates:,.0f} updates, {when}{part}: {pace.passes} passes over "
            f"{probe_shape(settings)[1]:,} tokens, {pace.share:.1%} of the tokens of training"
        )
    if whole_config:
        console.print_json(config.model_dump_json())


def _gigabytes(config: Config, parameters: int, prepared: Prepared) -> float:
    """Parameters, gradients, Adam's two moments, the vector of an update, an average; activations; logits."""
    layers = config.model.encoder_layers + 1.5 * config.model.decoder_layers
    per_token = layers * (12 * config.model.width + 3 * config.model.inner) + 3 * len(prepared.vocabulary["target"])
    copies = 5 + bool(config.train.average)
    return (parameters * copies + config.train.batch_tokens * per_token) * 4 / 1e9
