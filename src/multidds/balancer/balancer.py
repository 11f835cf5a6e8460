"""The balancer: Algorithm 1 of the paper, once every M steps of a training loop that stays the user's."""

import copy
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from .._base.removed import OF_BALANCER, removed
from .._base.state import VERSION, check_keys, check_version, not_negative, restored, sums_to_one
from .._base.text import shares
from ..history import Update, append_update, plot
from ..mixture.limits import Limits
from ..mixture.mixture import Mixture
from ..probes.priorities import Priority, weights_of
from ..probes.probe import NotFiniteError, Probe
from ..probes.probed_model import Loss, ProbedModel
from ..probes.probes import Probes
from ..probes.rotation import rotated
from ..probes.round import Round, Training
from ..rules.relevance_plan import RelevancePlan
from ..rules.rule import Findings, Rule
from ..sampling.sources import named_dev_sets
from .arguments import check_data, check_model, check_settings
from .pace import Budget, Pace, pace_of
from .start_line import SAVED, details, distances, shared_data, start_line, warnings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_AVERAGE = 40  # steps over which parameters are averaged for probes of the default rule
_MOST_PARTS = 4  # of a probe that are compared: each has a sketch of every gradient
_ROUNDING = 1e-12  # total variation between two mixtures that count as one
_NEVER = 2**62  # steps until the next update of a frozen balancer
_CHECKS = {
    "steps": not_negative,
    "prior": sums_to_one,
    "plan": sums_to_one,
    "drawn": not_negative,
    "drawn_steps": not_negative,
}
_log = logging.getLogger("multidds")


