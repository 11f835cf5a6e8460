"""The balancer: Algorithm 1 of the paper, once every M steps of a training loop that stays the user's.

It says when and in which order; gradients are `probing`, weights of dev sets `priorities`, logits `scorer`.
`Balancer.update` is the algorithm, read top to bottom.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from . import priorities
from .alignment import Alignment
from .averages import MovingAverages
from .checks import check_names, check_step_ahead, check_whole
from .metric import AdamMetric
from .mixture import Mixture, check_mixture
from .probing import Direction, Gradient, Loss, Prober, Table, norm, sketcher_of
from .rewards import Reward
from .scorer import Scorer
from .sources import Source, open_source, refuse_sharing
from .update import Update

_HISTORY = 100  # updates kept in memory
_log = logging.getLogger("multidds")

# {name: does v sum the dev gradients themselves, or their directions?}
_STABILIZED = {"multidds": False, "multidds-s": True, "moving-average": False}


class Balancer:
    """Learns a mixture while a model trains: call `step()` once after every optimizer step.

    mixture: its probabilities are the prior, and the object that is moved. model, loss: loss(model, batch) is the
    mean loss of a batch, the one that training minimises. train, dev: {name: source of probe batches}, see README.
    The other arguments are the method's choices; `docs/method.md` connects them with the paper.

    An update costs n + K forward and backward passes (n + n * K with step-ahead) per probe batch, and the
    memory of one parameter-sized vector. It leaves the model, its gradients and all random states as they were.
    """

    def __init__(
        self,
        mixture: Mixture,
        model: nn.Module,
        loss: Loss,
        *,
        train: Mapping[str, Any],
        dev: Mapping[str, Any],
        every: int,
        reward: str | Reward = "multidds-s",
        priority: priorities.Priority = "regular",
        scorer: Scorer | None = None,
        batches: int = 1,
        mode: str = "train",
        step_ahead: float | None = None,
        sketch: int | str | None = None,
        decay: float = 0.9,
        optimizer: torch.optim.Optimizer | None = None,
        params: Iterable[Tensor] | None = None,
        seed: int = 0,
    ) -> None:
        check_mixture("Balancer", mixture)
        check_names("Balancer: train", mixture.names, train)
        if not callable(loss):
            raise TypeError(
                f"Balancer: loss must be a function (model, batch) -> scalar tensor, got {type(loss).__name__}."
            )
        if scorer is not None and not isinstance(scorer, Scorer):
            raise TypeError(f"Balancer: scorer must be a Scorer, got {type(scorer).__name__}.")
        if not isinstance(seed, int):
            raise TypeError(f"Balancer: seed must be a whole number, got {seed!r}.")
        if not dev:
            raise ValueError("Balancer: there must be at least one dev set.")
        for name in mixture:
            if mixture[name] == 0:
                raise ValueError(f"Balancer: the prior of {name!r} is 0, which no update can change; leave it out.")
        check_whole("Balancer", every=every, batches=batches)
        check_step_ahead("Balancer", step_ahead)
        if sketch is True or not (sketch in (None, "exact") or (isinstance(sketch, int) and sketch >= 1)):
            raise ValueError(f"Balancer: sketch must be None, 'exact' or a number of buckets, but it is {sketch!r}.")
        if not callable(reward) and reward not in _STABILIZED:
            raise ValueError(
                f"Balancer: reward must be one of {', '.join(map(repr, _STABILIZED))} or a function, got {reward!r}."
            )
        self._prober = Prober(model, loss, params, mode, seed, owner="Balancer")
        if step_ahead is not None:
            self._prober.refuse_narrow_steps()
        if callable(reward) and sketch is None:
            size = _readable((len(dev) + 1) * self._prober.vector_bytes)
            raise ValueError(
                "Balancer: a reward function needs the table of inner products: give sketch=2**16, "
                f"or sketch='exact', which keeps {len(dev) + 1} gradients ({size})."
            )
        self.mixture, self.every, self._seed = mixture, every, seed
        self._reward, self._batches, self._step_ahead, self._sketch = reward, batches, step_ahead, sketch
        self._sketcher = sketcher_of(sketch)
        self._dev_names = tuple(dev)
        self._given = {"train": dict(train), "dev": dict(dev)}
        refuse_sharing("Balancer", [*train.values(), *dev.values()])
        self._sources = self._opened(seed)
        self.priority = priority
        self._dev_losses: dict[str, float] | None = None
        self._metric = None if optimizer is None else AdamMetric(optimizer, self._prober)
        self._averages = None
        if reward == "moving-average":
            params_by_name = dict(zip(self._prober.names, self._prober.params, strict=True))
            self._averages = MovingAverages(mixture.names, params_by_name, decay)
            size = _readable(len(mixture) * self._prober.vector_bytes)
            _log.warning("Balancer: reward 'moving-average' keeps %d gradients in memory (%s).", len(mixture), size)
        self._scorer = scorer if scorer is not None else Scorer()
        self._order = sorted(mixture.names)  # of the logits: a state fits whatever order the datasets are given in
        self._scorer.start([mixture[name] for name in self._order])
        self._steps = self._updates = 0
        self.history: deque[Update] = deque(maxlen=_HISTORY)  # the last updates, without their tables

    def step(self) -> Update | None:
        """Count one optimizer step; after every `every`-th one, update the mixture and say how."""
        self._steps += 1
        return self.update() if self._steps % self.every == 0 else None

    @property
    def due(self) -> bool:
        """Whether the next `step()` updates the mixture."""
        return (self._steps + 1) % self.every == 0

    @property
    def knows_the_parameters(self) -> bool:
        """False where some were replaced or unfrozen since its construction: the next update would be refused."""
        return self._prober.knows_the_parameters

    def update(self) -> Update:
        """One update now: probe, reward, scorer step (Algorithm 1, from "Estimate the effect" on)."""
        began = time.perf_counter()
        found = _Findings()
        table = None
        if self._sketch is not None:
            table = Table(self._prober, self._sketcher, self._step_ahead is not None)

        with self._prober.invisible():
            self._check_replicas()
            dev_batches = self._dev_batches()
            weights = self._weigh_dev_sets(dev_batches, found)
            if self._step_ahead is None:  # d_k at the current parameters: the same for every dataset
                direction, devs = self._look_at_dev_sets(dev_batches, weights, table, found)
            for name in self.mixture:
                t = self._train_gradient(name, found)
                if self._step_ahead is not None:  # d_k one step ahead on this dataset
                    found.check("gradient", "dataset", {name: norm(t)})
                    with self._prober.moved(t, self._step_ahead):
                        direction, devs = self._look_at_dev_sets(dev_batches, weights, table, found)
                if self._metric is not None:
                    t = self._metric.applied(t)
                found.rewards[name], length = direction.reward(t)
                found.check("gradient", "dataset", {name: length})
                found.cancelled |= direction.length == 0
                if table is not None:
                    table.add(table.kept(t), devs)
                del t  # forgotten before the next pass makes another
                if self._step_ahead is not None:
                    del direction, devs

        alignment = None
        if table is not None:
            alignment = table.alignment(found.train_losses, found.dev_losses, self.mixture.names)
        if callable(self._reward) and alignment is not None:
            with self._prober.replicas.failing_together():
                found.rewards = self._custom_rewards(self._reward, alignment, weights)
        found.rewards = self._prober.replicas.gathered(found.rewards)[0]  # the same bits on every rank
        found.check("reward", "dataset", found.rewards)
        skipped = found.trouble() or self._move_mixture(found.rewards)
        self._updates += 1
        update = Update(
            step=self._steps,
            mixture=self.mixture.probabilities,
            rewards=found.rewards,
            dev_losses=found.dev_losses,
            train_losses=found.train_losses,
            weights=weights,
            alignment=alignment,
            seconds=time.perf_counter() - began,
            skipped=skipped,
            notes=found.notes(self._scorer.rule),
        )
        self.history.append(replace(update, alignment=None))
        return update

    def observe(self, name: str) -> None:
        """For "moving-average": tell that .grad now holds a gradient of this dataset. After backward, before clipping
        and the step. With other rewards it does nothing, so that a loop can keep the line.
        """
        if name not in self.mixture:
            check_names("Balancer.observe", self.mixture.names, [*self.mixture.names, name])
        if self._averages is None:
            return
        if self._prober.replicas.size > 1:
            raise ValueError(
                "Balancer.observe: gradients averaged over replicas may mix datasets. Leave the call out: "
                "the moving average is then over the probe gradients of successive updates."
            )
        self._averages.observe(name)

    @property
    def priority(self) -> priorities.Priority:
        """How much each dev set counts. May be assigned at any time; the next update uses it."""
        return self._priority

    @priority.setter
    def priority(self, priority: priorities.Priority) -> None:
        priorities.check(priority, self._dev_names)
        self._priority = dict(priority) if isinstance(priority, Mapping) else priority

    @property
    def dev_losses(self) -> dict[str, float] | None:
        """The losses of the last full validation, by which low and high rank the dev sets; None: by the probe."""
        return self._dev_losses

    @dev_losses.setter
    def dev_losses(self, losses: Mapping[str, float] | None) -> None:
        if losses is not None:
            check_names("Balancer.dev_losses", self._dev_names, losses)
            if bad := [name for name in losses if not math.isfinite(losses[name])]:
                raise ValueError(f"Balancer.dev_losses: losses must be finite, but {bad[0]!r} is {losses[bad[0]]}.")
        self._dev_losses = None if losses is None else {name: float(losses[name]) for name in self._dev_names}

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next updates depend on, the mixture included; not the model, not the arguments."""
        return {
            "seed": self._seed,
            "steps": self._steps,
            "updates": self._updates,
            "mixture": self.mixture.state_dict(),
            "scorer": self._scorer.state_dict(),
            "priority": None if callable(self._priority) else self._priority,
            "dev_losses": self._dev_losses,
            "train": {name: source.state_dict() for name, source in self._sources["train"].items()},
            "dev": {name: source.state_dict() for name, source in self._sources["dev"].items()},
            "averages": None if self._averages is None else self._averages.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where the other balancer was; moves the shared mixture."""
        check_names("Balancer: state", self.mixture.names, state["train"])
        check_names("Balancer: state", self._dev_names, state["dev"])
        if (self._averages is None) != (state["averages"] is None):
            raise ValueError("Balancer: the state was saved with another reward: only one keeps moving averages.")
        if state["priority"] is None and not callable(self._priority):
            raise ValueError("Balancer: the priority of the state was a function; give it at construction again.")
        if state["priority"] is not None:
            priorities.check(state["priority"], self._dev_names)
        self._scorer.check_state(state["scorer"])
        check_names("Balancer: state", self.mixture.names, Mixture(state["mixture"]["probabilities"]))
        sources = self._opened(state["seed"])
        for role, by_name in sources.items():
            for name, source in by_name.items():
                source.load_state_dict(state[role][name])
        self.dev_losses = state["dev_losses"]
        if self._averages is not None:
            self._averages.load_state_dict(state["averages"])
        # What can be refused has been by now.
        self._seed = self._prober.seed = state["seed"]
        self._sources = sources
        self._scorer.load_state_dict(state["scorer"])
        self.mixture.load_state_dict(state["mixture"])
        self._steps, self._updates = int(state["steps"]), int(state["updates"])
        if state["priority"] is not None:
            self.priority = state["priority"]

    def _opened(self, seed: int) -> dict[str, dict[str, Source]]:
        return {
            role: {name: open_source("Balancer", role, name, source, seed) for name, source in given.items()}
            for role, given in self._given.items()
        }

    def _check_replicas(self) -> None:
        """Ranks that disagree would average gradients of different things, wait for each other, or drift apart."""
        mine = {
            "datasets, or another order of them": self.mixture.names,
            "dev sets, or another order of them": self._dev_names,
            "mixtures": self.mixture.probabilities,
            "priorities": "a function" if callable(self._priority) else self._priority,
            "dev_losses (set them on every rank)": self._dev_losses,
            "seeds, batches, steps or numbers of updates": (self._seed, self._batches, self._steps, self._updates),
        }
        first, *others = self._prober.replicas.gathered(mine)
        for what, value in first.items():
            if any(other[what] != value for other in others):
                raise ValueError(f"Balancer: the ranks have different {what}.")

    def _batches_of(self, role: str, name: str) -> Iterator[Any]:
        """This replica's probe batches; together the replicas take what one process with more batches would."""
        source, replicas = self._sources[role][name], self._prober.replicas
        for j in range(replicas.size * self._batches):
            if j // self._batches == replicas.rank:
                yield source.draw((self._updates, j))
            else:
                source.skip()

    def _dev_batches(self) -> dict[str, Iterable[Any]]:
        """Drawn one dev set at a time, or kept where step-ahead or a ranking needs them more than once."""
        lazily: dict[str, Iterable[Any]] = {name: self._batches_of("dev", name) for name in self._dev_names}
        if self._step_ahead is None and not self._ranks_by_probe():
            return lazily
        with self._prober.replicas.failing_together():
            return {name: list(batches) for name, batches in lazily.items()}

    def _ranks_by_probe(self) -> bool:
        return priorities.needs_losses(self._priority) and self._dev_losses is None

    def _weigh_dev_sets(self, batches: Mapping[str, Iterable[Any]], found: "_Findings") -> dict[str, float]:
        losses = self._dev_losses or dict.fromkeys(self._dev_names, 0.0)
        if self._ranks_by_probe():
            for name in self._dev_names:
                losses[name] = self._prober.loss(("dev", name, self._updates), batches[name], self._batches)
        found.check("loss", "dev set", losses)
        with self._prober.replicas.failing_together():
            weights = priorities.weights_of(self._priority if found.trouble() is None else "regular", losses)
        weights = self._prober.replicas.gathered(weights)[0]
        return {name: weights[name] for name in self._dev_names}

    def _look_at_dev_sets(
        self,
        batches: Mapping[str, Iterable[Any]],
        weights: Mapping[str, float],
        table: Table | None,
        found: "_Findings",
    ) -> tuple[Direction, list[Tensor]]:
        """The direction that the dev sets want, and what the table keeps of each of their gradients."""
        direction, kept = Direction(_STABILIZED.get(str(self._reward), False)), []
        for name in self._dev_names:
            if weights[name] == 0 and table is None:
                continue
            gradient, loss = self._prober.gradient(("dev", name, self._updates), batches[name], self._batches)
            found.dev_loss(name, loss, 1 if self._step_ahead is None else len(self.mixture))
            if weights[name] > 0:
                found.check("gradient", "dev set", {name: direction.add(gradient, weights[name])})
            if table is not None:
                kept.append(table.kept(gradient))
            del gradient
        return direction, kept

    def _train_gradient(self, name: str, found: "_Findings") -> Gradient:
        if self._averages is not None and self._averages.observed(name):
            return self._averages[name]
        key = ("train", name, self._updates)
        gradient, found.train_losses[name] = self._prober.gradient(key, self._batches_of("train", name), self._batches)
        if self._averages is not None:
            found.check("gradient", "dataset", {name: norm(gradient)})  # the average leaves a non-finite one out
            self._averages.add(name, gradient)
            return self._averages[name]
        return gradient

    def _custom_rewards(self, reward: Reward, alignment: Alignment, weights: Mapping[str, float]) -> dict[str, float]:
        given = torch.tensor(list(weights.values()), dtype=torch.float64, device="cpu")
        values = reward(alignment, given)
        if not isinstance(values, Tensor):
            raise TypeError(f"Balancer: the reward function must return a tensor, got {type(values).__name__}.")
        if values.shape != (len(self.mixture),):
            raise ValueError(
                f"Balancer: the reward function must return one number for each of the {len(self.mixture)} datasets, "
                f"but the shape is {tuple(values.shape)}."
            )
        return dict(zip(self.mixture.names, values.tolist(), strict=True))

    def _move_mixture(self, rewards: Mapping[str, float]) -> str | None:
        """The scorer step; returns why the mixture did not move, if it did not."""
        probabilities = self._scorer.step([rewards[name] for name in self._order])
        if probabilities is None:
            return "the scorer step did not give finite probabilities"
        self.mixture.move(dict(zip(self._order, probabilities, strict=True)))
        return None


class _Findings:
    """What the probes of one update showed."""

    def __init__(self) -> None:
        self.rewards: dict[str, float] = {}
        self.train_losses: dict[str, float] = {}
        self.dev_losses: dict[str, float] = {}
        self.cancelled = False  # the weighted dev gradients sum to zero
        self._zero: list[str] = []
        self._not_finite: list[str] = []

    def dev_loss(self, name: str, loss: float, looks: int) -> None:
        """With step-ahead there are many looks at a dev set; its loss is their mean."""
        self.dev_losses[name] = self.dev_losses.get(name, 0.0) + loss / looks

    def check(self, what: str, kind: str, values: Mapping[str, float]) -> None:
        """Remember which losses, norms of gradients or rewards are not finite, and which gradients are zero."""
        for name, value in values.items():
            if not math.isfinite(value):
                self._not_finite.append(f"the {what} of {kind} {name!r}")
            elif value == 0 and what == "gradient":
                self._zero.append(f"the gradient of {kind} {name!r}")

    def trouble(self) -> str | None:
        """Why the mixture must not move."""
        if not self._not_finite:
            return None
        self._not_finite = list(dict.fromkeys(self._not_finite))
        more = len(self._not_finite) - 1
        return f"{self._not_finite[0]} is not finite" + (f" (and {more} more like it)" if more else "")

    def notes(self, rule: str) -> tuple[str, ...]:
        notes = [f"{what} is zero: its cosine counts as 0" for what in dict.fromkeys(self._zero)]
        if self.cancelled:
            notes.append("the gradients of the dev sets sum to zero: rewards count as 0")
        total = sum(self.rewards.values())
        if rule == "sum" and total <= 0:
            notes.append(f"the rewards sum to {total:.3g}, not above 0: there is no stable fixed point")
        return tuple(notes)


def _readable(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.3g} {unit}"
