"""Settings of probes, which `Balancer` and `ExampleScorer` share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from .._base.checks import check_whole

_CHOICES = {"count": ("per process", "in all"), "mode": ("train", "eval")}


@dataclass(frozen=True, eq=False)
class Probes:
    """Probe batches of an update, and the gradients taken of them.

    batches: probe batches of each dataset and dev set in an update; None: chosen by the owner.
    count: "per process": every process draws that many batches; "in all": the processes divide them, so that results
        do not depend on the number of processes.
    mode: "train" or "eval": whether dropout and similar layers are active in probes.
    params: the parameters whose gradients count; None: all trainable ones.
    dev_loss: (model, batch) -> scalar tensor, the loss on the dev sets; None: the training loss.
    split_work: whether each process computes gradients of other datasets, which needs less communication. All must
        draw the same batches, and the loss must not wait for other processes. None: for sources that `batches_of`
        made, unless the model has a SyncBatchNorm. True: always. False: never, all compute every gradient together.
        An `ExampleScorer` never splits. Default None.
    average: steps over which the parameters are averaged at which gradients are taken; one more parameter-sized vector.
        0: at the parameters themselves, as the paper does, or for a model that is an average already. Default None: 40
        for rules that compare halves of probes, as the default does. Not for `ExampleScorer`.
    """

    batches: int | None = None
    count: str = "per process"
    mode: str = "train"
    params: Iterable[Tensor] | None = field(default=None, repr=False)
    dev_loss: Callable[[Any, Any], Tensor] | None = None
    split_work: bool | None = None
    average: int | None = None

    def __post_init__(self) -> None:
        if self.batches is not None:
            check_whole("Probes", batches=self.batches)
        if self.average not in (None, 0):
            check_whole("Probes", average=self.average)
        for word, allowed in _CHOICES.items():
            value = getattr(self, word)
            if value not in allowed:
                raise ValueError(f"Probes: {word} must be {' or '.join(map(repr, allowed))}, but it is {value!r}.")
        if self.count == "in all" and self.batches is None:
            raise ValueError("Probes: count='in all' needs a number of batches; give batches=...")
        if self.split_work not in (None, True, False):
            raise ValueError(f"Probes: split_work must be None, True or False, but it is {self.split_work!r}.")
        if self.dev_loss is not None and not callable(self.dev_loss):
            kind = type(self.dev_loss).__name__
            raise TypeError(f"Probes: dev_loss must be a function (model, batch) -> scalar tensor, got {kind}.")
        if self.params is not None:  # an iterator has only one pass
            object.__setattr__(self, "params", tuple(self.params))

    def in_all(self, processes: int, default: int = 1) -> int:
        """Returns the probe batches of a set over all processes; `default` per process, unless batches are given."""
        batches = default if self.batches is None else self.batches
        return batches if self.count == "in all" else batches * processes
