"""A model whose gradients are taken without a trace in its parameters, gradients, buffers or any random state."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from .._base.randomness import derive, preserved, seed_all
from .._base.ranks import Ranks
from ..gradients.parallel_models import layout_of, parameters_of, resharded, set_aside, unwrapped
from ..gradients.sketch import Sketcher
from ..gradients.vectors import Gradient, added, wide
from .averaged_parameters import AveragedParameters
from .round import KINDS

Loss: TypeAlias = Callable[[Any, Any], Tensor]
Numbered: TypeAlias = tuple[int, Any]  # a batch, and its number among those of all replicas


class ProbedModel:
    """One model and its loss. All work happens inside `with model.invisible():`."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        params: Iterable[Tensor] | None,
        mode: str,
        seed: int,
        owner: str,
        dev_loss: Loss | None = None,
        average: int = 0,
    ) -> None:
        if mode not in ("train", "eval"):
            raise ValueError(f"{owner}: mode must be 'train' or 'eval', but it is {mode!r}.")
        self.model, self._group = unwrapped(model, owner)
        self._loss, self._dev_loss, self._mode, self.seed = loss, dev_loss or loss, mode, seed
        self._chosen = None if params is None else set(params)
        self._owner = owner
        self._average = average  # steps over which parameters are averaged; 0: probes are taken at the parameters
        self.refresh_parameters()

    def refresh_parameters(self) -> None:
        """Takes the present trainable parameters, or those of them that were chosen."""
        trainable, chosen = self._trainable(), self._chosen
        if chosen is not None:
            if chosen - set(parameters_of(self.model).values()):
                raise ValueError(f"{self._owner}: params must be parameters of the model, but some are not.")
            trainable = {p: name for p, name in trainable.items() if p in chosen}
        if not trainable:
            where = "." if chosen is None else " in params."
            raise ValueError(f"{self._owner}: the model has no trainable parameters{where}")
        self.params, self.names = list(trainable), list(trainable.values())
        self._refuse_hooks()
        self.layout, group = layout_of(self.model, self.params, self.names, self._owner)
        self._group = group if self.layout.sharded else self._group
        self.replicas = Ranks(self.params[0].device, self._group)
        self.averaged: AveragedParameters | None = None
        if self._average:
            self.averaged = AveragedParameters(self.params, self.names, self.layout, self._average)

    def average(self, step: int) -> None:
        """Adds the parameters after an optimizer step to their average, if there is one."""
        if self.averaged is not None:
            self.averaged.update(step)

    def _trainable(self) -> dict[Tensor, str]:
        return {p: name for name, p in parameters_of(self.model).items() if p.requires_grad}

    def _refuse_hooks(self) -> None:
        for p, name in zip(self.params, self.names, strict=True):
            if p._post_accumulate_grad_hooks:  # such a hook steps the optimizer or moves the gradient away
                raise ValueError(
                    f"{self._owner}: the parameter {name!r} has a post-accumulate-grad hook; probes would set it off."
                )

    def refuse_narrow_steps(self) -> None:
        """theta - eta t rounds back to theta where theta has eight bits."""
        for p, name in zip(self.params, self.names, strict=True):
            if wide(p.dtype) != p.dtype:
                raise ValueError(f"{self._owner}: step_ahead is lost in rounding: the parameter {name!r} is {p.dtype}.")

    @property
    def vector_bytes(self) -> int:
        """The memory of one parameter-sized vector, or of what this rank holds of it."""
        return sum(self.layout.local(p).numel() * wide(p.dtype).itemsize for p in self.params)

    @property
    def parameters_changed(self) -> bool:
        """Whether parameters were replaced or unfrozen since the construction or the last refresh."""
        replaced = set(self.params) - set(parameters_of(self.model).values())
        unfrozen = set() if self._chosen is not None else set(self._trainable()) - set(self.params)
        return bool(replaced or unfrozen)

    @contextmanager
    def invisible(self) -> Iterator[None]:
        """Around all probes of an update: gradients, buffers, flags and random states are afterwards what they were."""
        with set_aside(self.model):
            self._refuse_hooks()
            if self.parameters_changed:
                raise ValueError(
                    f"{self._owner}: parameters were replaced or unfrozen since its construction; make a new one."
                )
            self.replicas = Ranks(self.params[0].device, self._group)
            self._devices = sorted({t.device for t in [*self.model.parameters(), *self.model.buffers()]}, key=str)
            averaged = nullcontext() if self.averaged is None else self.averaged.applied()
            with self._put_back(), averaged, preserved(self._devices), torch.inference_mode(False), torch.enable_grad():
                yield

    @contextmanager
    def _put_back(self) -> Iterator[None]:
        grads = self._grads = [(p, p.grad) for p in self.model.parameters()]
        flags = _flags(self.model)
        self._buffers = [
            (module, [(name, b, None if b is None else b.clone()) for name, b in module._buffers.items()])
            for module in self.model.modules()
        ]
        try:
            self._clear()
            if self._mode == "eval":
                self.model.eval()
            elif not self.model.training:  # a model in training may keep parts of it in eval mode: leave those
                self.model.train()
            yield
        finally:
            resharded(self.model)
            _set_flags(flags)
            for p, grad in grads:
                p.grad = grad
            self._restore_buffers()
            del self._buffers, self._grads

    @contextmanager
    def alone(self) -> Iterator[None]:
        """In the block this process takes gradients without the other replicas, and all batches of each."""
        together, self.replicas = self.replicas, Ranks.alone(self.params[0].device)
        try:
            yield
        finally:
            self.replicas = together

    def numbers(self, total: int) -> range:
        """Which of `total` batches, numbered over all replicas, this replica takes."""
        rank, size = self.replicas.rank, self.replicas.size
        return range(rank * total // size, (rank + 1) * total // size)

    def refuse_uneven(self, total: int) -> None:
        """Raises a ValueError if ranks that hold shards would take different numbers of `total` batches."""
        if self.layout.sharded and total % self.replicas.size:
            raise ValueError(
                f"{self._owner}: probe batches in all must be a multiple of the {self.replicas.size} ranks that hold "
                f"shards, but they are {total}."
            )

    def gradient(
        self,
        key: tuple[str, str, int],
        batches: Iterable[Numbered],
        total: int,
        after_each: Callable[[int, Gradient], None] | None = None,
    ) -> tuple[Gradient, float]:
        """The gradient of the mean loss over the `total` batches of all replicas, and that loss.

        batches: those of this replica, with their numbers. `key` is (role, name, number of the update): with the number
        of the batch it seeds what is random in the forward pass. `after_each` sees the number of each batch, and what
        this replica's batches up to it add to the mean; of a sharded model, whose gradients are the means over all
        replicas, the number among this replica's.
        """
        of = self._dev_loss if key[0] == "dev" else self._loss
        narrow = any(wide(p.dtype) != p.dtype for p in self.params)
        total_gradient, losses, sharded = None, [], self.layout.sharded
        count = total / self.replicas.size
        # With `inputs` reentrant checkpointing does not work, so only where it is needed. FSDP2 has others.
        inputs = None if self._chosen is None or sharded else self.params
        with self._failing_together():
            for place, (j, batch) in enumerate(self._drawn(batches)):
                with self._seeded(key, j):
                    loss = self._checked_loss(key, batch, of)
                    torch.autograd.backward(loss / count, inputs=inputs)
                losses.append(loss.detach())
                if narrow and total > 1:  # float32 sums: .grad itself would round
                    total_gradient = added(total_gradient, self._taken())
                if after_each is not None:
                    after_each(place if sharded else j, self._held() if total_gradient is None else total_gradient)
        gradient = total_gradient if total_gradient is not None else self._taken()
        if self.replicas.size > 1 and not sharded:
            gradient = [
                torch.zeros_like(p, dtype=wide(p.dtype)) if g is None else g.to(wide(p.dtype))
                for p, g in zip(self.params, gradient, strict=True)
            ]
            self.replicas.average(g for g in gradient if g is not None)
        return gradient, self._mean(losses, count)

    def loss(self, key: tuple[str, str, int], batches: Iterable[Numbered], total: int) -> float:
        """The mean loss over the `total` batches of all replicas: forward only, in eval mode."""
        losses, flags = [], _flags(self.model)
        with self._failing_together(), torch.no_grad():
            self.model.eval()
            for j, batch in self._drawn(batches):
                with self._seeded(key, j):
                    losses.append(self._checked_loss(key, batch, self._loss))
        _set_flags(flags)
        return self._mean(losses, total / self.replicas.size)

    def combine(self, sketches: Iterable[Tensor]) -> None:
        """Make sketches of what this rank has found of a gradient those of the whole mean gradient, in place."""
        if not self.layout.sharded:
            self.replicas.average(sketches)
            return
        for sketch in sketches:
            self.layout.total(sketch)

    def sketch(self, sketcher: Sketcher, gradient: Gradient) -> Tensor:
        """Returns the sketch of what this rank holds of a gradient, where the gradient is."""
        device = self.params[0].device
        sketch = sketcher.new(wide(self.params[0].dtype), device)
        for place, (name, g) in enumerate(zip(self.names, gradient, strict=True)):
            if g is not None:
                for start, part in self.layout.flat_slices(place, g.to(device)):
                    sketcher.add(sketch, name, part, start)
        return sketch

    def forward(
        self, key: tuple[str, str, int], batch: Any, function: Callable[[Any, Any], Tensor], number: int | None = None
    ) -> Tensor:
        """function(model, batch) without gradients; the same key, the same random numbers on this replica, or for the
        batch of this number on any.
        """
        with self._seeded(key, self.replicas.rank if number is None else number), torch.no_grad():
            return function(self.model, batch)

    @contextmanager
    def moved(self, gradient: Gradient, step: float) -> Iterator[None]:
        """At theta' = theta - step * gradient: one step of plain gradient descent ahead, then back, bit for bit."""
        resharded(self.model)
        # Through .data: the version counters, which autograd checks, do not change either.
        here = [self.layout.local(p.data).data for p in self.params]
        saved = [p.clone() for p in here]
        try:
            for p, g in zip(here, gradient, strict=True):
                if g is not None:
                    p.sub_(g.to(p.dtype), alpha=step)
            torch.clear_autocast_cache()
            yield
        finally:
            resharded(self.model)  # what is gathered now is of the other parameters
            for p, value in zip(here, saved, strict=True):
                p.copy_(value)
            torch.clear_autocast_cache()

    def _failing_together(self) -> AbstractContextManager[None]:
        """Passes of a sharded model wait for each other, so that nobody would hear of an error in one: see `_drawn`."""
        return nullcontext() if self.layout.sharded else self.replicas.raise_on_all_ranks()

    def _drawn(self, batches: Iterable[Numbered]) -> Iterator[Numbered]:
        """Where the passes themselves need all ranks, a batch that cannot be drawn is an error on all before them."""
        if not self.layout.sharded:
            yield from batches
            return
        iterator = iter(batches)
        while True:
            with self.replicas.raise_on_all_ranks():
                numbered = next(iterator, None)
            if numbered is None:
                return
            yield numbered

    @contextmanager
    def _seeded(self, key: tuple[str, str, int], j: int) -> Iterator[None]:
        """One pass: random numbers from (seed, role, name, update, batch), buffers put back behind it."""
        seed_all(derive(self.seed, "pass", *key, j), self._devices)
        yield
        self._restore_buffers()  # so that no probe can change what the next one sees

    def _checked_loss(self, key: tuple[str, str, int], batch: Any, of: Loss) -> Tensor:
        role, name, _ = key
        try:
            loss = of(self.model, batch)
        except Exception as error:
            error.add_note(f"{self._owner}: raised by the loss of a probe batch of {KINDS[role]} {name!r}.")
            raise
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(
                f"{self._owner}: loss(model, batch) must return a scalar tensor, got {got} for {role} {name!r}."
            )
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise ValueError(f"{self._owner}: the loss of {role} {name!r} does not depend on any trainable parameter.")
        return loss.reshape(())

    def _mean(self, losses: list[Tensor], count: float) -> float:
        """count: of the losses of a replica, in the mean over all replicas."""
        values: list[float] = torch.stack(losses).tolist() if losses else []
        return self.replicas.mean(sum(values) / count)

    def _held(self) -> Gradient:
        """What this rank holds of what backward left in .grad; dense."""
        held = [None if p.grad is None else self.layout.local(p.grad) for p in self.params]
        return [g.to_dense() if g is not None and g.is_sparse else g for g in held]

    def _taken(self) -> Gradient:
        """The same, and .grad is then None again."""
        gradient = self._held()
        self._clear()
        return gradient

    def _clear(self) -> None:
        for p, _ in self._grads:  # a model of FSDP2 may have others after a pass, which are gathered
            p.grad = None

    def _restore_buffers(self) -> None:
        for module, buffers in self._buffers:
            module._buffers.clear()  # also of buffers that a forward pass has added
            for name, buffer, value in buffers:
                if buffer is not None and value is not None and not _overlaps(buffer):
                    buffer.data.copy_(value)
                module._buffers[name] = buffer


def _flags(model: nn.Module) -> list[tuple[nn.Module, bool]]:
    return [(module, module.training) for module in model.modules()]


def _set_flags(flags: list[tuple[nn.Module, bool]]) -> None:
    for module, training in flags:
        module.training = training


def _overlaps(tensor: Tensor) -> bool:
    """Expanded memory: cannot be written in place, by anyone."""
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
