"""The training loop, read top to bottom.

A run is one folder: config.json, records.jsonl, mixture.jsonl, checkpoints/, best.safetensors, tensorboard/. Rank 0
writes it. The ranks divide the batches of every step, and all take the same decisions.
"""

import contextlib
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from multidds import Update
from multidds._base.randomness import derive, seed_all

from ..batches.batch import Batch, assemble
from ..batches.pair_selection import Chances
from ..batches.sentences import Sentences
from ..batches.stream import Stream
from ..common.processes import Processes
from ..config.config import Config
from ..model.averaged_weights import AveragedWeights
from ..model.device import compiler_errors, device_of
from ..model.freed_memory import keep_freed_memory
from ..model.transformer import make_model
from ..noisy_pairs import NoisyPairs
from ..prepare import Prepared
from ..runs import checkpoints
from ..runs.earlier_run import earlier_run
from ..runs.identity import identity_of
from ..runs.record_files import check_free
from ..runs.records import AnyRecord, Stepped, Validated
from ..runs.run_folder import check_beside, check_run_folder, open_run
from .balancing import make_balancer
from .checkpoint_state import load, saved
from .progress import Display, Progress, RecentLosses, stop_signals
from .schedule import learning_rate, planned_steps
from .start_mixture import prior_of, schedule_of
from .start_weights import load_start_weights
from .validation import KINDS, MEASURES, Measured, is_better, measure


def train(config: Config, folder: Path, show: Display, kind: "type[Training] | None" = None) -> Progress:
    """Trains the run in `folder`, from its newest checkpoint if there is one.

    kind: a subclass of Training, for experiments with other steps.
    """
    keep_freed_memory()
    run = (kind or Training)(config, folder)
    at = run.progress
    for line in run.first_lines():
        show.line(line)
    with contextlib.closing(run), stop_signals(show, run.processes.size == 1) as stop, compiler_errors():
        at.lap("rest")
        if config.train.start_from and not at.step:
            run.validate(show)  # where the fine-tuning starts; it stays the best model if training does not improve it
        while not at.finished:
            batches, sentences, tokens = run.stream.next(run.steps_until_update())
            at.lap("data")
            if run.noisy_pairs is not None:
                run.noisy_pairs.update(at.step)
                at.lap("updates")
            run.step(batches, tokens)
            at.step, at.sentences, at.tokens = at.step + 1, at.sentences + sentences, at.tokens + tokens
            at.lap("steps")
            run.watch(show)
            at.lap("rest")

            if run.schedule is not None:
                run.schedule.step()
            if update := run.balance():
                at.lap("updates")
                run.record_update(update, show)

            epoch_ended = at.sentences // run.total > at.epoch
            at.epoch = at.sentences // run.total
            at.finished = run.reason_to_finish()
            if epoch_ended or at.finished or run.is_to_validate():
                run.validate(show)
            stopping = run.processes.any(stop.asked)
            if at.finished or epoch_ended or stopping or at.step % config.train.save_every == 0:
                at.lap("rest")
                run.save()
                at.lap("saving")
            if stopping and not at.finished:
                break
    return at


