"""Run folders as a report reads them: methods by name, records, scores.

Reads files only; needs neither torch nor the data that a run was trained on. A method is named after the run's own
config, never after its folder, so that a label cannot differ from what was run.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multidds._base.errors import UserError

from ..config.config import Config, MixtureSettings, mean_of, read_run
from ..config.config_diff import HARMLESS, changed_keys
from ..evaluation import read_scores
from ..runs.record_files import FILE, read_records
from ..runs.records import AnyRecord, Updated, Validated, mixtures_of
from .mixture_runs import MixtureRun, read_mixture_runs, read_moments

# Keys that do not tell two methods apart: where a run was made, and what its label says already.
_ELSEWHERE = {*HARMLESS, "data.folder", "train.seed", "train.device"}
_LABEL_KEYS = (
    "method",
    "prior",
    "temperature",
    "max_passes",
    "probabilities",
    "step_ahead",
    "priority",
    "switch_epoch",
    "switch_step",
)
_MOST_PAIRS = 12  # named in a line
_IGNORED = _ELSEWHERE | {f"mixture.{key}" for key in _LABEL_KEYS}
_LEARNED = {
    "multidds": "MultiDDS",
    "multidds-s": "MultiDDS-S",
    "learned": "learned",
    "shuffled": "shuffled rewards",
    "moving-average": "MultiDDS moving average",
}
_ORDER = (  # beginnings of labels; of several that fit, the last one counts
    "uniform",
    "temperature",
    "proportional",
    "UniMax",
    "planned",
    "given",
    "without",
    "proportional to",
    "cooldown",
    "reverse",
    "shuffled",
    "MultiDDS moving",
    "MultiDDS,",
    "MultiDDS",
    "MultiDDS-S",
    "learned",
)


@dataclass
class Run:
    """One run folder."""

    folder: Path
    config: Config
    facts: dict[str, Any]  # the rest of config.json
    records: list[AnyRecord]
    scores: dict[str, Any] | None
    variant: str = ""  # the differences from other runs of the same label
    weights: dict[str, float] = field(init=False)  # of the language pairs in a mean; those of its setting

    def __post_init__(self) -> None:
        self.weights = self.config.dev_weights

    @property
    def setting(self) -> str:
        return self.config.data.setting or self.config.data.folder.name

    @property
    def label(self) -> str:
        return label_of(self.config.mixture) + (f" ({self.variant})" if self.variant else "")

    @property
    def learned(self) -> bool:
        return self.config.mixture.method != "static"

    @property
    def left_out(self) -> list[str]:
        """The datasets that someone left out by hand: probabilities of 0 in a given mixture."""
        return _left_out(self.config.mixture)

    @property
    def seed(self) -> int:
        return self.config.train.seed

    @property
    def names(self) -> tuple[str, ...]:
        return self.config.data.names

    @property
    def updates(self) -> list[Updated]:
        return [record for record in self.records if isinstance(record, Updated)]

    @property
    def validations(self) -> list[Validated]:
        return [record for record in self.records if isinstance(record, Validated)]

    @property
    def mixtures(self) -> list[tuple[int, dict[str, float]]]:
        """(step, mixture from there on), from the prior to the last update."""
        return mixtures_of(self.records)

    @property
    def finished(self) -> str:
        """The reason of its end; empty if it has not ended."""
        return self.validations[-1].finished if self.validations else ""

    @property
    def steps(self) -> int:
        return max((record.step for record in self.records), default=0)

    @property
    def bleu(self) -> float | None:
        return self.mean("bleu")

    def mean(self, metric: str) -> float | None:
        """Returns the mean of a score over the language pairs, by their weights."""
        if self.scores is None:
            return None
        return mean_of({name: float(scores[metric]) for name, scores in self.scores["pairs"].items()}, self.weights)

    def bleu_of(self, pair: str) -> float | None:
        return None if self.scores is None else float(self.scores["pairs"][pair]["bleu"])

    @property
    def best(self) -> Validated | None:
        """The validation whose model was kept."""
        return next((record for record in reversed(self.validations) if record.best), None)

    @property
    def overhead(self) -> float | None:
        """Seconds of updates per second of training steps."""
        clock = self.validations[-1].clock if self.validations else {}
        return clock["updates"] / clock["steps"] if clock.get("steps") else None


@dataclass
class Setting:
    """Runs on the same language pairs, which are compared with each other."""

    name: str
    runs: list[Run]
    repeated: list[Run] = field(default_factory=list)  # same method and seed as another; left out of the tables

    @property
    def pairs(self) -> tuple[str, ...]:
        return self.runs[0].names

    @property
    def weights(self) -> dict[str, float]:
        """{language pair: weight} of means: the priority, if runs have one and the same, else 1 for each."""
        return self.runs[0].weights

    @property
    def about(self) -> str:
        """The direction and the language pairs, for those to whom the name says nothing."""
        shown = ", ".join(self.pairs[:_MOST_PAIRS]) + (", ..." if len(self.pairs) > _MOST_PAIRS else "")
        return f"{self.runs[0].config.data.direction}, {len(self.pairs)} language pairs: {shown}"

    @property
    def weighted(self) -> bool:
        return len(set(self.weights.values())) > 1

    @property
    def labels(self) -> list[str]:
        """Methods, in the order of the paper's tables."""

        def place(label: str) -> int:
            return max((i for i, start in enumerate(_ORDER) if label.startswith(start)), default=len(_ORDER))

        return sorted({run.label for run in self.runs}, key=lambda label: (place(label), label))

    def mean(self, values: Mapping[str, float]) -> float:
        """Returns the mean over the language pairs, by their weights."""
        return mean_of(values, self.weights)

    def of(self, label: str) -> list[Run]:
        """Returns the runs of a method, by seed."""
        return sorted((run for run in self.runs if run.label == label), key=lambda run: run.seed)

    def scored(self, label: str) -> list[Run]:
        return [run for run in self.of(label) if run.bleu is not None]

    def mean_bleu(self, label: str) -> float | None:
        values = [run.bleu for run in self.scored(label) if run.bleu is not None]
        return sum(values) / len(values) if values else None

    @property
    def best_baseline(self) -> str | None:
        """The static method with the best average BLEU: chosen on the test sets, in its own favour."""
        return self._best_static(by_hand=False)

    @property
    def best_by_hand(self) -> str | None:
        """The best method in which someone who knows the data left some of it out: no baseline, but an aim."""
        return self._best_static(by_hand=True)

    def _best_static(self, by_hand: bool) -> str | None:
        runs = {label: self.of(label)[0] for label in self.labels if self.scored(label)}
        static = [label for label, run in runs.items() if not run.learned and bool(run.left_out) == by_hand]
        return max(static, key=lambda label: self.mean_bleu(label) or 0.0, default=None)

    def learned_with(self, method: str, priority: str = "regular") -> str | None:
        """Returns the plainest method of this reward and priority ("own": any weights), if there is one."""
        first = {label: self.of(label)[0] for label in self.labels}
        fitting = [
            (bool(run.variant), len(label), label)
            for label, run in first.items()
            if (run.config.mixture.method, _priority(run.config.mixture)) == (method, priority)
        ]
        return min(fitting)[-1] if fitting else None