class Balancer:
    """Learns a mixture while a model trains: call `step()` once after every optimizer step.

    mixture: the `Mixture` that is moved; its present probabilities are the prior, its sizes those of the datasets.
    model: the model that trains.
    loss: (model, batch) -> mean loss of the batch, a scalar tensor: the loss that training minimises.
    train: {dataset: source of probe batches}: a DataLoader, a list of batches, a function generator -> batch (see
        `batches_of`), or an iterable with state_dict and load_state_dict. The names are those of the mixture.
    dev: {dev set: source of probe batches}, likewise; or one source, which is then called "dev". The mixture serves
        these sets.
    steps: optimizer steps of the whole training. Default None: unknown; then there is no plan.
    examples_per_step: examples that one optimizer step draws, over all processes. Default None: unknown, no plan.
    every: optimizer steps between updates, or the `Budget` from which they follow. Default: 2% of the training.
    rule: how the gradients move the mixture: an object of `multidds.rules`. Default `RelevancePlan()`; the paper's
        is `Scorer()`.
    priority: weights of the dev sets: "regular" (equal), "low", "high", {dev set: weight}, or a function of dev losses.
    limits: `Limits` of shares and of passes. Default: none.
    probes: `Probes`: number and mode of probe batches, parameters, dev loss, work split. Change it to trade noise for
        cost.
    seed: for everything random in probes. Default 0.

    An update costs n + K forward and backward passes per probe batch. It leaves the model, its gradients and all random
    states as they were. The default keeps one parameter-sized vector, an average of the parameters, and sketches of the
    gradients; the paper's rule needs one vector in an update. `docs/method.md` explains the rules.
    """

    history: list[Update]  # all of a hundred updates, then fewer and fewer; large tables are left out

    @removed(**OF_BALANCER)
    def __init__(
        self,
        mixture: Mixture,
        model: nn.Module,
        loss: Loss,
        *,
        train: Mapping[str, Any],
        dev: Any,
        steps: int | None = None,
        examples_per_step: float | None = None,
        every: int | Budget = Budget(),
        rule: Rule = RelevancePlan(),
        priority: Priority = "regular",
        limits: Limits = Limits(),
        probes: Probes = Probes(),
        seed: int = 0,
    ) -> None:
        dev = named_dev_sets("Balancer", dev)
        check_data(mixture, train, dev)
        check_settings(loss, every, steps, examples_per_step, rule, seed)
        average = (_AVERAGE if rule.halves else 0) if probes.average is None else probes.average
        probed = ProbedModel(model, loss, probes.params, probes.mode, seed, "Balancer", probes.dev_loss, average)
        check_model(probed, rule, len(mixture))
        self.mixture, self.history = mixture, []
        self._prior, self._rule, self._limits = mixture.probabilities, rule, limits
        self._length, self._examples_per_step = steps, examples_per_step
        sources = {"train": {name: train[name] for name in mixture}, "dev": dev}
        self._probe = Probe("Balancer", probed, sources, probes, priority)
        self._pace = self._pace_of(every, probes)
        self.every, self._probe.batches = self._pace.every, self._pace.batches
        limits.check(mixture.names, mixture.sizes, self._draws(steps), steps)
        self._drawn = dict.fromkeys(mixture.names, 0.0)  # expected draws up to the last update, in steps
        self._drawn_steps = 0  # optimizer steps in them
        self._steps, self._frozen = 0, False
        self._state = rule.start(self._training())
        self._advice = list(self._warnings(every, train, dev))
        self._started = False  # whether the start line was written
        if rule.move and _distance(plan := self._state.mixture, self._prior) > _ROUNDING:
            self._move(plan, step=0)
        self._plan = mixture.probabilities

    def _draws(self, steps: int | None) -> float | None:
        """Returns the examples of a number of steps; None: unknown."""
        return None if steps is None or self._examples_per_step is None else steps * self._examples_per_step

    def _pace_of(self, every: int | Budget, probes: Probes) -> Pace:
        probe, size = self._probe, self._probe.model.replicas.size
        batches: float | None = probes.batches
        if batches is not None and probes.count == "in all":
            batches = batches / size
        cost = 1.0
        if probe.batch_size and self._examples_per_step:
            cost = probe.batch_size * size / self._examples_per_step
        sets = len(probe.names("train")), len(probe.names("dev"))
        pace = pace_of(*sets, every, self._length, batches, self._rule, cost)
        probe.batches = pace.batches
        probe.model.refuse_uneven(probe.total)
        if not self._rule.halves:
            return pace
        probe.divide(_MOST_PARTS)
        if probe.parts < 2:
            raise ValueError(
                f"Balancer: {type(self._rule).__name__} compares the parts of a probe, but a probe has one batch. "
                "Set probes=Probes(batches=2), or more."
            )
        return pace

    def _training(self) -> Training:
        names = self._probe.names("dev")
        weights = dict.fromkeys(names, 1.0 / len(names))
        if isinstance(self.priority, Mapping):
            weights = weights_of(self.priority, weights)
        return Training(self._prior, weights, self.mixture.sizes, self._draws(self._length), self._probe)

    def step(self) -> Update | None:
        """Counts one optimizer step. Every `every`-th step updates the mixture and returns the `Update`.

        If the update raises, the step is not counted: a state saved then makes the update after a resume.
        """
        self.log_start()
        if self._length is not None and self._steps == self._length * 21 // 20 + 1:  # a length may be an estimate
            _log.warning("Balancer: the training goes on after its %d steps. Give steps of the whole.", self._length)
        self._probe.model.average(self._steps + 1)
        update = self._update(self._steps + 1) if self.steps_until_update == 1 else None
        self._steps += 1
        return update

    def update(self) -> Update:
        """Makes one update now, without counting a step."""
        return self._update(self._steps)

    def _update(self, step: int) -> Update:
        """Probes, asks the rule and moves the mixture: Algorithm 1, from "Estimate the effect" on."""
        began, before = time.perf_counter(), self.mixture.probabilities
        self._count_draws(step)
        skipped, findings = None, Findings(rewards={})
        with self._probe.open(mixtures=before, steps=step):
            round_ = self._round(step)
            try:
                findings = self._state.update(self._probe, round_)
            except NotFiniteError as error:
                skipped = str(error)
        if skipped is None and self._rule.move:
            self._move(self._state.mixture, step)
        now = self.mixture.probabilities
        update = Update(
            step=step,
            mixture=now,
            rewards=findings.rewards,
            dev_losses=self._probe.losses("dev"),
            train_losses=self._probe.losses("train"),
            weights=dict(round_.weights),
            alignment=findings.table,
            seconds=time.perf_counter() - began,
            skipped=skipped,
            notes=(*self._probe.notes, *findings.notes),
            noise=findings.errors,
            signal=self._state.signal,
            drift=_distance(now, self._prior),
            learned=_distance(now, self._plan),
            unlearned=_distance(self._plan, self._prior),
            probed=round_.datasets,
            before=before,
            prior=self._prior,
            relevance=self._state.relevance(),
            worth=self._state.worth(),
            held=self._state.held(),
            proposed={} if self._rule.move else dict(self._state.mixture),
        )
        append_update(self.history, update)
        return update

    def _round(self, step: int) -> Round:
        """Returns the sets of a round: all, or a subset in rotation if the budget is too small for all."""
        probe, part = self._probe, self._pace.part
        weights = probe.dev_weights(measure=part is None)
        datasets, dev_sets = probe.names("train"), weights
        if part is not None:
            seed, number = probe.model.seed, probe.rounds
            datasets = tuple(rotated(seed, "train", dict.fromkeys(datasets, 1.0), part[0], number))
            shown = rotated(seed, "dev", weights, part[1], number)
            dev_sets = {name: weights[name] / inclusion for name, inclusion in shown.items()}
        return Round(probe.rounds, step, datasets, dev_sets, weights, self._passes())

    def _move(self, probabilities: Mapping[str, float], step: int) -> None:
        left = self._draws((self._length or 0) - step) or 0.0
        drawn = {name: steps * (self._examples_per_step or 0.0) for name, steps in self._drawn.items()}
        self.mixture.move(self._limits.applied(probabilities, self.mixture.sizes, drawn, left))
        self.mixture.learned = True

    def _count_draws(self, step: int) -> None:
        """Adds the draws since the last update: the mixture has not moved in between."""
        for name, p in self.mixture.probabilities.items():
            self._drawn[name] += p * (step - self._drawn_steps)
        self._drawn_steps = step

    def _passes(self) -> dict[str, float]:
        """Returns the expected passes over each dataset; empty if sizes or examples per step are not known."""
        sizes, examples = self.mixture.sizes, self._examples_per_step
        if sizes is None or examples is None:
            return {}
        return {name: drawn * examples / sizes[name] for name, drawn in self._drawn.items()}

    @property
    def steps_until_update(self) -> int:
        """The calls of `step()` up to the next update: 1 is the next call. Of a frozen balancer, 2**62."""
        return _NEVER if self._frozen else self._pace.until(self._steps)

    def freeze(self) -> None:
        """Stops learning and keeps the mixture; `step()` continues to count. Part of the state."""
        self._frozen = True

    def log_start(self, look: str = SAVED, write: Callable[[str], object] | None = None) -> None:
        """Logs one line about the training that begins or is resumed. `step()` does, if nobody has.

        look: the end of the line: where to see the updates later.
        write: prints the line of a trainer, if logging would not show it. Default None: it is logged.
        """
        if self._started or self._probe.model.replicas.rank != 0:
            return
        self._started = True
        passes = self._whole_passes()
        planned = self._state_plans and bool(passes)
        line = start_line(self.mixture.probabilities, self._pace, passes, look, planned=planned, done=self._steps)
        if not self._steps:
            for sentence in self._advice:
                _log.warning("Balancer: %s", sentence)
        if write is None or _log.isEnabledFor(logging.INFO):
            _log.info("Balancer: %s.", line)
        else:
            write(line)
        _log.debug("%s", self)

    @property
    def _state_plans(self) -> bool:
        return self._rule.move and bool(getattr(self._rule, "plan", False))

    def _whole_passes(self) -> dict[str, float]:
        """Returns the passes of a whole training under the present mixture; empty if they are not known."""
        draws, sizes = self._draws(self._length), self.mixture.sizes
        if draws is None or sizes is None:
            return {}
        return {name: p * draws / sizes[name] for name, p in self.mixture.probabilities.items()}

    def _warnings(self, every: int | Budget, train: Mapping[str, Any], dev: Mapping[str, Any]) -> list[str]:
        facts: dict[str, object] = {"sizes (of the mixture)": self.mixture.sizes, "steps": self._length}
        facts["examples_per_step"] = self._examples_per_step
        missing = [word for word, value in facts.items() if value is None] if self._state_plans else []
        room = self._limits.room(self.mixture.sizes, self._draws(self._length))
        return list(warnings(self._pace, every, self._length, missing, shared_data(train, dev), room))

    def plot(self) -> "Figure":
        """Draws the mixture from the start on, with rewards and dev losses, as `multidds.plot` does."""
        return plot(self.history, self.start)

    @property
    def start(self) -> dict[str, float]:
        """{dataset: probability} at step 0: the prior, or the plan to which the mixture was moved at once."""
        return dict(self._plan)

    def __repr__(self) -> str:
        state = f"frozen at step {self._steps:,}" if self._frozen else f"step {self._steps:,}"
        mixture = f"{len(self.mixture):,} datasets: {shares(self.mixture.probabilities)}"
        return f"Balancer({state}, {distances(self._pace)}; {mixture})"

    def __str__(self) -> str:
        probe = self._probe
        sets = sum(self._pace.part or (len(probe.names("train")), len(probe.names("dev"))))
        memory = {
            "averaged parameters": probe.model.vector_bytes if probe.model.averaged is not None else 0,
            "tables": sets * probe.table_bytes if self._rule.halves else 0,
        }
        weights = self._training().dev_weights
        return "\n".join(
            [repr(self), details(self.mixture.probabilities, self._whole_passes(), weights, self._pace, memory)]
        )

    def observe(self, name: str) -> None:
        """Takes .grad as a gradient of the dataset `name`, for `MovingAverage`: after backward, before clipping.

        With other rewards it does nothing, so that a loop can keep the line.
        """
        self._state.observe(name)

    @property
    def priority(self) -> Priority:
        """The priority of the dev sets. May be assigned at any time; the next update uses it."""
        return self._probe.priority

    @priority.setter
    def priority(self, priority: Priority) -> None:
        self._probe.priority = priority

    @property
    def dev_losses(self) -> dict[str, float] | None:
        """The losses of your last full validation, which rank the dev sets for low and high; None: the probe does."""
        return self._probe.dev_losses

    @dev_losses.setter
    def dev_losses(self, losses: Mapping[str, float] | None) -> None:
        self._probe.dev_losses = losses

    @property
    def parameters_changed(self) -> bool:
        """True if parameters were replaced or unfrozen since the construction: the next update would be refused."""
        return self._probe.model.parameters_changed

    def refresh_parameters(self) -> None:
        """Probes the present trainable parameters from now on, for models that unfreeze or replace some.

        Moving averages of other parameters are forgotten; all else is kept.
        """
        self._probe.model.refresh_parameters()
        self._state.forget_gradients()

    def state_dict(self) -> dict[str, Any]:
        """Returns everything that the next updates depend on, the mixture included; not the model, not the arguments.

        Tensors, if there are any, are under "tensors", flat; all the rest are plain values that survive JSON.
        """
        averaged = self._probe.model.averaged
        return {
            "version": VERSION,
            **self._counts(),
            "mixture": self.mixture.state_dict(),
            "rule": self._state.state_dict(),
            "averaged": None if averaged is None else averaged.state_dict(),
            "probe": self._probe.state_dict(),
            "tensors": {**self._state.tensors(), **({} if averaged is None else averaged.tensors())},
        }

    def _counts(self) -> dict[str, Any]:
        """Returns the part of the state that is numbers of this object."""
        return {
            "steps": self._steps,
            "frozen": self._frozen,
            "prior": dict(self._prior),
            "plan": dict(self._plan),
            "drawn": dict(self._drawn),
            "drawn_steps": self._drawn_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues exactly where the other balancer was; moves the shared mixture."""
        check_version("Balancer", state)
        own = self._counts()
        check_keys("Balancer", state, *own, "mixture", "rule", "averaged", "probe", "tensors")
        counts = restored("Balancer: the state", own, {key: state[key] for key in own}, _CHECKS)
        for part in ("mixture", "rule", "probe", "tensors"):
            check_keys(f"Balancer: the state: {part!r}", state[part])
        rule_state = self._rule.start(replace(self._training(), prior=counts["prior"]))
        tensors = {key: value for key, value in state["tensors"].items() if not key.startswith("averaged.")}
        rule_state.load_state_dict(state["rule"], tensors)
        copy.copy(self.mixture).load_state_dict(state["mixture"])
        averaged = copy.copy(self._probe.model.averaged)
        if averaged is not None:
            averaged.load_state_dict(state["averaged"], state["tensors"])
        self._probe.load_state_dict(state["probe"])
        self.mixture.load_state_dict(state["mixture"])
        self.mixture.learned = self._rule.move
        self._state, self._probe.model.averaged = rule_state, averaged
        self._steps, self._frozen = counts["steps"], counts["frozen"]
        self._prior, self._plan = counts["prior"], counts["plan"]
        self._drawn, self._drawn_steps = counts["drawn"], counts["drawn_steps"]


def _distance(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Returns the total variation between two mixtures: half of the sum of the differences."""
    return math.fsum(abs(p - other[name]) for name, p in one.items()) / 2
