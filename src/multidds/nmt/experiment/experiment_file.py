"""The experiment file as typed, validated models: recipes, methods and seeds, in blocks."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from multidds._base.errors import UserError
from multidds._base.text import suggestion

from ..config.config import NAME, Count, Positive, Section, Seed, Threads, read_toml, sentence


class NamedRecipe(Section):
    """A setting: a recipe and the changes to it."""

    recipe: str
    set: dict[str, Any] = Field(default_factory=dict)


class Method(Section):
    """A method: the changes to every recipe that it is tried on."""

    set: dict[str, Any] = Field(default_factory=dict)


class Block(Section):
    """Every setting with every method and every seed."""

    name: str
    settings: Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
    methods: Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1, strict=False)]


class Cluster(Section):
    """The request for each run on a cluster, in the words of its scheduler."""

    partition: str = ""
    gpus: Count = 0  # with more than one, torchrun starts a process for each
    time: str = ""  # "8:00:00"; by default the limit of the partition
    memory: str = ""  # "16G"; by default that of the partition


class Experiment(Section):
    folder: Annotated[Path, Field(strict=False)]
    parallel: Positive = 1
    threads: Threads = 1
    evaluate: bool = True
    cluster: Cluster = Cluster()
    settings: dict[str, NamedRecipe]
    methods: dict[str, Method]
    blocks: Annotated[tuple[Block, ...], Field(min_length=1, strict=False)]

    @model_validator(mode="after")
    def _check(self) -> "Experiment":
        for kind, known in (("settings", tuple(self.settings)), ("methods", tuple(self.methods))):
            for name in known:
                if not NAME.fullmatch(name):
                    raise ValueError(
                        f"[{kind}] {name!r} becomes the name of a folder: "
                        "letters, digits, '_', '.' and '-' only, and no '.' or '-' in front"
                    )
            for block in self.blocks:
                for name in getattr(block, kind):
                    if name not in known:
                        what = kind.removesuffix("s")
                        raise ValueError(
                            f"[blocks] {block.name!r}: there is no {what} {name!r}.{suggestion(name, known)}"
                        )
        return self


def load_experiment(path: Path, folder: Path | None = None) -> Experiment:
    """Reads an experiment. folder: for its runs, instead of the file's."""
    given = read_toml(path, "the experiment")
    try:
        return Experiment.model_validate(given if folder is None else {**given, "folder": folder})
    except ValidationError as error:
        raise UserError(f"{path}: {sentence(error, Experiment)}") from None
