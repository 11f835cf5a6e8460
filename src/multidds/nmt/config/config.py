"""The config of a run: one TOML file as typed, validated models, and the messages about mistakes in it.

`recipes/reference.toml` explains every key. Does not import torch.
"""

import math
import os
import re
import reprlib
import tomllib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from multidds._base.errors import UserError
from multidds._base.escaping import file_name
from multidds._base.files import readable
from multidds._base.text import suggestion

from ..common.checksummed import read_checksummed

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
VOCABULARY = "vocabulary"  # the folder of a run with its vocabularies and sentencepiece models
Positive = Annotated[int, Field(ge=1, le=10**9)]
Count = Annotated[int, Field(ge=0, le=10**9)]
Share = Annotated[float, Field(ge=0, lt=1)]
Above0 = Annotated[float, Field(gt=0, le=1e6)]
AtLeast0 = Annotated[float, Field(ge=0, le=1e6)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Method = Literal["static", "learned", "watch", "shuffled", "multidds", "multidds-s", "moving-average"]
Threads = Annotated[int, Field(ge=0, le=4096)]
Language = Annotated[str, Field(min_length=1)]
_REMOVED = {  # {key, or key and value: the end of a message}
    "train.select_sentences": "was removed with select = 'translation'. Use select = 'accuracy'.",
    "train.select = translation": "was removed. Use 'accuracy'.",
}


class Section(BaseModel):
    # strict: "5", true and 64.0 are no whole numbers.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class Pair(Section):
    """A language pair, which is a dataset of the mixture."""

    source: Language
    target: Language

    @property
    def name(self) -> str:
        return f"{self.source}-{self.target}"


class Data(Section):
    folder: Annotated[Path, Field(strict=False)]
    setting: str = ""
    format: Literal["text", "tsv", "jsonl", "ted"] = "text"
    pairs: Annotated[tuple[Pair, ...], Field(min_length=1, strict=False)]
    train: str
    dev: str
    test: str | None = None
    columns: dict[str, str | int] = {}
    header: bool = True
    max_length: Annotated[int, Field(ge=1, le=10_000)] = 150
    max_ratio: AtLeast0 = 0.0

    @model_validator(mode="before")
    @classmethod
    def _read_pairs(cls, given: Any) -> Any:
        """Reads pairs as "aze-eng", or as tables if a language code has a hyphen."""
        if isinstance(given, dict) and isinstance(given.get("pairs"), (list, tuple)):
            pairs = []
            for pair in given["pairs"]:
                if isinstance(pair, str):
                    source, hyphen, target = pair.partition("-")
                    if not hyphen or not source or not target or "-" in target:
                        raise ValueError(
                            f"{pair!r} is not a language pair; write 'source-target', "
                            'or {source = "pt-br", target = "eng"} where a code has a hyphen'
                        )
                    pairs.append({"source": source, "target": target})
                else:
                    pairs.append(pair)
            given = {**given, "pairs": pairs}
        return given

    @model_validator(mode="after")
    def _check(self) -> "Data":
        for names in (self.names, (*self.sources, *self.targets)):
            files: dict[str, str] = {}
            for name in names:
                if (other := files.setdefault(file_name(name).lower(), name)) != name:
                    raise ValueError(
                        f"{other!r} and {name!r} differ only in case, which not all file systems tell apart"
                    )
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"the language pair {max(self.names, key=self.names.count)!r} is there twice")
        for pair in self.pairs:
            if pair.source == pair.target:
                raise ValueError(f"{pair.name!r} translates a language into itself")
        if 0 < self.max_ratio < 1:
            raise ValueError(f"max_ratio must be 0 (off) or at least 1, but it is {self.max_ratio}")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(pair.name for pair in self.pairs)

    @cached_property
    def shared_language(self) -> str:
        """The language that all pairs have on a side; the first target if there is not just one."""
        shared = set.intersection(*({pair.source, pair.target} for pair in self.pairs))
        return shared.pop() if len(shared) == 1 else self.pairs[0].target

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(pair.source for pair in self.pairs))

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(pair.target for pair in self.pairs))

    @property
    def direction(self) -> Literal["many-to-one", "one-to-many", "many-to-many"]:
        if len(self.targets) == 1:
            return "many-to-one"
        return "one-to-many" if len(self.sources) == 1 else "many-to-many"


