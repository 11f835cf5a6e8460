"""Runs of the application, with what they have beyond the history of a mixture; and those of one setting.

Reads files only; needs neither torch nor the data that a run was trained on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean
from typing import Any

from multidds._base.errors import UserError
from multidds.report import Run, by_method

from ..config.config import Config, mean_of, read_run
from ..evaluation.scores import read_scores
from ..runs.record_files import read_records
from ..runs.records import Scored, Validated

_MOST_PAIRS = 12  # named in a line
_ORDER = ("learned", "multidds-s", "multidds", "moving-average", "shuffled", "watch", "static")


@dataclass(kw_only=True)
class TranslationRun(Run):
    """A run of the application.

    config: of the run.
    counts: {language pair: {split: its sentence pairs, tokens and what was dropped}}.
    validations: by step.
    weighed: the last weights of sentence pairs; None if there are none.
    scores: of the test sets; None if they were not evaluated.
    """

    config: Config
    counts: dict[str, Any]
    validations: list[Validated]
    weighed: Scored | None
    scores: dict[str, Any] | None

    @property
    def learned(self) -> bool:
        return self.config.mixture.method not in ("static", "watch")

    @property
    def planned(self) -> bool:
        return self.learned and not self.updates

    @property
    def by_hand(self) -> bool:
        """Whether someone who knows the data left some of it out: probabilities of 0 in a given mixture."""
        mixture = self.config.mixture
        return mixture.prior == "explicit" and 0 in mixture.probabilities.values()

    @property
    def finished(self) -> str:
        """The reason of its end; empty if it has not ended."""
        return self.validations[-1].finished if self.validations else ""

    @property
    def best(self) -> Validated | None:
        """The validation whose model was kept."""
        return next((record for record in reversed(self.validations) if record.best), None)

    @property
    def overhead(self) -> float | None:
        """Seconds of updates per second of training steps."""
        clock = self.validations[-1].clock if self.validations else {}
        return clock["updates"] / clock["steps"] if clock.get("steps") else None

    def bleu_of(self, pair: str) -> float:
        return float(self.scores["pairs"][pair]["bleu"]) if self.scores else 0.0

    def mean(self, metric: str) -> float | None:
        """Returns the mean of a score over the language pairs, by their weights; None if they were not evaluated."""
        if self.scores is None:
            return None
        return mean_of({name: float(scores[metric]) for name, scores in self.scores["pairs"].items()}, self.weights)


def read_translation_run(run: Run) -> TranslationRun:
    """Returns a run with all that its folder has. Reading fails on damaged files."""
    config, facts = read_run(run.folder)
    records = read_records(run.folder)
    scores = read_scores(run.folder)
    if scores is not None and set(scores["pairs"]) != set(config.data.names):
        raise UserError(f"{run.folder / 'scores.json'}: is of other language pairs; run 'multidds evaluate' again.")
    found = replace(
        run,
        weights=config.dev_weights,
        most_passes=1 + config.mixture.repetition,
        setting=config.data.setting or config.data.folder.name,
        rank=_ORDER.index(config.mixture.method),
        alike=(config.model_dump_json(exclude={"train": {"seed"}}), config.train.seed),
    )
    return TranslationRun(
        **{field.name: getattr(found, field.name) for field in fields(found)},
        config=config,
        counts=facts["pairs"],
        validations=[record for record in records if isinstance(record, Validated)],
        weighed=next((record for record in reversed(records) if isinstance(record, Scored)), None),
        scores=scores,
    )


class Setting:
    """The runs of the application on the same data, by method.

    All get the same weights in means: the priority, if runs have one and the same, else 1 for each language pair.

    name: of the setting.
    runs: of one setting.
    """

    def __init__(self, name: str, runs: Sequence[TranslationRun]) -> None:
        self.name, self.first = name, runs[0]
        self.pairs = self.first.config.data.names
        own = [run.config.dev_weights for run in runs if run.config.weighted]
        self.priorities_differ = any(weights != own[0] for weights in own)
        self.weights = own[0] if own and not self.priorities_differ else dict.fromkeys(self.pairs, 1.0)
        for run in runs:
            run.weights = self.weights
        self.methods: dict[str, list[TranslationRun]] = by_method(runs)
        self.scored = by_method(run for run in runs if run.scores is not None)

    @property
    def about(self) -> str:
        """The direction and the language pairs, for those to whom the name says nothing."""
        shown = ", ".join(self.pairs[:_MOST_PAIRS]) + (", ..." if len(self.pairs) > _MOST_PAIRS else "")
        return f"{self.first.config.data.direction}, {len(self.pairs)} language pairs: {shown}"

    @property
    def weighted(self) -> bool:
        return len(set(self.weights.values())) > 1

    @property
    def main(self) -> str | None:
        """The learned mixture that a report is about: with the priority of the setting, and the default's method."""

        def place(method: str) -> tuple[bool, int]:
            run = self.methods[method][0]
            return run.config.weighted != self.weighted, run.rank

        return min((method for method, runs in self.methods.items() if runs[0].learned), key=place, default=None)

    def mean(self, values: Mapping[str, float]) -> float:
        """Returns the mean over the language pairs, by their weights."""
        return mean_of(values, self.weights)

    def bleu(self, method: str) -> float:
        """Returns the mean BLEU of a method that was evaluated, over language pairs and seeds."""
        return fmean(self.bleu_by_seed(method))

    def bleu_by_seed(self, method: str) -> list[float]:
        """Returns the mean BLEU over language pairs of every run of a method that was evaluated."""
        return [run.mean("bleu") or 0.0 for run in self.scored[method]]

    def best_static(self, by_hand: bool = False) -> str | None:
        """Returns the static method with the best average BLEU: chosen on the test sets, in its own favour.

        by_hand: whether it is one in which someone left data out: no baseline, but an aim.
        """
        static = [method for method, runs in self.scored.items() if not runs[0].learned and runs[0].by_hand == by_hand]
        return max(static, key=self.bleu, default=None)
