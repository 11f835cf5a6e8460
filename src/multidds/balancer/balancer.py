"""The balancer: Algorithm 1 of the paper, once every M steps of a training loop that stays the user's.

It says when, and joins the two halves of an update: what each dataset is worth now (`estimating`) and what that does to
the mixture (a rule: `anchored`, `scorer`, `rivals`).
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import StatisticsError
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._base.carrying import HINT, carried_shares, places_of
from .._base.checks import check_state, is_count, is_share, is_state
from .._base.packing import are_packed, packed, unpacked
from .._base.text import shares
from ..history.history import SMALL_TABLE, kept_updates
from ..history.plot import plot
from ..history.thinning import Thinned
from ..history.update import Update
from ..mixture.limits import Bounds, Limits
from ..mixture.mixture import Mixture
from ..mixture.planned import planned_beside
from ..probes.example_slopes import ExampleLosses
from ..probes.probe_sources import ProbeSources
from ..probes.prober import Loss, Prober
from ..rewards.estimate import Estimate
from ..rewards.estimator import Estimator, parts_of
from ..rewards.formulas import Reward
from ..rewards.memory import RewardMemory, numbered
from ..rewards.priorities import Priority
from ..rules.anchored import Anchored, Believing, Tilt
from ..rules.drift import Drift, distance
from ..rules.rivals import Rival
from ..rules.scorer import Logits, Scorer
from .arguments import (
    Rule,
    batches_of_each,
    check_choices,
    check_data,
    check_groups,
    check_length,
    check_model,
    pace_of,
    possibilities,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Balancer:
    """Learns a mixture while a model trains: call `step()` once after every optimizer step.

    mixture: the object that is changed; its present probabilities are the prior.
    model, loss: loss(model, batch) is the mean loss of a batch, a scalar tensor: the loss that training minimises.
    train, dev: {name: source of probe batches}: a DataLoader, a list of batches, a function generator -> batch (see
        `batches_of`), or an iterable with state_dict and load_state_dict. The names of train are those of the mixture.
    every: optimizer steps between updates. None: as often as the budget allows.
    steps: optimizer steps of the whole training, if known.
    budget: probe batches that updates may use per training batch, if `every` is None. If that does not allow enough
        updates that look at everything, each looks at a part of the datasets and dev sets, in rotation, and what is
        known of the others is kept (docs/many-datasets.md).
    losses: (model, batch) -> tensor [B], the loss of every example. If updates look at a part, their batches then mix
        the datasets, and the reward is the mean slope of a dataset's examples instead of a cosine: the cost depends on
        the number of examples, not of datasets. The sources must then be made by `batches_of`.
    dev_loss: (model, batch) -> scalar tensor, what should become small on the dev sets; None: the training loss.
    reward: what a dataset is worth. "multidds-s": the mean of its cosines with the dev sets, whatever the size of their
        gradients; "multidds"; "moving-average"; or a function (alignment, weights) -> tensor [n], which needs
        `sketch`. None: "multidds-s", with the default rule.
    priority: how much each dev set counts: "regular", "low", "high", {dev set: weight}, or a function of dev losses.
    scorer: how rewards move the mixture: Anchored(...), the paper's Scorer(...), or Exponentiated(...) and Exp3(...)
        from other papers. None: the paper's if a reward is given, otherwise Anchored().
    sizes, examples: {name: how many examples a dataset has}, and how many the whole training will draw. With both,
        Anchored starts from the mixture that suits a training of this length, and tilts it; otherwise it tilts the
        prior. Datasets without a dev set of the same name keep their share, or get an equal one if that is less.
    max_passes: how many times training may pass through a dataset: a number, or {name: number}. It needs sizes,
        examples and steps.
    bounds: {name: (low, high)}: limits of shares, for every rule. A name is that of a dataset, or of a group: then it
        limits the sum of the shares of its datasets.
    groups: {dataset: group}: datasets that have much in common. Rewards are shrunk towards the mean of their group
        according to their noise, so that a dataset moves only as far as its evidence goes.
    batches: probe batches per dataset and dev set, per process. None: 2 with Anchored, which compares their halves,
        otherwise 1; with `every=None` 2 to 8, depending on the budget. More batches mean less noise and more cost.
    total_batches: the same over all processes, instead of `batches`; the mixture then does not depend on the number of
        processes, which divide the batches among themselves.
    share_out: whether processes may compute the gradients of different datasets. They do if all draw the same batches
        and no loss needs the other processes (docs/method.md). False: all compute every gradient together.
    mode: "train" or "eval": whether dropout and similar layers are active in probes.
    step_ahead: a step size for the step-ahead of Algorithm 1, which costs n + n * K passes; None: no step ahead.
    sketch: None: no table. "exact" or a number of buckets, such as 2**16: each update has its table of inner products.
    decay: of the moving averages.
    optimizer: the Adam that trains the model, for rewards in its metric; it is only read.
    params: the parameters whose gradients count; by default all trainable ones.
    seed: for everything random in probes.

    An update costs n + K forward and backward passes (n + n * K with step-ahead) per probe batch, and the memory of
    one parameter-sized vector (two with `losses`). It leaves the model, its gradients and all random states as they
    were. `docs/method.md` explains the rules and connects all of this with the paper.
    """

    # All of a hundred updates, then fewer and fewer; without their tables where those are large.
    history: Thinned[Update]

    def __init__(
        self,
        mixture: Mixture,
        model: nn.Module,
        loss: Loss,
        *,
        train: Mapping[str, Any],
        dev: Mapping[str, Any],
        every: int | None = None,
        steps: int | None = None,
        budget: float = 0.02,
        dev_loss: Loss | None = None,
        losses: ExampleLosses | None = None,
        reward: str | Reward | None = None,
        priority: Priority = "regular",
        scorer: Rule | None = None,
        sizes: Mapping[str, float] | None = None,
        examples: float | None = None,
        max_passes: float | Mapping[str, float] | None = None,
        bounds: Bounds | None = None,
        groups: Mapping[str, str] | None = None,
        batches: int | None = None,
        total_batches: int | None = None,
        share_out: bool = True,
        mode: str = "train",
        step_ahead: float | None = None,
        sketch: int | str | None = None,
        decay: float = 0.9,
        optimizer: torch.optim.Optimizer | None = None,
        params: Iterable[Tensor] | None = None,
        seed: int = 0,
    ) -> None:
        check_data(mixture, train, dev)
        check_choices(loss, dev_loss, losses, reward, scorer, sketch, step_ahead, seed)
        rule = scorer or (Anchored() if reward is None else Scorer())
        prober = self._prober = Prober(model, loss, params, mode, seed, owner="Balancer", dev_loss=dev_loss)
        sources = ProbeSources("Balancer", {"train": train, "dev": dev}, seed, HINT)
        each = batches_of_each(batches, total_batches, prober.replicas.size)
        may = possibilities(rule, reward, losses, optimizer, sketch, step_ahead, sources, prober.replicas.size)
        pace = pace_of(len(train), len(dev), every, steps, budget, each, **may)
        check_model(prober, mixture, dev, reward, sketch, step_ahead)
        members = check_groups(mixture.names, groups)
        parts = parts_of(pace, members, losses, dev_loss, prober.replicas.size)
        probes: dict[str, Any] = {"batches": pace.batches, "total": total_batches, "share_out": share_out}
        probes |= {"step_ahead": step_ahead, "sketch": sketch, "decay": decay, "optimizer": optimizer, "parts": parts}
        probes["noise"] = isinstance(rule, Anchored)
        self._estimator = Estimator(mixture.names, dev, prober, sources, reward or "multidds-s", **probes)
        self.mixture, self.every, self.priority = mixture, pace.every, priority
        self._limits = Limits(bounds, max_passes).tracker(mixture.names, members, sizes, examples, steps)
        self._begin(rule, sizes, examples, dev, None if groups is None and parts is None else members)

    def _begin(
        self,
        rule: Rule,
        sizes: Mapping[str, float] | None,
        examples: float | None,
        dev: Mapping[str, Any],
        groups: Mapping[str, str] | None,
    ) -> None:
        """groups: {dataset: group}, where what is known of each dataset is kept, aged and shrunk; None: it is not."""
        check_length(self.mixture.names, sizes, examples)
        self._order = sorted(self.mixture.names)  # of the rule: a state fits whatever order the datasets are given in
        self._prior = [self.mixture[name] for name in self._order]
        self._anchor = self._start(rule, sizes, examples, dev)
        self._rule: Tilt | Believing | Logits | Rival = rule.started(self._prior)
        self._estimates: RewardMemory | None = None
        if groups is not None:
            self._estimates = RewardMemory(numbered([groups.get(name) for name in self._order]))
            self._rule = rule.believing() if isinstance(rule, Anchored) else self._rule
        self._steps, self._frozen = 0, False
        self._drift = Drift(None if isinstance(rule, Anchored) else rule.started(self._prior), self._anchor)
        self.history = Thinned(kept_updates(len(self._order)))

    def _start(
        self, rule: Rule, sizes: Mapping[str, float] | None, examples: float | None, dev: Mapping[str, Any]
    ) -> list[float]:
        """The anchor: the prior; or, where sizes and length are known, a plan, to which the mixture is moved."""
        weights = dict.fromkeys(dev, 1.0)
        if isinstance(self.priority, Mapping):
            weights = dict.fromkeys(dev, 0.0) | dict(self.priority)
        if not (isinstance(rule, Anchored) and rule.plan and examples and any(name in weights for name in sizes or ())):
            return self._prior
        plan = planned_beside(self.mixture.probabilities, sizes or {}, examples, weights)
        self.mixture.move(self._limits.applied(plan, step=0))
        return [self.mixture[name] for name in self._order]

    def step(self) -> Update | None:
        """Count one optimizer step. Every `every`-th step updates the mixture and returns the `Update`.

        If the update raises, the step is not counted: a state saved then makes the update after a resume.
        """
        self._limits.count(self._steps + 1, self.mixture)
        update = self._update(self._steps + 1) if self.steps_until_update == 1 else None
        self._steps += 1
        return update

    @property
    def steps_until_update(self) -> int:
        """How many more calls of `step()` there are up to the one that updates the mixture: 1 is the next. A frozen
        balancer has none ahead, and says 2**62.
        """
        return 2**62 if self._frozen else self.every - self._steps % self.every

    def freeze(self) -> None:
        """Stop learning and keep the mixture; `step()` continues to count. Part of the state."""
        self._frozen = True

    def update(self) -> Update:
        """Make one update now, without counting a step."""
        return self._update(self._steps)

    def _update(self, step: int) -> Update:
        """Estimate what each dataset is worth, and move the mixture: Algorithm 1, from "Estimate the effect" on."""
        began, before = time.perf_counter(), self.mixture.probabilities
        found = self._estimator.estimate({"mixtures": before, "steps": step})
        skipped = found.trouble or self._move_mixture(found, step)
        if skipped is None:
            self._drift.step(list(found.rewards.values()))
        mixture, rewards, noise = self.mixture.probabilities, found.rewards, found.noise
        now = [mixture[name] for name in self._order]
        if self._estimates is not None and skipped is None:
            belief = self._estimates.belief()
            rewards, noise = self._named(belief.rewards), self._named(belief.errors)
        update = Update(
            step=step,
            mixture=mixture,
            rewards=rewards,
            dev_losses=found.dev_losses,
            train_losses=found.train_losses,
            weights=found.weights,
            alignment=found.alignment,
            seconds=time.perf_counter() - began,
            skipped=skipped,
            notes=(*found.notes, *self._rule.notes(list(rewards.values()))),
            noise=noise,
            signal=self._rule.signal,
            drift=distance(now, self._prior),
            learned=distance(now, self._drift.mixture),
            unlearned=distance(self._drift.mixture, self._prior),
            probed=tuple(found.rewards),
            before=before,
            prior=self._named(self._prior),
        )
        small = len(self._order) * len(found.weights) <= SMALL_TABLE
        self.history.append(update if small else replace(update, alignment=None))
        return update

    def _move_mixture(self, found: Estimate, step: int) -> str | None:
        """The step of the rule within the limits; returns why the mixture did not move, if it did not."""
        if self._estimates is None:
            assert not isinstance(self._rule, Believing)
            noise = [found.noise[name] for name in self._order] if found.noise else None
            probabilities = self._rule.step([found.rewards[name] for name in self._order], noise, self._anchor)
        else:
            probabilities = self._believed(self._estimates, found)
        if probabilities is None:
            return "the rewards gave no finite probabilities"
        self.mixture.move(self._limits.applied(dict(zip(self._order, probabilities, strict=True)), step))
        return None

    def _believed(self, estimates: RewardMemory, found: Estimate) -> list[float] | None:
        """The step of the rule by what is believed of every dataset after these looks at a part of them."""
        names = [name for name in self._order if name in found.rewards]
        places = {name: place for place, name in enumerate(self._order)}
        rewards, noise = [found.rewards[name] for name in names], [found.noise[name] for name in names if found.noise]
        if not estimates.add([places[name] for name in names], rewards, noise or None, found.degrees):
            return None
        belief = estimates.belief()
        if isinstance(self._rule, Believing):
            return self._rule.tilted(self._anchor, belief, estimates.looks)
        return self._rule.step(belief.rewards, belief.errors, self._anchor)

    def plot(self) -> "Figure":
        """A picture of the mixture from the start on, with rewards and dev losses, as `multidds.plot` draws it."""
        return plot(self.history, self.start)

    @property
    def start(self) -> dict[str, float]:
        """{dataset: probability} at step 0: the prior, or the plan to which the mixture was moved at once."""
        return self._named(self._anchor)

    def _named(self, values: Sequence[float]) -> dict[str, float]:
        """In the order of the mixture."""
        named = dict(zip(self._order, values, strict=True))
        return {name: named[name] for name in self.mixture}

    def __repr__(self) -> str:
        state = f"frozen at step {self._steps:,}" if self._frozen else f"step {self._steps:,}"
        every = f"an update every {self.every:,}" if self.every > 1 else "an update at every step"
        return f"Balancer({state}, {every}; {len(self.mixture):,} datasets: {shares(self.mixture.probabilities)})"

    def observe(self, name: str) -> None:
        """For "moving-average": say that .grad now holds a gradient of the dataset `name`. After backward, before
        clipping and the step. With other rewards it does nothing, so that a loop can keep the line.
        """
        self._estimator.observe(name)

    @property
    def priority(self) -> Priority:
        """How much each dev set counts. May be assigned at any time; the next update uses it."""
        return self._estimator.dev.priority

    @priority.setter
    def priority(self, priority: Priority) -> None:
        self._estimator.dev.priority = priority

    @property
    def dev_losses(self) -> dict[str, float] | None:
        """The losses of your last full validation, which rank the dev sets for low and high; None: the probe does."""
        return self._estimator.dev.losses

    @dev_losses.setter
    def dev_losses(self, losses: Mapping[str, float] | None) -> None:
        self._estimator.dev.losses = losses

    @property
    def knows_the_parameters(self) -> bool:
        """False where some were replaced or unfrozen since its construction: the next update would be refused."""
        return self._prober.knows_the_parameters

    def refresh_parameters(self) -> None:
        """From now on probe the trainable parameters that the model has now, for models that unfreeze or replace some
        while they train. Moving averages of other parameters are forgotten; all else is kept.
        """
        self._estimator.refresh_parameters()

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next updates depend on, the mixture included; not the model, not the arguments.

        Tensors, if there are any, are under "tensors", flat; all the rest are plain values that survive JSON.
        """
        return {
            "steps": self._steps,
            "frozen": self._frozen,
            "mixture": self.mixture.state_dict(),
            "prior": packed(self._prior),
            "anchor": packed(self._anchor),
            "rule": self._rule.state_dict(),
            "limits": self._limits.state_dict(),
            "drift": self._drift.state_dict(),
            **({} if self._estimates is None else {"estimates": self._estimates.state_dict()}),
            **self._estimator.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], changed: bool = False) -> None:
        """Continue exactly where the other balancer was; changes the shared mixture.

        changed: datasets or dev sets may have been added or left out. A new dataset starts at its prior share; the
        others keep what they learned: their shares relative to each other, their rewards, their counts.
        """
        check_state(
            "Balancer", state, steps=is_count, frozen=lambda value: isinstance(value, bool), mixture=is_state,
            rule=is_state, limits=is_state, prior=are_packed(is_share), anchor=are_packed(is_share),
        )  # fmt: skip
        if changed:
            state = self._carried(state)
        self._estimator.check_state(state)
        self._rule.check_state(state["rule"])
        self.mixture.check_state(state["mixture"])
        check_state("Balancer", state, **dict.fromkeys(("prior", "anchor"), are_packed(is_share, len(self._order))))
        if "drift" in state:
            self._drift.check_state(state["drift"])
        if (self._estimates is None) != ("estimates" not in state):
            raise ValueError(
                "Balancer: one of the state and this balancer has groups or looks at a part of the datasets in each "
                "update, and the other does not; give it the same every, steps, budget and groups."
            )
        if self._estimates is not None:
            self._estimates.check_state(state["estimates"])
        self._estimator.load_state_dict(state)
        self._rule.load_state_dict(state["rule"])
        self.mixture.load_state_dict(state["mixture"])
        self._limits.load_state_dict(state["limits"])
        if self._estimates is not None:
            self._estimates.load_state_dict(state["estimates"])
        self._prior, self._anchor = unpacked(state["prior"]), unpacked(state["anchor"])
        if "drift" in state:  # not in those of 0.1
            self._drift.load_state_dict(state["drift"])
        self._steps, self._frozen = int(state["steps"]), bool(state["frozen"])

    def _carried(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state as if it had been saved with the datasets and dev sets there are now."""
        was = Mixture.shares_in(state["mixture"])
        before = sorted(was)
        if before == self._order and self._estimator.fits(state):
            return dict(state)
        check_state("Balancer", state, **dict.fromkeys(("prior", "anchor"), are_packed(is_share, len(before))))
        shares, places = carried_shares(was, self.start), places_of(self._order, before)
        mixture = Mixture(shares if before == self._order else self._limits.applied(shares, int(state["steps"])))
        found = {"mixture": mixture.state_dict()}
        for key, own in (("prior", self._prior), ("anchor", self._anchor)):
            kept = carried_shares(dict(zip(before, unpacked(state[key]), strict=True)), self._named(own))
            found[key] = packed([kept[name] for name in self._order])
        try:
            now = [mixture[name] for name in self._order]
            found["rule"] = self._rule.carried(state["rule"], places, now)
            if "drift" in state:
                found["drift"] = self._drift.carried(state["drift"], before, self._order, places)
            if self._estimates is not None and "estimates" in state:
                found["estimates"] = self._estimates.carried(state["estimates"], places)
            return {**self._estimator.carried(state), **found}
        except (KeyError, IndexError, TypeError, AttributeError, StatisticsError):
            raise ValueError("Balancer: the state is damaged, or of another rule; nothing is carried over.") from None
