"""The balancer: Algorithm 1 of the paper, once every M steps of a training loop that stays the user's.

It says when and in which order; gradients are `probing`, the walk over them `sweep`, weights of dev sets `priorities`,
logits `scorer`. `Balancer._update` is the algorithm, read top to bottom.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from . import priorities
from .alignment import Alignment
from .averages import MovingAverages
from .checks import check_names, check_step_ahead, check_whole
from .gradients import Gradient, norm
from .metric import AdamMetric
from .mixture import Mixture, check_mixture
from .probing import Loss, Prober
from .rewards import Reward
from .scorer import Scorer
from .sources import ProbeSources
from .sweep import Direction, Findings, Losses, Taken, sweep
from .table import Table, sketcher_of
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
        self._sources = ProbeSources("Balancer", {"train": train, "dev": dev}, seed)
        self.priority = priority
        self._dev_losses: dict[str, float] | None = None
        self._optimizer, self._decay = optimizer, decay
        self._metric = None if optimizer is None else AdamMetric(optimizer, self._prober)
        self._averages = self._new_averages()
        if self._averages is not None:
            size = _readable(len(mixture) * self._prober.vector_bytes)
            _log.warning("Balancer: reward 'moving-average' keeps %d gradients in memory (%s).", len(mixture), size)
        self._order = sorted(mixture.names)  # of the logits: a state fits whatever order the datasets are given in
        self._logits = (Scorer() if scorer is None else scorer).started([mixture[name] for name in self._order])
        self._steps = self._updates = 0
        self.history: deque[Update] = deque(maxlen=_HISTORY)  # the last updates, without their tables

    def step(self) -> Update | None:
        """Count one optimizer step; after every `every`-th one, update the mixture and say how.

        Where the update raises, the step is not counted: what is saved then makes the update after a resume.
        """
        update = self._update(self._steps + 1) if self.steps_until_update == 1 else None
        self._steps += 1
        return update

    @property
    def steps_until_update(self) -> int:
        """How many more calls of `step()` there are up to the one that updates the mixture: 1 is the next."""
        return self.every - self._steps % self.every

    @property
    def knows_the_parameters(self) -> bool:
        """False where some were replaced or unfrozen since its construction: the next update would be refused."""
        return self._prober.knows_the_parameters

    def meet_new_parameters(self) -> None:
        """From now on probe the trainable parameters that the model has now, for models that unfreeze or replace some
        while they train. Moving averages of other parameters are forgotten; all else is kept.
        """
        self._prober.meet_parameters()
        self._metric = None if self._optimizer is None else AdamMetric(self._optimizer, self._prober)
        self._averages = self._new_averages()

    def update(self) -> Update:
        """One update now, without counting a step."""
        return self._update(self._steps)

    def _update(self, step: int) -> Update:
        """Probe, reward, move: Algorithm 1, from "Estimate the effect" on."""
        began = time.perf_counter()
        with self._prober.invisible():
            self._check_replicas()
            dev_batches = self._dev_batches()
            ranking = self._ranking(dev_batches)
            weights = self._weights(ranking)
            losses, findings = Losses(len(self.mixture) if self._step_ahead else 1), Findings(weights)
            findings.check("loss", "dev set", ranking)
            direction = None if callable(self._reward) else Direction(weights, _STABILIZED[self._reward])
            table = None if self._sketch is None else self._new_table()
            sweep(
                self._dev_gradients(dev_batches, weights),
                self._train_gradients(findings),
                [each for each in (losses, findings, direction, table) if each is not None],
                ahead=partial(self._prober.moved, step=self._step_ahead) if self._step_ahead else None,
                metric=None if self._metric is None else self._metric.applied,
            )
        alignment = None if table is None else table.alignment(losses, self.mixture.names)
        rewards = self._rewards(direction, alignment, weights)
        findings.check("reward", "dataset", rewards)
        skipped = findings.trouble() or self._move_mixture(rewards)
        self._updates += 1
        update = Update(
            step=step,
            mixture=self.mixture.probabilities,
            rewards=rewards,
            dev_losses=losses.of_dev,
            train_losses=losses.of_train,
            weights=weights,
            alignment=alignment,
            seconds=time.perf_counter() - began,
            skipped=skipped,
            notes=self._notes(findings, direction, rewards),
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
        """Everything that the next updates depend on, the mixture included; not the model, not the arguments.

        Tensors, if there are any, are under "tensors", flat; all the rest are plain values that survive JSON.
        """
        return {
            "seed": self._seed,
            "steps": self._steps,
            "updates": self._updates,
            "mixture": self.mixture.state_dict(),
            "scorer": self._logits.state_dict(),
            "priority": None if callable(self._priority) else self._priority,
            "dev_losses": self._dev_losses,
            **self._sources.state_dict(),
            "averages": None if self._averages is None else self._averages.state_dict(),
            "tensors": {} if self._averages is None else self._averages.tensors(),
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
        self._logits.check_state(state["scorer"])
        check_names("Balancer: state", self.mixture.names, Mixture(state["mixture"]["probabilities"]))
        sources = self._sources.loaded(state, state["seed"])
        self.dev_losses = state["dev_losses"]
        if self._averages is not None:
            self._averages.load_state_dict(state["averages"], state["tensors"])
        # What can be refused has been by now.
        self._seed = self._prober.seed = state["seed"]
        self._sources = sources
        self._logits.load_state_dict(state["scorer"])
        self.mixture.load_state_dict(state["mixture"])
        self._steps, self._updates = int(state["steps"]), int(state["updates"])
        if state["priority"] is not None:
            self.priority = state["priority"]

    def _new_averages(self) -> MovingAverages | None:
        if self._reward != "moving-average":
            return None
        return MovingAverages(dict(zip(self._prober.names, self._prober.params, strict=True)), self._decay)

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
        replicas = self._prober.replicas
        return self._sources.batches(role, name, self._updates, self._batches, replicas.rank, replicas.size)

    def _dev_batches(self) -> dict[str, Iterable[Any]]:
        """Drawn one dev set at a time, or kept where step-ahead or a ranking needs them more than once."""
        lazily: dict[str, Iterable[Any]] = {name: self._batches_of("dev", name) for name in self._dev_names}
        if self._step_ahead is None and not self._ranks_by_probe():
            return lazily
        with self._prober.replicas.failing_together():
            return {name: list(batches) for name, batches in lazily.items()}

    def _ranks_by_probe(self) -> bool:
        return priorities.needs_losses(self._priority) and self._dev_losses is None

    def _ranking(self, batches: Mapping[str, Iterable[Any]]) -> dict[str, float]:
        """The dev losses by which priorities rank: of the last validation, or of a forward pass where one is needed."""
        if not self._ranks_by_probe():
            return self._dev_losses or dict.fromkeys(self._dev_names, 0.0)
        return {
            name: self._prober.loss(("dev", name, self._updates), batches[name], self._batches)
            for name in self._dev_names
        }

    def _weights(self, ranking: Mapping[str, float]) -> dict[str, float]:
        finite = all(map(math.isfinite, ranking.values()))  # if not, the update is skipped
        with self._prober.replicas.failing_together():
            weights = priorities.weights_of(self._priority if finite else "regular", ranking)
        weights = self._prober.replicas.gathered(weights)[0]
        return {name: weights[name] for name in self._dev_names}

    def _dev_gradients(self, batches: Mapping[str, Iterable[Any]], weights: Mapping[str, float]) -> dict[str, Taken]:
        """Of the dev sets that count; a table is asked for to see all."""
        return {
            name: partial(self._prober.gradient, ("dev", name, self._updates), batches[name], self._batches)
            for name in self._dev_names
            if weights[name] or self._sketch is not None
        }

    def _train_gradients(self, findings: Findings) -> dict[str, Taken]:
        def probed(name: str) -> tuple[Gradient, float]:
            key = ("train", name, self._updates)
            gradient, loss = self._prober.gradient(key, self._batches_of("train", name), self._batches)
            if self._step_ahead or self._averages:  # before the dev sets see it, or an average leaves it out
                findings.check("gradient", "dataset", {name: norm(gradient)})
            return gradient, loss

        def averaged(name: str, averages: MovingAverages) -> tuple[Gradient, float | None]:
            if averages.observed(name):
                return averages[name], None
            gradient, loss = probed(name)
            averages.add(name, gradient)
            return averages[name], loss

        if self._averages is None:
            return {name: partial(probed, name) for name in self.mixture}
        return {name: partial(averaged, name, self._averages) for name in self.mixture}

    def _new_table(self) -> Table:
        return Table(self._prober.params, self._prober.names, self._sketcher, self._step_ahead is not None)

    def _rewards(
        self, direction: Direction | None, alignment: Alignment | None, weights: Mapping[str, float]
    ) -> dict[str, float]:
        """The same bits on every rank."""
        with self._prober.replicas.failing_together():
            rewards = self._custom_rewards(alignment, weights) if direction is None else direction.rewards
        gathered: list[dict[str, float]] = self._prober.replicas.gathered(rewards)
        return gathered[0]

    def _custom_rewards(self, alignment: Alignment | None, weights: Mapping[str, float]) -> dict[str, float]:
        assert callable(self._reward)
        assert alignment is not None
        given = torch.tensor(list(weights.values()), dtype=torch.float64, device="cpu")
        values = self._reward(alignment, given)
        if not isinstance(values, Tensor):
            raise TypeError(f"Balancer: the reward function must return a tensor, got {type(values).__name__}.")
        if values.shape != (len(self.mixture),):
            raise ValueError(
                f"Balancer: the reward function must return one number for each of the {len(self.mixture)} datasets, "
                f"but the shape is {tuple(values.shape)}."
            )
        return dict(zip(self.mixture.names, values.tolist(), strict=True))

    def _move_mixture(self, rewards: Mapping[str, float]) -> str | None:
        """The step of the rule; returns why the mixture did not move, if it did not."""
        probabilities = self._logits.step([rewards[name] for name in self._order])
        if probabilities is None:
            return "the scorer step did not give finite probabilities"
        self.mixture.move(dict(zip(self._order, probabilities, strict=True)))
        return None

    def _notes(self, findings: Findings, direction: Direction | None, rewards: Mapping[str, float]) -> tuple[str, ...]:
        notes = [f"{what} is zero: its cosine counts as 0" for what in dict.fromkeys(findings.zero)]
        if direction is not None and direction.cancelled:
            notes.append("the gradients of the dev sets sum to zero: rewards count as 0")
        return (*notes, *self._logits.notes(list(rewards.values())))


def _readable(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.3g} {unit}"