class Vocabulary(Section):
    kind: Literal["per-language", "joint"] = "per-language"
    size: Annotated[int, Field(ge=16, le=1_000_000)] = 8000
    temperature: Above0 = 5.0
    sample: Positive = 1_000_000
    coverage: Annotated[float, Field(ge=0.98, le=1)] = 1.0  # the range of sentencepiece


class Model(Section):
    encoder_layers: Annotated[int, Field(ge=1, le=1000)] = 6
    decoder_layers: Annotated[int, Field(ge=1, le=1000)] = 6
    width: Annotated[int, Field(ge=2, le=65_536)] = 512
    inner: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    heads: Annotated[int, Field(ge=1, le=65_536)] = 4
    dropout: Share = 0.3
    attention_dropout: Share = 0.3
    activation_dropout: Share = 0.3
    norm: Literal["scale", "layer"] = "scale"

    @model_validator(mode="after")
    def _check(self) -> "Model":
        if self.width % self.heads or self.width % 2:
            raise ValueError(
                f"width must be even and a multiple of heads, but it is {self.width} with {self.heads} heads"
            )
        return self


class Train(Section):
    start_from: str = ""
    max_epochs: Positive = 40
    max_steps: Count = 0
    tokens: Positive = 9600
    batch_tokens: Positive = 4800
    mixing: Literal["example", "batch"] = "example"
    pool: Positive = 50
    lr: Above0 = 2e-4
    warmup: Count = 4000
    warmup_from: AtLeast0 = 1e-7
    beta1: Share = 0.9
    beta2: Share = 0.98
    eps: Above0 = 1e-8
    weight_decay: AtLeast0 = 0.0
    clip: AtLeast0 = 25.0
    label_smoothing: Share = 0.1
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    device: str = "auto"
    threads: Threads = 0
    average: Count = 0
    validate_every: Count = 0
    select: Literal["loss", "accuracy", "soft-bleu", "last"] = "loss"
    patience: Count = 0
    save_every: Positive = 1000
    keep: Positive = 2
    log_every: Positive = 50
    seed: Seed = 1

    @model_validator(mode="after")
    def _check(self) -> "Train":
        if self.tokens < self.batch_tokens:
            raise ValueError(
                f"tokens (per step) must be at least batch_tokens, but they are {self.tokens} and {self.batch_tokens}"
            )
        if self.patience and self.select == "last":
            raise ValueError(
                f"patience = {self.patience} waits for a better model, but select = 'last' takes every model for "
                "better; choose another select, or patience = 0"
            )
        return self

    @property
    def accumulate(self) -> int:
        """Batches per step, over all processes."""
        return -(-self.tokens // self.batch_tokens)


class ScorerSettings(Section):
    lr: Above0 = 0.2
    optimizer: Literal["sgd", "adam"] = "sgd"
    inner_steps: Positive = 1
    rule: Literal["sum", "policy"] = "sum"
    floor: AtLeast0 = 0.1


class MixtureSettings(Section):
    method: Method = "learned"
    prior: Literal["planned", "proportional", "temperature", "uniform", "unimax", "explicit"] = "planned"
    schedule: Literal["none", "proportional-to-uniform", "cooldown", "reverse-cooldown"] = "none"
    temperature: Above0 = 5.0
    max_passes: Above0 = 4.0
    repetition: Above0 = 40.0
    probabilities: dict[str, float] = {}
    every: Positive = 1000
    probe_tokens: Positive = 4000
    probe_batches: Positive = 1
    probe_budget: Share = 0.0
    step_ahead: AtLeast0 = 0.0
    priority: str | dict[str, float] = "regular"
    switch_epoch: Count = 0
    switch_step: Count = 0
    sketch: Count = 65536
    decay: Share = 0.9
    scorer: ScorerSettings = ScorerSettings()

    @property
    def is_default(self) -> bool:
        """Whether the method has the default rule: itself, only watching, or its control."""
        return self.method in ("learned", "watch", "shuffled")

    @model_validator(mode="before")
    @classmethod
    def _choose_prior(cls, given: Any) -> Any:
        """Sets the default prior: proportional to the sizes, except for the default method and its control."""
        if isinstance(given, dict) and given.get("method", "learned") not in ("learned", "shuffled"):
            return {"prior": "proportional", **given}
        return given


class ExamplesSettings(Section):
    method: Literal["none", "dds"] = "none"
    every: Positive = 5
    learn: Share = 0.25
    probe_tokens: Positive = 1000
    parameters: Literal["source", "all"] = "source"
    contrast: AtLeast0 = 1.0
    sharpness: Above0 = 2.0
    decay: Share = 0.9
    replay: Positive = 40


class Translate(Section):
    beam: Positive = 5
    length_penalty: AtLeast0 = 1.0
    long_lines: Literal["split", "refuse"] = "split"


class Config(Section):
    data: Data
    vocabulary: Vocabulary = Vocabulary()
    model: Model = Model()
    train: Train = Train()
    mixture: MixtureSettings = MixtureSettings()
    examples: ExamplesSettings = ExamplesSettings()
    translate: Translate = Translate()

    @model_validator(mode="after")
    def _check(self) -> "Config":
        longest = self.data.max_length + 2  # a language tag and the end of the sentence
        for where, key, tokens in (
            ("train", "batch_tokens", self.train.batch_tokens),
            ("mixture", "probe_tokens", self.mixture.probe_tokens),
            ("examples", "probe_tokens", self.examples.probe_tokens),
        ):
            if tokens < longest:
                raise ValueError(
                    f"[{where}] {key} = {tokens} is smaller than the longest sentence, {longest} tokens; "
                    f"raise it or lower [data] max_length"
                )
        priority = self.mixture.priority
        if isinstance(priority, str):
            if priority not in ("regular", "low", "high"):
                pair = priority if priority in self.data.names else self.data.names[0]
                close = suggestion(priority, ("regular", "low", "high"))
                raise ValueError(
                    f"[mixture] priority must be 'regular', 'low', 'high' or weights such as {{{pair} = 1.0}}, got "
                    f"{priority!r}.{close if 'Did you mean' in close else ''}"
                )
        else:
            self._check_names("[mixture] priority", priority)
        if 0 < self.mixture.probe_budget < 1e-6:
            raise ValueError(f"[mixture] probe_budget = {self.mixture.probe_budget} is too small for any probe")
        if self.mixture.method == "moving-average" and self.mixture.step_ahead:
            raise ValueError(
                "[mixture] step_ahead has no gradients of its own with method = 'moving-average'; set it to 0"
            )
        if self.mixture.schedule != "none" and self.mixture.method != "static":
            raise ValueError(f"[mixture] a schedule needs method = 'static', but it is {self.mixture.method!r}")
        if self.mixture.prior == "explicit":
            self._check_names("[mixture] probabilities", self.mixture.probabilities)
            if missing := [name for name in self.data.names if name not in self.mixture.probabilities]:
                there = ", ".join(map(repr, self.mixture.probabilities)) or "none"
                raise ValueError(f"[mixture] probabilities: {missing[0]!r} is missing; there are {there}")
        return self

    @property
    def dev_weights(self) -> dict[str, float]:
        """{language pair: weight} by which models are compared: the priority if it is weights, else 1 for each.

        "low" and "high" follow the losses, so that the weights of two validations would differ: they count as equal.
        """
        own = self.mixture.priority
        return {name: 1.0 if isinstance(own, str) else own.get(name, 0.0) for name in self.data.names}

    @property
    def weighted(self) -> bool:
        """Whether language pairs differ in their weights, so that a mean over them has to be called weighted."""
        return len(set(self.dev_weights.values())) > 1

    def _check_names(self, where: str, given: dict[str, float]) -> None:
        for name, value in given.items():
            if name not in self.data.names:
                raise ValueError(f"{where}: there is no language pair {name!r}.{suggestion(name, self.data.names)}")
            if not 0 <= value <= 1e100:
                raise ValueError(f"{where}: must not be negative, nor above 1e100, but {name!r} is {value}")
        if math.fsum(given.values()) <= 0:
            raise ValueError(f"{where}: at least one must be above 0")


def mean_of(values: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Returns the weighted mean of {language pair: value}; a value of weight 0 may be anything."""
    counted = {name: weights[name] for name in values if weights[name] > 0}
    return math.fsum(weight * values[name] for name, weight in counted.items()) / math.fsum(counted.values())


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Reads a recipe, applies `section.key=value` overrides, and validates it."""
    table = read_toml(path, "the recipe")
    for override in overrides:
        _apply(table, override)
    return parse_config(table, str(path))


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Reads a TOML file. what: a word for it, for the error if it is a folder."""
    if path.is_dir():
        raise UserError(f"{path}: is a folder; give {what}, a .toml file.")
    try:
        with readable(path, regular=False):
            return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # also bytes that are no text, and numbers of thousands of digits
        raise UserError(f"{path}: not valid TOML: {error}.") from None


def parse_config(table: dict[str, Any], where: str) -> Config:
    try:
        return Config.model_validate(table)
    except ValidationError as error:
        raise UserError(f"{where}: {sentence(error)}") from None


def read_run(folder: Path) -> tuple[Config, dict[str, Any]]:
    """Reads config.json of a run: (its config, all facts)."""
    path = folder / "config.json"
    if not os.path.lexists(path):
        raise UserError(f"{folder}: is not a run (there is no config.json).")
    facts = read_checksummed(path, "restore it from a copy, or train again in another folder.")
    return parse_config(facts.get("config", {}), str(path)), facts


def _apply(table: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    path = key.strip().split(".")
    if not equals or len(path) < 2 or not all(path):
        raise UserError(f"--set {override}: expected section.key=value.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a bare word: the shell has eaten the quotes
    except (ValueError, RecursionError):
        raise UserError(f"--set {key}: the value is no number or text that a recipe can have.") from None
    for part in path[:-1]:
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            raise UserError(f"--set {override}: {part!r} is not a section.")
        table = inner
    table[path[-1]] = value


def sentence(error: ValidationError, root: type[Section] = Config) -> str:
    """Returns the first problem as one line, with a suggestion if a key is unknown."""
    problems = error.errors()
    # A misspelt key comes first: because of it, another one is missing.
    problem = next((problem for problem in problems if problem["type"] == "extra_forbidden"), problems[0])
    place = [str(part) for part in problem["loc"]] or ["config"]
    where = f"[{'.'.join(place[:-1])}] " if len(place) > 1 else ""
    what = "key" if where or root is not Config else "section"
    for given in (place[-1], f"{place[-1]} = {problem['input']}"):
        if removed := _REMOVED.get(".".join([*place[:-1], given])):
            return f"{where}{given} {removed}"
    if problem["type"] == "extra_forbidden":
        section: Any = root
        for part in place[:-1]:
            if inner := get_args(section):  # a dict of sections, or a tuple
                section = inner[-1] if get_origin(section) is dict else inner[0]
                continue
            field = section.model_fields.get(part) if hasattr(section, "model_fields") else None
            section = field.annotation if field else None
        known = tuple(getattr(section, "model_fields", {}))
        return f"{where}has no {what} {place[-1]!r}.{suggestion(place[-1], known)}"
    if problem["type"] == "missing":
        return f"{where}needs the {what} {place[-1]!r}."
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        section_name = f"[{place[0]}] " if place and not message.startswith("[") else ""
        return f"{section_name}{message}" + ("" if message.endswith((".", "?")) else ".")
    got = problem["input"]
    shown = reprlib.repr(got) if isinstance(got, (str, int, float, bool)) else type(got).__name__  # not a whole file
    return f"{where}{place[-1]}: {message[0].lower()}{message[1:]}, but it is {shown}."
