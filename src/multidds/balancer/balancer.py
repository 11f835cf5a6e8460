"""The balancer: Algorithm 1 of the paper, once every M steps of a training loop that stays the user's."""

import copy
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from .._base.checks import check_names
from .._base.state import VERSION, check_keys, check_version
from .._base.text import shares
from ..history import Update, append_update, plot
from ..mixture.limits import Limits
from ..mixture.mixture import Mixture
from ..probes.probe_sources import ProbeSources
from ..probes.prober import Loss, Prober
from ..probes.probes import Probes
from ..rewards.estimate import Estimate
from ..rewards.estimator import Estimator, Measurement, Part
from ..rewards.gradient_probes import GradientProbes
from ..rewards.kinds import Reward, StabilizedCosine
from ..rewards.memory import RewardMemory, numbered
from ..rewards.mixed_batches import MixedBatches
from ..rewards.priorities import Priority, weights_of
from ..rules.relevance_plan import MAX_PAIRS, RelevancePlan
from ..rules.rule import Evidence, Rule, RuleState, Training
from .arguments import check_data, check_groups, check_model, check_settings, named_dev_sets
from .pace import Budget, Pace, pace_of
from .start_line import SAVED, StartLine

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_AVERAGE = 40  # steps over which parameters are averaged for probes of the default rule
_ROUNDING = 1e-12  # total variation between two mixtures that count as one
_NEVER = 2**62  # steps until the next update of a frozen balancer
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
    reward: what a dataset is worth: an object of `multidds.rewards`. Default: its mean cosine with the dev sets.
    rule: how evidence moves the mixture: an object of `multidds.rules`. Default `RelevancePlan()`; the paper's
        is `Scorer()`.
    priority: weights of the dev sets: "regular" (equal), "low", "high", {dev set: weight}, or a function of dev losses.
    limits: `Limits` of shares and of passes. Default: none.
    groups: {dataset: group} of datasets that have much in common: their rewards are shrunk towards the group's mean.
    probes: `Probes`: number and mode of probe batches, parameters, dev loss, work split. Change it to trade noise for
        cost.
    seed: for everything random in probes. Default 0.

    An update costs n + K forward and backward passes per probe batch and the memory of one parameter-sized vector. It
    leaves the model, its gradients and all random states as they were; the default keeps one more vector, an average
    of the parameters. `docs/method.md` explains the rules.
    """

    history: list[Update]  # all of a hundred updates, then fewer and fewer; large tables are left out

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
        reward: Reward = StabilizedCosine(),
        rule: Rule = RelevancePlan(),
        priority: Priority = "regular",
        limits: Limits = Limits(),
        groups: Mapping[str, str] | None = None,
        probes: Probes = Probes(),
        seed: int = 0,
    ) -> None:
        # long: fifteen arguments, and the parts that are made of them in order.
        dev = named_dev_sets("Balancer", dev)
        check_data(mixture, train, dev)
        if mixture.learned:
            _log.warning(
                "Balancer: another balancer has moved this mixture, and this one begins with what it left (%s). To "
                "begin anew, make a new Mixture.",
                shares(mixture.probabilities),
            )
        check_settings(loss, every, steps, examples_per_step, reward, rule, seed)
        members = check_groups(mixture.names, groups)
        average = (_AVERAGE if rule.needs_errors else 0) if probes.average is None else probes.average
        self._prober = Prober(
            model,
            loss,
            probes.params,
            probes.mode,
            seed,
            owner="Balancer",
            dev_loss=probes.dev_loss,
            average=average,
        )
        check_model(self._prober, reward, len(mixture))
        sources = ProbeSources("Balancer", {"train": train, "dev": dev}, seed)
        pace = self._pace(every, steps, examples_per_step, reward, rule, probes, sources)
        part = None if pace.part is None else Part(*pace.part, members)
        if part is not None and pace.mixed and probes.dev_loss is not None:  # one gradient per dev set
            part = replace(part, dev_sets=min(part.dev_sets, pace.mixed[1]))
        measurement = self._measurement(reward, rule, probes, pace, sources)
        self.mixture = mixture
        self.every = pace.every
        self._estimator = Estimator(mixture.names, self._prober, sources, measurement, part)
        self.priority = priority
        draws = steps * examples_per_step if steps is not None and examples_per_step is not None else None
        self._limits = limits.tracker(mixture.names, members, mixture.sizes, draws, steps)
        self._examples_per_step = examples_per_step
        self._drawn = dict.fromkeys(mixture.names, 0.0)  # expected draws up to the last update
        self._drawn_steps = 0  # optimizer steps in them
        self._prior = mixture.probabilities
        self._rule = self._start_rule(rule, draws, members)
        if _distance(plan := self._rule.mixture, self._prior) > _ROUNDING:
            self._move(self._limits.applied(plan, step=0))
        self._plan = mixture.probabilities
        self._memory: RewardMemory | None = None
        by_rewards = rule.needs_errors and not measurement.measures_relevance
        if groups is not None or part is not None or by_rewards or len(train) * len(dev) > MAX_PAIRS:
            self._memory = RewardMemory(numbered([members.get(name) for name in sorted(mixture.names)]))
        self._steps = 0
        self._frozen = False
        self.history = []
        self._start_line: StartLine | None = StartLine(
            shares=self._plan,
            sizes=mixture.sizes,
            train=train,
            dev=dev,
            steps=steps,
            examples_per_step=examples_per_step,
            every=every,
            pace=pace,
            plans=getattr(rule, "plan", False),
            average=average,
            vector_bytes=self._prober.vector_bytes,
            table_bytes=getattr(measurement, "set_bytes", 0) * sum(pace.part or (len(train), len(dev))),
            goals=self._goals(),
        )

    def _pace(
        self,
        every: int | Budget,
        steps: int | None,
        examples_per_step: float | None,
        reward: Reward,
        rule: Rule,
        probes: Probes,
        sources: ProbeSources,
    ) -> Pace:
        size = self._prober.replicas.size
        batches: float | None = probes.batches
        if batches is not None and probes.count == "in all":
            batches = batches / size
        return pace_of(
            len(sources.names("train")),
            len(sources.names("dev")),
            every,
            steps,
            batches,
            halves=rule.needs_errors,
            ahead=reward.ahead is not None,
            needs_all=reward.needs_all,
            mixed=None if reward.losses is None else sources.mixing("train")[0] * size,
            cost=sources.batch_size * size / examples_per_step if sources.batch_size and examples_per_step else 1.0,
        )

    def _measurement(
        self, reward: Reward, rule: Rule, probes: Probes, pace: Pace, sources: ProbeSources
    ) -> Measurement:
        if reward.losses is not None:
            assert pace.mixed is not None
            per_set = None if probes.dev_loss is None else probes
            return MixedBatches(self._prober, reward.losses, sources, *pace.mixed, per_set)
        return GradientProbes(
            sources.names("train"),
            sources.names("dev"),
            self._prober,
            sources,
            reward,
            batches=pace.batches,
            total=probes.batches if probes.count == "in all" else None,
            errors=rule.needs_errors,
            split_work=probes.split_work,
        )

    def _start_rule(self, rule: Rule, draws: float | None, groups: Mapping[str, str]) -> RuleState:
        """Returns the state of the rule, and keeps what it starts with for the states that are loaded."""
        dev = self._estimator.dev
        weights = dict.fromkeys(dev.names, 1.0 / len(dev.names))
        if isinstance(self.priority, Mapping):
            weights = weights_of(self.priority, weights)
        self._training = Training(self._prior, weights, self.mixture.sizes, draws, groups)
        self._rule_settings = rule
        return rule.start(self._training)

    def _goals(self) -> dict[str, float]:
        """Returns {dev set: weight} above 0, if the priority names dev sets."""
        if not isinstance(self.priority, Mapping):
            return {}
        weights = weights_of(self.priority, dict.fromkeys(self._estimator.dev.names, 0.0))
        return {name: weight for name, weight in weights.items() if weight}

    def step(self) -> Update | None:
        """Counts one optimizer step. Every `every`-th step updates the mixture and returns the `Update`.

        If the update raises, the step is not counted: a state saved then makes the update after a resume.
        """
        self.log_start()
        self._limits.count(self._steps + 1, self.mixture)
        if self._prober.averaged is not None:
            self._prober.averaged.update(self._steps + 1)
        update = self._update(self._steps + 1) if self.steps_until_update == 1 else None
        self._steps += 1
        return update

    def log_start(
        self, look: str = SAVED, write: Callable[[str], object] | None = None, cost: float | None = None
    ) -> None:
        """Logs the line about the training that begins: plan, updates, cost, memory. `step()` does, if nobody has.

        look: the end of the line: where to see the updates later.
        write: prints the line of a trainer, if logging would not show it. Default None: it is logged.
        cost: time of updates per time of training. Default None: as their batches are to those of training.
        """
        line, self._start_line = self._start_line, None
        if line is None or self._prober.replicas.rank != 0:
            return
        if write is None or line.level == logging.WARNING or _log.isEnabledFor(line.level):
            _log.log(line.level, "Balancer: %s.", line.text(look, cost))
        else:
            write(line.text(look, cost))

    @property
    def steps_until_update(self) -> int:
        """The calls of `step()` up to the next update: 1 is the next call. Of a frozen balancer, 2**62."""
        return _NEVER if self._frozen else self.every - self._steps % self.every

    def freeze(self) -> None:
        """Stops learning and keeps the mixture; `step()` continues to count. Part of the state."""
        self._frozen = True

    def update(self) -> Update:
        """Makes one update now, without counting a step."""
        return self._update(self._steps)

    def _update(self, step: int) -> Update:
        """Estimates rewards and moves the mixture: Algorithm 1, from "Estimate the effect" on."""
        began, before = time.perf_counter(), self.mixture.probabilities
        self._count_draws(step)
        estimate = self._estimator.estimate({"mixtures": before, "steps": step})
        skipped, evidence = estimate.trouble, None
        if skipped is None:
            evidence = self._evidence(estimate)
            probabilities = None if evidence is None else self._rule.step(evidence)
            if probabilities is None:
                skipped = "the rewards gave no finite probabilities"
            else:
                self._move(self._limits.applied(probabilities, step))
        evidence = evidence or Evidence(estimate.rewards, estimate.errors)
        now = self.mixture.probabilities
        update = Update(
            step=step,
            mixture=now,
            rewards=evidence.rewards,
            dev_losses=estimate.dev_losses,
            train_losses=estimate.train_losses,
            weights=estimate.weights,
            alignment=estimate.alignment,
            seconds=time.perf_counter() - began,
            skipped=skipped,
            notes=(*estimate.notes, *self._rule.notes(evidence)),
            noise=evidence.errors,
            signal=self._rule.signal,
            drift=_distance(now, self._prior),
            learned=_distance(now, self._plan),
            unlearned=_distance(self._plan, self._prior),
            probed=tuple(estimate.rewards),
            before=before,
            prior=self._prior,
            relevance=self._rule.relevance(),
        )
        append_update(self.history, update)
        return update

    def _move(self, probabilities: Mapping[str, float]) -> None:
        self.mixture.move(probabilities)
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

    def _evidence(self, estimate: Estimate) -> Evidence | None:
        """Returns the evidence for the rule; None: rewards are not finite."""
        evidence = Evidence(
            rewards=estimate.rewards,
            errors=estimate.errors,
            relevance=estimate.relevance,
            weights=estimate.weights,
            train_losses=estimate.train_losses,
            dev_losses=estimate.dev_losses,
            passes=self._passes(),
        )
        if self._memory is None:
            return evidence
        order = sorted(self.mixture.names)
        places = [place for place, name in enumerate(order) if name in estimate.rewards]
        rewards = [estimate.rewards[order[place]] for place in places]
        errors = [estimate.errors[order[place]] for place in places] if estimate.errors else None
        if not self._memory.add(places, rewards, errors, estimate.degrees):
            return None
        posterior = self._memory.posterior()
        means = dict(zip(order, posterior.rewards, strict=True))
        deviations = dict(zip(order, posterior.errors, strict=True))
        return replace(
            evidence,
            rewards={name: means[name] for name in self.mixture},
            errors={name: deviations[name] for name in self.mixture},
        )

    def plot(self) -> "Figure":
        """Draws the mixture from the start on, with rewards and dev losses, as `multidds.plot` does."""
        return plot(self.history, self.start)

    @property
    def start(self) -> dict[str, float]:
        """{dataset: probability} at step 0: the prior, or the plan to which the mixture was moved at once."""
        return dict(self._plan)

    def __repr__(self) -> str:
        state = f"frozen at step {self._steps:,}" if self._frozen else f"step {self._steps:,}"
        every = f"an update every {self.every:,}" if self.every > 1 else "an update at every step"
        return f"Balancer({state}, {every}; {len(self.mixture):,} datasets: {shares(self.mixture.probabilities)})"

    def observe(self, name: str) -> None:
        """Takes .grad as a gradient of the dataset `name`, for `MovingAverage`: after backward, before clipping.

        With other rewards it does nothing, so that a loop can keep the line.
        """
        self._estimator.observe(name)

    @property
    def priority(self) -> Priority:
        """The priority of the dev sets. May be assigned at any time; the next update uses it."""
        return self._estimator.dev.weights.priority

    @priority.setter
    def priority(self, priority: Priority) -> None:
        self._estimator.dev.weights.priority = priority

    @property
    def dev_losses(self) -> dict[str, float] | None:
        """The losses of your last full validation, which rank the dev sets for low and high; None: the probe does."""
        return self._estimator.dev.weights.losses

    @dev_losses.setter
    def dev_losses(self, losses: Mapping[str, float] | None) -> None:
        self._estimator.dev.weights.losses = losses

    @property
    def parameters_changed(self) -> bool:
        """True if parameters were replaced or unfrozen since the construction: the next update would be refused."""
        return self._prober.parameters_changed

    def refresh_parameters(self) -> None:
        """Probes the present trainable parameters from now on, for models that unfreeze or replace some.

        Moving averages of other parameters are forgotten; all else is kept.
        """
        self._estimator.refresh_parameters()

    def state_dict(self) -> dict[str, Any]:
        """Returns everything that the next updates depend on, the mixture included; not the model, not the arguments.

        Tensors, if there are any, are under "tensors", flat; all the rest are plain values that survive JSON.
        """
        averaged = {} if self._prober.averaged is None else self._prober.averaged.tensors()
        return {
            "version": VERSION,
            "steps": self._steps,
            "frozen": self._frozen,
            "mixture": self.mixture.state_dict(),
            "prior": dict(self._prior),
            "plan": dict(self._plan),
            "rule": self._rule.state_dict(),
            "limits": self._limits.state_dict(),
            "memory": None if self._memory is None else self._memory.state_dict(),
            "drawn": {"steps": self._drawn_steps, "shares": dict(self._drawn)},
            "averaged": None if self._prober.averaged is None else self._prober.averaged.state_dict(),
            "estimator": self._estimator.state_dict(),
            "tensors": {**self._estimator.tensors(), **averaged},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues exactly where the other balancer was; moves the shared mixture."""
        check_version("Balancer", state)
        check_keys(
            "Balancer",
            state,
            *("steps", "frozen", "mixture", "prior", "plan", "rule", "limits", "memory", "drawn", "averaged"),
            *("estimator", "tensors"),
        )
        for what in ("prior", "plan"):
            check_names(f"Balancer: state: {what}", self.mixture.names, state[what])
        if (self._memory is None) != (state["memory"] is None):
            raise ValueError(
                "Balancer: one of the state and this balancer has groups or probes a part of the datasets in each "
                "update, and the other does not; give it the same every, steps and groups."
            )
        prior = {name: float(state["prior"][name]) for name in self.mixture}
        rule = self._rule_settings.start(replace(self._training, prior=prior))
        rule.load_state_dict(state["rule"])
        limits, memory = copy.copy(self._limits), copy.copy(self._memory)
        limits.load_state_dict(state["limits"])
        if memory is not None:
            memory.load_state_dict(state["memory"])
        copy.copy(self.mixture).load_state_dict(state["mixture"])
        averaged = copy.copy(self._prober.averaged)
        tensors = {key: value for key, value in state["tensors"].items() if not key.startswith("averaged.")}
        if averaged is not None and len(tensors) < len(state["tensors"]):
            averaged.load_state_dict(state["averaged"], state["tensors"])
        self._estimator.load_state_dict(state["estimator"], tensors)
        self.mixture.load_state_dict(state["mixture"])
        self.mixture.learned = True
        self._rule, self._limits, self._memory = rule, limits, memory
        self._prior = prior
        self._plan = {name: float(state["plan"][name]) for name in self.mixture}
        self._steps = int(state["steps"])
        self._frozen = bool(state["frozen"])
        self._drawn = dict(state["drawn"]["shares"])
        self._drawn_steps = int(state["drawn"]["steps"])
        self._prober.averaged = averaged
        if self._start_line is not None and self._steps:
            present = self.mixture.probabilities
            self._start_line = replace(self._start_line, shares=present, done=self._steps, goals=self._goals())


def _distance(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Returns the total variation between two mixtures: half of the sum of the differences."""
    return math.fsum(abs(p - other[name]) for name, p in one.items()) / 2
