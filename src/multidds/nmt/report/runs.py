"""Run folders as a report sees them: what was run, what it is called, what it recorded, how it scored.

Reads files only; nothing here trains, translates or needs the data that a run was trained on. A method is named after
the run's own config, never after its folder, so a label cannot say something else than what was run.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multidds.history import moments_of

from ..common.errors import UserError
from ..config.config import Config, MixtureSettings, read_run
from ..config.config_diff import HARMLESS, changed_keys
from ..evaluation.scores import read_scores
from ..runs.record_files import FILE, read_records
from ..runs.records import AlignmentFacts, AnyRecord, Updated, Validated, mixtures_of
from .mixture_runs import MixtureRun, read_courses

# Keys that do not tell two methods apart: where a run was made, and what its label says already.
_ELSEWHERE = {*HARMLESS, "data.folder", "train.seed", "train.device"}
_IN_LABEL = {f"mixture.{key}" for key in ("method", "prior", "temperature", "max_passes", "probabilities",
                                          "step_ahead", "priority", "switch_epoch")}  # fmt: skip
REWARDS = {"multidds": "MultiDDS", "multidds-s": "MultiDDS-S"}
LEARNED = {
    **REWARDS, "anchored": "learned", "shuffled": "shuffled rewards", "moving-average": "MultiDDS moving average",
}  # fmt: skip


@dataclass
class Run:
    """One run folder."""

    folder: Path
    config: Config
    facts: dict[str, Any]  # the rest of config.json
    records: list[AnyRecord]
    scores: dict[str, Any] | None
    variant: str = ""  # what tells it from other runs of the same label, if anything does

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
    def published_as(self) -> str | None:
        """The method of the paper's tables that this run repeats."""
        return None if self.variant else _PUBLISHED.get(label_of(self.config.mixture))

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
    def alignments(self) -> list[tuple[int, AlignmentFacts]]:
        """(step, what the table of its update says), where there was one."""
        return [(record.step, record.alignment) for record in self.updates if record.alignment is not None]

    @property
    def validations(self) -> list[Validated]:
        return [record for record in self.records if isinstance(record, Validated)]

    @property
    def finished(self) -> str:
        """Why it ended; empty while it has not."""
        return self.validations[-1].finished if self.validations else ""

    @property
    def steps(self) -> int:
        return max((record.step for record in self.records), default=0)

    @property
    def bleu(self) -> float | None:
        return None if self.scores is None else float(self.scores["average"]["bleu"])

    def bleu_of(self, pair: str) -> float | None:
        return None if self.scores is None else float(self.scores["pairs"][pair]["bleu"])

    @property
    def best(self) -> Validated | None:
        """The validation whose model was kept."""
        return next((record for record in reversed(self.validations) if record.best), None)

    @property
    def overhead(self) -> float | None:
        """Seconds of updates for a second of training steps."""
        clock = self.validations[-1].clock if self.validations else {}
        return clock["updates"] / clock["steps"] if clock.get("steps") else None

    @property
    def mixtures(self) -> list[tuple[int, dict[str, float]]]:
        """(step, mixture from there on), from the prior to the last update."""
        return mixtures_of(self.records)


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
    def labels(self) -> list[str]:
        """Methods, in the order of the paper's tables."""
        return sorted({run.label for run in self.runs}, key=lambda label: (_place(label), label))

    def of(self, label: str) -> list[Run]:
        """The runs of a method, by seed."""
        return sorted((run for run in self.runs if run.label == label), key=lambda run: run.seed)

    def scored(self, label: str) -> list[Run]:
        return [run for run in self.of(label) if run.bleu is not None]

    def mean_bleu(self, label: str) -> float | None:
        values = [run.bleu for run in self.scored(label) if run.bleu is not None]
        return sum(values) / len(values) if values else None

    @property
    def best_baseline(self) -> str | None:
        """The static method with the best average BLEU: chosen on the test sets, in its own favour."""
        static = [label for label in self.labels if not self.of(label)[0].learned and self.scored(label)]
        return max(static, key=lambda label: self.mean_bleu(label) or 0.0, default=None)

    def learned_with(self, method: str, priority: str = "regular") -> str | None:
        """The plainest method of this reward and priority, if there is one."""
        fitting = [
            label for label in self.labels
            if (mixture := self.of(label)[0].config.mixture).method == method and mixture.priority == priority
        ]  # fmt: skip
        return min(fitting, key=lambda label: (bool(self.of(label)[0].variant), len(label)), default=None)

    def by_priority(self) -> dict[str, str | None]:
        """{priority: the plainest method with it}, of one reward and rule: those that there are priorities of."""
        for method in ("multidds-s", "anchored"):
            found = {name: self.learned_with(method, name) for name in ("regular", "low", "high")}
            if found["low"] or found["high"]:
                return found
        return dict.fromkeys(("regular", "low", "high"))