def label_of(mixture: MixtureSettings) -> str:
    """Returns the name of a method in a report."""
    left_out = _left_out(mixture)
    prior = {
        "temperature": f"temperature {mixture.temperature:g}",
        "unimax": f"UniMax {mixture.max_passes:g}",
        "explicit": f"without {' and '.join(left_out)}" if left_out else "given mixture",
    }.get(mixture.prior, mixture.prior)
    if mixture.method == "static":
        return prior if mixture.schedule == "none" else mixture.schedule.replace("-", " ")
    parts = [_LEARNED[mixture.method]]
    if mixture.step_ahead:
        parts.append("step-ahead" + (f" {mixture.step_ahead:g}" if mixture.step_ahead != 0.001 else ""))
    if mixture.priority != "regular":
        parts.append(f"{_priority(mixture)} priority")
    if prior != ("planned" if mixture.method in ("learned", "shuffled") else "proportional"):
        parts.append(f"from {prior}")
    return ", ".join(parts)


def _left_out(mixture: MixtureSettings) -> list[str]:
    return [name for name, p in mixture.probabilities.items() if p == 0] if mixture.prior == "explicit" else []


def _priority(mixture: MixtureSettings) -> str:
    return mixture.priority if isinstance(mixture.priority, str) else "own"


def find_runs(folders: Iterable[Path]) -> tuple[list[Run], list[MixtureRun]]:
    """Returns (our runs, runs of other trainers that have a history of their mixture) of folders and below them."""
    runs: dict[Path, Run] = {}
    mixture_runs: dict[Path, MixtureRun] = {}
    for folder in folders:
        if not folder.exists():
            raise UserError(f"{folder}: there is no such folder.")
        ours = {path.resolve(): _read(path) for path in _run_folders(folder)}
        others = {} if ours else {run.folder.resolve(): run for run in read_mixture_runs(folder)}
        if not ours and not others:
            raise UserError(
                f"{folder}: is not a run, and there is none below it (a run has a config.json and records.jsonl; other "
                "trainers have a mixture.jsonl, a trainer_state.json or a metrics.csv with a mixture in it)."
            )
        runs |= ours
        mixture_runs |= others
    return list(runs.values()), list(mixture_runs.values())


