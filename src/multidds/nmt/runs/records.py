"""The types of records: the start of a run, its steps, validations and weights of sentence pairs.

Updates of the mixture are in mixture.jsonl, as of every trainer. Does not import torch.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

Numbers = dict[str, float]  # by dataset, or by dev set


class Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    step: int  # optimizer steps so far


class Started(Record):
    kind: Literal["start"] = "start"
    run: str | None = None  # its identity


class Stepped(Record):
    kind: Literal["step"] = "step"
    loss: float  # per target token
    lr: float
    tokens: int  # target tokens so far
    tokens_per_second: float


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


AnyRecord = Started | Stepped | Validated | Scored
ANY: TypeAdapter[AnyRecord] = TypeAdapter(Annotated[AnyRecord, Field(discriminator="kind")])
