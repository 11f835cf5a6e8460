"""The types of records: the start of a run, its steps, updates, validations and weights of sentence pairs.

The words for the findings of an update are those of `Update.groups`, in records, on TensorBoard and in reports. Does
not import torch.
"""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from multidds.history import Relevance

Numbers = dict[str, float]  # by dataset, or by dev set


class Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    step: int  # optimizer steps so far


class Started(Record):
    kind: Literal["start"] = "start"
    mixture: Numbers
    run: str | None = None  # its identity


class Stepped(Record):
    kind: Literal["step"] = "step"
    loss: float  # per target token
    lr: float
    tokens: int  # target tokens so far
    tokens_per_second: float


class AlignmentFacts(BaseModel):
    """The table of inner products of an update, as cosines and norms."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rewards: dict[str, Numbers]  # both, whichever the run uses: "multidds", "multidds-s"
    cosines: list[list[float]]  # [dev, train]
    train_norms: list[float]
    dev_norms: list[float] | list[list[float]]  # [dev]; with step-ahead [dev, train]


class Updated(Record):
    kind: Literal["update"] = "update"
    mixture: Numbers
    reward: Numbers
    train_loss: Numbers
    dev_loss: Numbers  # of the probe
    dev_weight: Numbers
    noise: Numbers = {}  # standard errors of the rewards, if the update estimated them
    signal: float | None = None  # the share of the rewards that is not noise, 0 to 1
    drift: float = 0.0  # total variation between the mixture and the prior
    learned: float = 0.0  # and between the mixture and the plan
    unlearned: float = 0.0  # and between the plan and the prior
    passes: Numbers
    skipped: str | None
    notes: list[str]
    seconds: float
    alignment: AlignmentFacts | None = None
    relevance: Relevance = {}  # by all evidence so far, if the rule estimates it


class Validated(Record):
    kind: Literal["validation"] = "validation"
    epoch: int
    dev_loss: Numbers  # of the whole dev sets, without label smoothing
    perplexity: Numbers
    accuracy: Numbers
    expected_accuracy: Numbers
    soft_bleu: Numbers
    mean: float  # dev loss
    means: Numbers  # over the dev sets, by measure; weighted by the priority if it is weights
    best: bool  # whether the model was kept as the best so far
    passes: Numbers
    mixture: Numbers
    sentences: int
    tokens: int
    finished: str  # the reason, if it is
    seconds: float
    clock: Numbers  # seconds so far, by what they were spent on


class ExampleFacts(BaseModel):
    """A sentence pair of the training data, and how much it counted when it was last trained on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dataset: str
    number: int  # among its prepared sentence pairs, from 0
    weight: float
    source: str
    target: str


class Scored(Record):
    """The last weights of the sentence pairs seen so far, if [examples] gives them weights."""

    kind: Literal["examples"] = "examples"
    edges: list[float]  # between the bins
    histogram: dict[str, list[int]]  # of the weights, by dataset
    weight: Numbers  # their mean
    highest: list[ExampleFacts]
    lowest: list[ExampleFacts]
    skipped: str | None  # why the last update did not change the scores


AnyRecord = Started | Stepped | Updated | Validated | Scored
ANY: TypeAdapter[AnyRecord] = TypeAdapter(Annotated[AnyRecord, Field(discriminator="kind")])


def mixtures_of(records: Iterable[AnyRecord]) -> list[tuple[int, Numbers]]:
    """Returns (step, mixture from there on), from the start of a run to its last update."""
    return [(record.step, record.mixture) for record in records if isinstance(record, Started | Updated)]