def _run_folders(folder: Path) -> Iterator[Path]:
    if (folder / "config.json").exists() and (folder / FILE).exists():
        yield folder
    elif folder.is_dir():
        for inner in sorted(folder.iterdir()):
            if inner.is_dir() and not inner.is_symlink():
                yield from _run_folders(inner)


def _read(folder: Path) -> Run:
    config, facts = read_run(folder)
    scores = read_scores(folder)
    if scores is not None and set(scores["pairs"]) != set(config.data.names):
        raise UserError(f"{folder / 'scores.json'}: is of other language pairs; run 'multidds evaluate' again.")
    return Run(folder, config, facts, read_records(folder), scores)


def mixture_run_of(run: Run) -> MixtureRun:
    """Returns the mixture of one of our runs, and its validations."""
    validations = run.validations
    losses = {
        name: [(float(r.step), r.dev_loss[name]) for r in validations if math.isfinite(r.dev_loss[name])]
        for name in run.names
    }
    losses = {name: points for name, points in losses.items() if points}
    label = run.label if run.seed == 1 else f"{run.label}, seed {run.seed}"
    passes = validations[-1].passes if validations else {}
    most = 1 + run.config.mixture.repetition
    return MixtureRun(label, run.folder, read_moments(run.folder), losses, run.weights, passes, most)


def settings_of(runs: list[Run]) -> list[Setting]:
    """Groups runs by setting, and names them so that different ones never share a label."""
    groups: dict[tuple[str, tuple[str, ...]], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.setting, run.names), []).append(run)
    counts = Counter(name for name, _ in groups)
    settings = []
    for (name, pairs), members in groups.items():
        _name_variants(members)
        own = [run.config.dev_weights for run in members if run.config.weighted]
        alike = own and all(weights == own[0] for weights in own)
        for run in members:
            run.weights = own[0] if alike else dict.fromkeys(pairs, 1.0)
        kept: dict[tuple[str, int], Run] = {}
        for run in sorted(members, key=lambda run: not run.finished):  # of two alike the finished one, or the first
            kept.setdefault((run.label, run.seed), run)
        repeated = [run for run in members if kept[run.label, run.seed] is not run]
        name = name if counts[name] == 1 else f"{name} ({len(pairs)} pairs from {pairs[0]})"
        settings.append(Setting(name, list(kept.values()), repeated))
    return settings


def _name_variants(runs: list[Run]) -> None:
    """Names the differences of runs with one label, if they differ in more than that label says."""
    for label in {label_of(run.config.mixture) for run in runs}:
        same = [run for run in runs if label_of(run.config.mixture) == label]
        if any(differences(same[0], run) for run in same):
            # The plain one is that which has most in common with all the runs of the setting.
            plain = min(same, key=lambda run: sum(len(differences(run, other)) for other in runs))
            for run in same:
                run.variant = ", ".join(f"{key} = {_value(run.config, key)}" for key in differences(plain, run))


def differences(one: Run, other: Run) -> list[str]:
    """Returns the keys, beyond what labels say, in which two runs differ."""
    keys = [key for key in changed_keys(one.config, other.config) if key not in _IGNORED]
    both_learned = one.learned and other.learned
    return [key for key in keys if both_learned or not key.startswith("mixture.")]


def _value(config: Config, key: str) -> str:
    section, name = key.split(".", 1)
    value = getattr(getattr(config, section), name)
    return str(value.model_dump()) if hasattr(value, "model_dump") else str(value)
