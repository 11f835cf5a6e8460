"""`multidds train --dry-run`: the size, the cost and the passes over each language pair of a training to come."""

import torch
from rich.console import Console

from multidds import Mixture

from ..batches.sentences import Sentences
from ..common.terminal import escaped, new_table
from ..config.config import Config
from ..model.transformer import make_model
from ..prepare import Prepared
from ..runs.earlier_run import earlier_run
from ..training.length import planned_sentences, planned_steps, probe_passes, probe_share, within_budget
from ..training.start_mixture import prior_of

TEMPERATURES = (1.0, 2.0, 5.0, 10.0)


def describe(config: Config, console: Console) -> None:
    """Prints the config and what follows from it."""
    prepared = Prepared(config)
    data = {name: Sentences(prepared, name, "train") for name in config.data.names}
    steps = planned_steps(config, data)
    config = within_budget(config, steps)
    settings, sizes = config.mixture, {name: len(sentences) for name, sentences in data.items()}
    with torch.device("meta"):  # counted, not made
        model = make_model(config, prepared.vocabulary)
    parameters = sum(p.numel() for p in model.parameters())
    tokens = sum(float(sentences.all_tokens) for sentences in data.values())
    console.print_json(config.model_dump_json())
    console.print(f"{config.data.direction}, {parameters:,} parameters, {sum(sizes.values()):,} training pairs")
    console.print(
        f"{tokens / config.train.tokens:,.0f} steps per epoch "
        f"({config.train.accumulate} batches of about {config.train.batch_tokens:,} tokens each), {steps:,.0f} in all"
    )
    console.print(f"memory: about {_gigabytes(config, parameters, prepared):.2f} GB (an estimate)")
    if settings.method == "static":
        console.print("the mixture is static: no updates")
    else:
        console.print(
            f"an update every {settings.every} steps: {probe_passes(config)} passes over {settings.probe_tokens:,} "
            f"tokens, {probe_share(config):.1%} of the tokens of training between two updates"
        )
    prior, draws = prior_of(config, data, earlier_run(config, prepared)), planned_sentences(config, data)
    mixtures = {f"τ = {tau:g}": Mixture.temperature(sizes, tau) for tau in TEMPERATURES}
    mixtures["uniform"] = Mixture.uniform(sizes)
    headings = ["pair", "training pairs", "prior", *mixtures]
    table = new_table(headings, ["pair"], "passes over each pair in the planned training")
    for name, size in sizes.items():
        passes = [f"{mixture[name] * draws / size:,.1f}" for mixture in mixtures.values()]
        table.add_row(escaped(name), f"{size:,}", f"{prior[name]:.2%}", *passes)
    console.print(table)


def _gigabytes(config: Config, parameters: int, prepared: Prepared) -> float:
    """Parameters, gradients, Adam's two moments, the vector of an update, an average; activations; logits."""
    layers = config.model.encoder_layers + 1.5 * config.model.decoder_layers
    per_token = layers * (12 * config.model.width + 3 * config.model.inner) + 3 * len(prepared.vocabulary["target"])
    copies = 5 + bool(config.train.average)
    return (parameters * copies + config.train.batch_tokens * per_token) * 4 / 1e9
