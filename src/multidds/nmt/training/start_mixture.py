"""The mixture at the start of a training, and schedules that move it without learning."""

import math
from collections.abc import Mapping

from multidds import Mixture
from multidds.history import PLAIN
from multidds.mixture import Replay

from ..batches.sentences import Sentences
from ..config.config import Config
from ..runs.earlier_run import EarlierRun
from ..runs.record_files import read_lines
from .schedule import planned_sentences, planned_steps


def prior_of(config: Config, data: Mapping[str, Sentences], earlier: EarlierRun | None = None) -> Mixture:
    """Returns the mixture of `[mixture] prior` for these training sets.

    earlier: the run that the training starts from. If it has learned a mixture of some of these datasets, that takes
        the place of "planned", and only new datasets get the share of the plan.
    """
    settings = config.mixture
    sizes = {name: len(sentences) for name, sentences in data.items()}
    if settings.prior == "explicit":
        total = math.fsum(settings.probabilities.values())
        return Mixture({name: settings.probabilities[name] / total for name in sizes})
    if settings.prior == "temperature":
        return Mixture.temperature(sizes, settings.temperature)
    if settings.prior == "uniform":
        return Mixture.uniform(sizes)
    if settings.prior == "unimax":
        return Mixture.unimax(sizes, planned_sentences(config, data), settings.max_passes)
    if settings.prior == "planned":
        learned = {} if earlier is None else _learned_by(earlier)
        if any(learned.get(name) for name in sizes):
            return Mixture.extended(learned, sizes, planned_sentences(config, data))
        return Mixture.planned(sizes, planned_sentences(config, data), plan_weights(config), settings.repetition)
    return Mixture.proportional(sizes)


def plan_weights(config: Config) -> dict[str, float] | None:
    """Returns {language pair: weight of its dev set} for a plan; None: all the same."""
    priority = config.mixture.priority
    if not isinstance(priority, dict) or config.mixture.switch_epoch or config.mixture.switch_step:
        return None
    return {name: priority.get(name, 0.0) for name in config.data.names}


def _learned_by(earlier: EarlierRun) -> dict[str, float]:
    """Returns the mixture after the last update of a run; empty if there was none."""
    lines = [line for line in read_lines(earlier.weights.parent, PLAIN) if "mixture" in line]
    return dict(lines[-1]["mixture"]) if len(lines) > 1 else {}


def schedule_of(config: Config, data: Mapping[str, Sentences], mixture: Mixture) -> Replay | None:
    """Returns the schedule of `[mixture] schedule`; None if there is none."""
    kind = config.mixture.schedule
    if kind == "none":
        return None
    sizes = {name: len(sentences) for name, sentences in data.items()}
    proportional, five = Mixture.proportional(sizes), Mixture.temperature(sizes, 5)
    points: dict[str, list[tuple[float, Mixture]]] = {
        "proportional-to-uniform": [(0.0, proportional), (0.5, Mixture.uniform(sizes))],
        "cooldown": [(0.0, five), (0.5, five), (0.5, proportional)],
        "reverse-cooldown": [(0.0, proportional), (0.5, proportional), (0.5, five)],
    }
    return Replay.along(mixture, points[kind], steps=max(1, round(planned_steps(config, data))))