class Training:
    """The parts of a training, made from a config and from the newest checkpoint, if there is one."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.folder, self.processes = folder, Processes()
        if self.processes.rank == 0:
            check_free(folder)
        if config.train.threads:
            torch.set_num_threads(config.train.threads)
        self.device = device_of(config, self.processes.size)
        prepared = Prepared(config)
        self.vocabulary = prepared.vocabulary
        check_run_folder(config, folder, prepared)
        found = checkpoints.newest(folder, self._check_beside)
        self.passed_over = [] if found is None else found.passed_over
        earlier = earlier_run(config, prepared) if found is None else None

        self.data = {name: Sentences(prepared, name, "train") for name in config.data.names}
        self.dev = {name: Sentences(prepared, name, "dev") for name in config.data.names}
        self.total = sum(len(sentences) for sentences in self.data.values())
        steps = planned_steps(config, self.data)
        self.config = config
        seed_all(config.train.seed, [self.device])
        self.model = make_model(config, self.vocabulary).to(self.device)
        if earlier is not None:
            load_start_weights(self.model, config, earlier)
        if config.train.compile:
            self.model.compile_layers()
        self.optimizer = self._optimizer()
        self.averaged = AveragedWeights(self.model, config.train.average) if config.train.average else None
        self.mixture = prior_of(config, self.data, earlier)
        self.schedule = schedule_of(config, self.data, self.mixture)
        self.noisy_pairs = self._noisy_pairs(steps) if config.examples.method == "dds" else None
        self.stream = self.make_stream(None if self.noisy_pairs is None else self.noisy_pairs.chances)
        self.balancer = make_balancer(
            config, self.mixture, self.model, self._probe_loss, self.data, self.dev, self.priority(0, 0)
        )
        self.wrapped = self.processes.replicated(self.model, self._warm_up)
        self.progress = Progress()
        self.losses = RecentLosses(self.processes)
        self.resumed_from = self.processes.size  # processes of the training that is resumed
        sizes = {} if found is None else self._load(found.tensors, found.state)
        self._logged = (self.progress.tokens, self._seconds_of_steps())  # at the last line
        # The ranks agree before one of them writes.
        self.processes.check_same(
            {"recipe": config.model_dump_json(), "corpus": prepared.fingerprint, "checkpoint": self.progress.step}
        )
        writes = self.processes.rank == 0
        self.records = open_run(config, folder, prepared, sizes, self.progress.step) if writes else None
        if found is None and self.records is not None:
            self.records.start(self.mixture.probabilities, identity_of(folder))

    def first_lines(self) -> list[str]:
        """Returns messages about the resumed checkpoint and those that could not be used, and the start line."""
        lines = list(self.passed_over)
        if self.progress.finished:
            return lines
        if self.progress.step:
            lines.append(f"going on after step {self.progress.step}{self.processes.instead_of(self.resumed_from)}")
        if self.balancer is not None:
            look = f"multidds report {self.folder} shows the updates"
            self.balancer.log_start(look, write=lines.append)
        return lines

    def make_stream(self, chances: Chances | None) -> Stream:
        """Returns the training batches.

        chances: the probability of each drawn sentence pair to be trained on; None: all are.
        """
        settings = self.config.train
        return Stream(
            self.data,
            self.mixture,
            tokens=settings.tokens,
            accumulate=settings.accumulate,
            pool=settings.pool,
            mixing=settings.mixing,
            seed=settings.seed,
            rank=self.processes.rank,
            world_size=self.processes.size,
            chances=chances,
        )

    def _noisy_pairs(self, steps: float) -> NoisyPairs:
        return NoisyPairs(
            self.config,
            self.model,
            self.token_losses,
            self.data,
            self.dev,
            self.mixture,
            self.vocabulary,
            steps,
            self.processes,
        )

    def _optimizer(self) -> torch.optim.Optimizer:
        settings = self.config.train
        return torch.optim.Adam(
            self.model.parameters(),
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            fused=self.device.type in ("cpu", "cuda"),
        )

    def _warm_up(self, model: nn.Module) -> None:
        """Runs a forward and a backward pass that change nothing."""
        with compiler_errors():
            self.summed_loss(model, assemble([(next(iter(self.data.values())), 0)])).backward()  # type: ignore[no-untyped-call]
        self.optimizer.zero_grad()

    # ------------------------------------------------------------------------------------------ a step

    def step(self, batches: list[Batch], tokens: int) -> None:
        """Takes one optimizer step on the mean loss of all target tokens of all processes."""
        settings, ranks = self.config.train, self.processes.size
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(settings.lr, settings.warmup, settings.warmup_from, self.progress.step + 1)
        if ranks > 1:  # each has its own dropout, and a resumed training the same
            seed_all(derive(settings.seed, "step", self.progress.step, self.processes.rank), [self.device])
        total = self.backward(batches, tokens)
        pairs = {name for batch in batches for name in batch.pairs}
        if self.balancer is not None and settings.mixing == "batch" and len(pairs) == ranks == 1:
            self.balancer.observe(pairs.pop())  # all of .grad is of one dataset; moving averages use it
        length = nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip or math.inf)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.averaged is not None:
            self.averaged.update(self.progress.step + 1)
        self.losses.add(total + 0 * length, batches, tokens)  # not finite if either is not

    def backward(self, batches: list[Batch], tokens: int) -> Tensor:
        """Computes the gradients of a step, and returns the summed loss of these batches. []

        tokens: the number of target tokens of all processes.
        """
        total = torch.zeros((), device=self.device)
        ranks = self.processes.size
        for i, batch in enumerate(batches):
            last = i == len(batches) - 1
            with contextlib.nullcontext() if last or ranks == 1 else self.wrapped.no_sync():  # type: ignore[operator]
                loss = self.summed_loss(self.wrapped, batch)
                # DDP averages over processes what should be summed.
                (loss * (ranks / tokens)).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    def summed_loss(self, model: nn.Module, batch: Batch) -> Tensor:  # []
        with self._autocast():
            loss: Tensor = model(batch.to(self.device), self.config.train.label_smoothing)
            return loss

    def token_losses(self, model: nn.Module, batch: Batch) -> Tensor:  # [R]
        with self._autocast():
            losses: Tensor = model(batch.to(self.device), self.config.train.label_smoothing, True)
            return losses

    def _autocast(self) -> torch.autocast:
        bfloat16 = self.config.train.precision == "bfloat16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=bfloat16)

    def watch(self, show: Display) -> None:
        """Logs, and stops at a loss that is not finite. On an accelerator only now and then, since it has to wait."""
        at, settings = self.progress, self.config.train
        due = at.step % settings.log_every == 0
        if not (due or self.device.type == "cpu" or at.step % settings.save_every == 0):
            return
        loss = self.losses.checked(at.step, self.folder)
        at.lap("steps")  # on an accelerator this waits for them
        facts = {"step": at.step, "epoch": at.epoch, "loss": loss, "mixture": self.mixture.probabilities}
        show.progress(self.fraction(), facts)
        if due:
            tokens, seconds = self._logged
            self._logged = (at.tokens, self._seconds_of_steps())
            speed = (at.tokens - tokens) / max(self._logged[1] - seconds, 1e-9)
            lr = self.optimizer.param_groups[0]["lr"]
            self._record(Stepped(step=at.step, loss=loss, lr=lr, tokens=at.tokens, tokens_per_second=speed))
            show.progress(self.fraction(), {"tokens/s": speed})
            show.log(f"step {at.step}  loss {loss:.3f}  {speed:,.0f} tokens/s")

    def _seconds_of_steps(self) -> float:
        return self.progress.seconds["data"] + self.progress.seconds["steps"]

    def check_losses(self) -> None:
        if self.losses:
            self.losses.checked(self.progress.step, self.folder)

    # ------------------------------------------------------------------------------------------ the mixture

    def _probe_loss(self, model: nn.Module, parts: list[Batch]) -> Tensor:
        total = sum((self.summed_loss(model, part) for part in parts), torch.zeros((), device=self.device))
        return total / sum(part.tokens for part in parts)

    def priority(self, epoch: int, step: int) -> str | dict[str, float]:
        settings = self.config.mixture
        return "regular" if epoch < settings.switch_epoch or step < settings.switch_step else settings.priority

    def steps_until_update(self) -> int:
        watches = self.config.mixture.method == "watch"  # nothing moves: the draws are those of a static mixture
        moving = None if watches else self.balancer or self.schedule
        steps = None if moving is None else moving.steps_until_update
        return self.config.train.pool if steps is None else steps

    def balance(self) -> Update | None:
        """Steps the balancer.

        The default rule probes the averaged weights, if there are any: at the raw weights the component that all
        gradients share hides their differences.
        """
        if self.balancer is None:
            return None
        self.balancer.priority = self.priority(self.progress.epoch, self.progress.step)
        due = self.balancer.steps_until_update == 1 and self.config.mixture.is_default
        with self.at_averaged_weights() if due else contextlib.nullcontext():
            return self.balancer.step()

    def record_update(self, update: Update, show: Display) -> None:
        if self.records is not None:
            self.records.write_update(update, self.stream.passes)
        show.progress(self.fraction(), {"mixture": update.mixture})
        if update.skipped:
            show.line(f"step {update.step}: the mixture did not move: {update.skipped}")
        else:
            show.line(str(update))

    # ------------------------------------------------------------------------------------------ validation, the end

    def is_to_validate(self) -> bool:
        every = self.config.train.validate_every
        return bool(every) and self.progress.step % every == 0

    def at_averaged_weights(self) -> contextlib.AbstractContextManager[None]:
        """Swaps the averaged weights in, if there are any: they are evaluated and kept as the best."""
        return contextlib.nullcontext() if self.averaged is None else self.averaged.swapped()

    def validate(self, show: Display) -> None:
        """Measures every dev set, keeps the best model, and gives the dev losses to the balancer."""
        at, select = self.progress, self.config.train.select
        at.lap("rest")
        self.check_losses()
        with self.at_averaged_weights():
            measured = self._measured()
            means = measured.means(self.config.dev_weights)
            value = means[KINDS.get(select, "dev_loss")]
            better = is_better(select, value, at.best)
            at.waited = 0 if better else at.waited + 1
            if better:
                at.best, at.best_step = value, at.step
                self._write_best()
        if self.balancer is not None and all(math.isfinite(loss) for loss in measured.dev_loss.values()):
            self.balancer.dev_losses = measured.dev_loss
        at.finished = at.finished or self.out_of_patience()
        self._record_validation(measured, means, better)
        shown = "" if MEASURES[select] == "dev loss" else f"  {MEASURES[select]} {value:.4f}"
        mark = "  (best)" if better else ""
        show.line(f"epoch {at.epoch}  step {at.step}  dev loss {means['dev_loss']:.4f}{shown}{mark}")

    def _record_validation(self, measured: Measured, means: dict[str, float], better: bool) -> None:
        at = self.progress
        record = Validated(
            step=at.step,
            epoch=at.epoch,
            **asdict(measured),
            perplexity={name: math.exp(min(loss, 700.0)) for name, loss in measured.dev_loss.items()},
            mean=means["dev_loss"],
            means=means,
            best=better,
            passes=self.stream.passes,
            mixture=self.mixture.probabilities,
            sentences=at.sentences,
            tokens=at.tokens,
            finished=at.finished,
            seconds=at.lap("validation"),
            clock=dict(at.seconds),
        )
        self._record(record)
        if self.noisy_pairs is not None and self.records is not None:
            self._record(self.noisy_pairs.record(at.step))

    def _measured(self) -> Measured:
        self.model.eval()
        with self._autocast():
            measured = measure(self.model, self.dev, self.config.train.batch_tokens, self.device, self.processes)
        self.model.train()
        return measured

    def reason_to_finish(self) -> str:
        at, settings = self.progress, self.config.train
        if settings.max_steps and at.step >= settings.max_steps:
            return f"{settings.max_steps} steps"
        if at.sentences >= settings.max_epochs * self.total:
            return f"{settings.max_epochs} epochs"
        return ""

    def out_of_patience(self) -> str:
        patience, measure = self.config.train.patience, MEASURES[self.config.train.select]
        return f"no better {measure} in {patience} validations" if 0 < patience <= self.progress.waited else ""

    def fraction(self) -> float:
        at, settings = self.progress, self.config.train
        by_steps = at.step / settings.max_steps if settings.max_steps else 0.0
        return min(1.0, max(by_steps, at.sentences / (settings.max_epochs * self.total)))

    # ------------------------------------------------------------------------------------------ saving

    def save(self) -> None:
        self.check_losses()
        if self.records is not None:
            tensors, state = saved(self)
            path = self.folder / "checkpoints" / f"step-{self.progress.step:08}.safetensors"
            beside = {"records": self.records.flushed(), "processes": self.processes.size}
            checkpoints.write(path, tensors, {**state, **beside})
            checkpoints.prune(self.folder, self.config.train.keep, self.progress.step)
        self.processes.meet()  # no rank ends, or goes on, before it is written

    def _check_beside(self, state: dict[str, Any]) -> None:
        check_beside(self.folder, state["records"], int(state["progress"]["step"]))

    def _load(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> dict[str, int]:
        """Loads a checkpoint, and returns {file: bytes that belong to it}, of records and updates."""
        self.progress = Progress(**state["progress"])
        load(self, tensors, state)
        if self.progress.finished and not self.reason_to_finish() and not self.out_of_patience():
            self.progress.finished = ""  # max_steps or max_epochs has grown
        self.resumed_from = int(state["processes"])
        return dict(state["records"])

    def _write_best(self) -> None:
        if self.processes.rank == 0:
            tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
            best = {"step": self.progress.step, "select": self.config.train.select, "value": self.progress.best}
            checkpoints.write(self.folder / checkpoints.BEST, tensors, best)

    def _record(self, record: AnyRecord) -> None:
        if self.records is not None:
            self.records.write(record)

    def close(self) -> None:
        if self.records is not None:
            self.records.close()