def label_of(mixture: MixtureSettings) -> str:
    """What a report calls a method."""
    prior = {
        "temperature": f"temperature {mixture.temperature:g}",
        "unimax": f"UniMax {mixture.max_passes:g}",
        "explicit": "given mixture",
    }.get(mixture.prior, mixture.prior)
    if mixture.method == "static":
        return prior if mixture.schedule == "none" else mixture.schedule.replace("-", " ")
    parts = [LEARNED[mixture.method]]
    if mixture.step_ahead:
        parts.append("step-ahead" + (f" {mixture.step_ahead:g}" if mixture.step_ahead != 0.001 else ""))
    if mixture.priority != "regular":
        named = mixture.priority if isinstance(mixture.priority, str) else "own"
        parts.append(f"{named} priority")
    if prior != ("planned" if mixture.method in ("anchored", "shuffled") else "proportional"):
        parts.append(f"from {prior}")
    return ", ".join(parts)


_PUBLISHED = {
    "uniform": "uniform",
    "temperature 5": "temperature-5",
    "proportional": "proportional",
    "MultiDDS, step-ahead": "multidds",
    "MultiDDS-S": "multidds-s",
}


def _place(label: str) -> int:
    order = ["uniform", "temperature", "proportional", "UniMax", "planned", "given", "proportional to", "cooldown",
             "reverse", "shuffled", "MultiDDS moving", "MultiDDS,", "MultiDDS",
             "MultiDDS-S", "learned"]  # fmt: skip
    return max((i for i, start in enumerate(order) if label.startswith(start)), default=len(order))


def find_runs(folders: Iterable[Path]) -> list[Run]:
    """The runs of this application that are, or are below, the given folders, in the order of their paths."""
    return found_in(folders)[0]


def found_in(folders: Iterable[Path]) -> tuple[list[Run], list[MixtureRun]]:
    """(our runs, runs of other trainers that have a history of their mixture) of the given folders and below them."""
    runs: dict[Path, Run] = {}
    courses: dict[Path, MixtureRun] = {}
    for folder in folders:
        if not folder.exists():
            raise UserError(f"{folder}: there is no such folder.")
        ours = {path.resolve(): read(path) for path in _run_folders(folder)}
        others = {} if ours else {course.folder.resolve(): course for course in read_courses(folder)}
        if not ours and not others:
            raise UserError(
                f"{folder}: is not a run, and there is none below it (a run has a config.json and records.jsonl; other "
                "trainers have a mixture.jsonl, a trainer_state.json or a metrics.csv with a mixture in it)."
            )
        runs |= ours
        courses |= others
    return list(runs.values()), list(courses.values())


def course_of(run: Run) -> MixtureRun:
    """What the mixture of one of our runs did, and its validations."""
    validated = [record for record in run.records if isinstance(record, Validated)]
    validations = {
        name: [(float(record.step), record.dev_loss[name]) for record in validated if name in record.dev_loss]
        for name in run.names
    }
    label = run.label if run.seed == 1 else f"{run.label}, seed {run.seed}"
    return MixtureRun(label, run.folder, moments_of(run.folder), validations)


def _run_folders(folder: Path) -> Iterable[Path]:
    if (folder / "config.json").exists() and (folder / FILE).exists():
        yield folder
    elif folder.is_dir():
        for inner in sorted(folder.iterdir()):
            if inner.is_dir() and not inner.is_symlink():
                yield from _run_folders(inner)


def read(folder: Path) -> Run:
    config, facts = read_run(folder)
    scores = read_scores(folder)
    if scores is not None and set(scores["pairs"]) != set(config.data.names):
        raise UserError(f"{folder / 'scores.json'}: is of other language pairs; run 'multidds evaluate' again.")
    return Run(folder, config, facts, read_records(folder), scores)


def settings_of(runs: list[Run]) -> list[Setting]:
    """Runs grouped by setting, each named so that different ones never share a label."""
    groups: dict[tuple[str, tuple[str, ...]], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.setting, run.names), []).append(run)
    names = Counter(name for name, _ in groups)
    settings = []
    for (name, pairs), members in groups.items():
        shown = name if names[name] == 1 else f"{name} ({len(pairs)} pairs from {pairs[0]})"
        _name_variants(members)
        kept: dict[tuple[str, int], Run] = {}
        repeated = []
        for run in members:
            if kept.setdefault((run.label, run.seed), run) is not run:
                repeated.append(run)
        settings.append(Setting(shown, list(kept.values()), repeated))
    return settings


def _name_variants(runs: list[Run]) -> None:
    """Where runs of one label differ in more than that label says, say in what."""
    for label in {label_of(run.config.mixture) for run in runs}:
        same = [run for run in runs if label_of(run.config.mixture) == label]
        differing = {key for run in same for key in differences(same[0], run)}
        if not differing:
            continue
        # The plain one is that which has most in common with all the runs of the setting.
        distance = [sum(len(differences(run, other)) for other in runs) for run in same]
        plain = same[distance.index(min(distance))]
        for run in same:
            run.variant = ", ".join(f"{key} = {_value(run.config, key)}" for key in differences(plain, run))


def differences(one: Run, other: Run) -> list[str]:
    """The keys, beyond what labels say, in which two runs differ."""
    ignored = _ELSEWHERE | _IN_LABEL
    keys = [key for key in changed_keys(one.config, other.config) if key not in ignored]
    if not (one.learned and other.learned):
        keys = [key for key in keys if not key.startswith("mixture.")]
    return keys


def _value(config: Config, key: str) -> str:
    section, name = key.split(".", 1)
    value = getattr(getattr(config, section), name)
    return str(value.model_dump()) if hasattr(value, "model_dump") else str(value)
