"""The training loop, read top to bottom; saving and resuming.

A run is one folder: config.json, records.jsonl, checkpoints/, best.safetensors, tensorboard/. One process writes it.
Several processes share every step: each takes its part of the same sentences, and decides what all decide.
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
from ..config.config import Config, read_run
from ..model.averaged_weights import AveragedWeights
from ..model.device import compiler_errors, device_of
from ..model.freed_memory import keep_freed_memory
from ..model.transformer import make_model
from ..noisy_pairs.highest_losses import HighestLosses
from ..noisy_pairs.noisy_pairs import Examples, make_examples
from ..prepare import Prepared
from ..runs import checkpoints
from ..runs.record_files import check_free
from ..runs.records import AnyRecord, DataChanged, Started, Stepped, Validated
from ..runs.run_folder import check_beside, check_run_folder, data_of, open_run
from .balancing import make_balancer, record_of
from .checkpoint_state import load, renew, saved
from .length import learning_rate, planned_steps, within_budget
from .progress import Display, Progress, stop_signals
from .running_loss import RecentLosses
from .start_mixture import prior_of, schedule_of
from .validation import MEASURES, Measured, is_better, mean_of, measure


def train(config: Config, folder: Path, show: Display, changed_data: bool = False) -> Progress:
    """Train, or go on training, the run in `folder`. changed_data: although its data have changed."""
    keep_freed_memory()
    run = Training(config, folder, changed_data)
    at = run.progress
    alone, others = run.processes.size == 1, run.processes.instead_of(run.before)
    going_on = [f"going on after step {at.step}{others}"] if at.step and not at.finished else []
    changes = [] if run.changed is None else [str(run.changed)]
    for line in [*run.passed_over, *going_on, *changes]:
        show.line(line)
    with contextlib.closing(run), stop_signals(show, alone) as stop, compiler_errors():
        at.lap("rest")
        if run.changed is not None:  # the best model is that of these dev sets
            run.validate(show)
        while not at.finished:
            batches, sentences, tokens = run.stream.next(run.steps_until_update())
            at.lap("data")
            if isinstance(run.examples, Examples):
                run.examples.look(at.step)
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
    """Everything that a training consists of, made from a config and, if there is one, the newest checkpoint."""

    def __init__(self, config: Config, folder: Path, changed_data: bool = False) -> None:
        self.folder = folder
        self.processes = Processes()
        if self.processes.rank == 0:
            check_free(folder)
        if config.train.threads:
            torch.set_num_threads(config.train.threads)
        self.device = device_of(config, self.processes.size)
        prepared = Prepared(config)
        self._vocabulary, self._fingerprint = prepared.vocabulary, prepared.fingerprint
        check_run_folder(config, folder, prepared, changed_data)
        found = checkpoints.newest(folder, self._check_beside)
        self.passed_over = [] if found is None else found.passed_over

        self.data = {name: Sentences(config, prepared, name, "train") for name in config.data.names}
        resumed = read_run(folder)[0] if found is not None else None
        self.config = config = within_budget(config, planned_steps(config, self.data), resumed)
        self.dev = {name: Sentences(config, prepared, name, "dev") for name in config.data.names}
        self.total = sum(len(sentences) for sentences in self.data.values())
        seed_all(config.train.seed, [self.device])
        self.model = make_model(config, prepared.vocabulary).to(self.device)
        if config.train.compile:
            self.model.compile_layers()
        self.optimizer = self._optimizer()
        self.mixture = prior_of(config, {name: len(sentences) for name, sentences in self.data.items()}, self.data)
        self.schedule = schedule_of(config, self.data, self.mixture)
        self.examples = make_examples(
            config, self.model, self._token_losses, self.data, self.dev, self.mixture, prepared.vocabulary,
            planned_steps(config, self.data), self.processes,
        )  # fmt: skip
        self.stream = self._stream(self.examples.chances if isinstance(self.examples, Examples) else None)
        self.averaged = AveragedWeights(self.model, config.train.average) if config.train.average else None
        self.balancer = make_balancer(
            config, self.mixture, self.model, self._probe_loss, self.data, self.dev, self.priority(epoch=0)
        )  # fmt: skip
        self.wrapped = self.processes.replicated(self.model, self._passed)
        self.progress = Progress()
        self.before = self.processes.size  # processes of the training that goes on
        self.losses = RecentLosses(self.processes)
        self._logged = (0, 0.0)  # tokens and seconds at the last line
        self.changed: DataChanged | None = None  # where the checkpoint is of other data
        offset = 0 if found is None else self._load(found.tensors, found.state)
        self.processes.check_same({  # and nobody writes before all have read
            "recipe": config.model_dump_json(), "corpus": prepared.fingerprint, "checkpoint": self.progress.step,
        })  # fmt: skip
        writes = self.processes.rank == 0
        self.records = open_run(config, folder, prepared, offset, self.progress.step) if writes else None
        first = Started(step=0, mixture=self.mixture.probabilities) if found is None else self.changed
        if first is not None:
            self._record(first)

    def _stream(self, chances: Chances | None) -> Stream:
        """chances: of drawn sentence pairs to be trained on; None: all are."""
        settings, processes = self.config.train, self.processes
        return Stream(
            self.data, self.mixture, tokens=settings.tokens, accumulate=settings.accumulate, pool=settings.pool,
            mixing=settings.mixing, seed=settings.seed, rank=processes.rank, world_size=processes.size,
            chances=chances,
        )  # fmt: skip

    def _optimizer(self) -> torch.optim.Optimizer:
        settings, fused = self.config.train, self.device.type in ("cpu", "cuda")
        options: dict[str, Any] = {"betas": (settings.beta1, settings.beta2), "weight_decay": settings.weight_decay}
        return torch.optim.Adam(self.model.parameters(), lr=settings.lr, eps=settings.eps, fused=fused, **options)

    def _passed(self, model: nn.Module) -> None:
        """A forward and a backward pass that change nothing."""
        with compiler_errors():
            self._summed_loss(model, assemble([(next(iter(self.data.values())), 0)])).backward()  # type: ignore[no-untyped-call]
        self.optimizer.zero_grad()

    # ------------------------------------------------------------------------------------------ a step

    def step(self, batches: list[Batch], tokens: int) -> None:
        """One optimizer step on the mean loss of all target tokens of all processes."""
        settings = self.config.train
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(settings.lr, settings.warmup, settings.warmup_from, self.progress.step + 1)
        total = torch.zeros((), device=self.device)
        among = self.processes.size
        if among > 1:  # each has its own dropout, which resuming finds again
            seed_all(derive(settings.seed, "step", self.progress.step, self.processes.rank), [self.device])
        for i, batch in enumerate(batches):
            last = i == len(batches) - 1
            with contextlib.nullcontext() if last or among == 1 else self.wrapped.no_sync():  # type: ignore[operator]
                loss, plain = self._step_loss(batch)
                # DDP averages over processes what should be summed.
                (loss * (among / tokens)).backward()  # type: ignore[no-untyped-call]
            total += plain.detach()
        if isinstance(self.examples, HighestLosses):
            self.examples.settle(self.model.parameters(), tokens)
        pairs = {name for batch in batches for name in batch.pairs}
        if self.balancer is not None and settings.mixing == "batch" and len(pairs) == among == 1:
            self.balancer.observe(pairs.pop())  # all of .grad is of one dataset; only moving averages listen
        length = nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip or math.inf)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.averaged is not None:
            self.averaged.update(self.progress.step + 1)
        self.losses.add(total + 0 * length, batches, tokens)  # not finite if either is not

    def _step_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(what a step makes small, the loss without the weights of examples), summed over target tokens."""
        if isinstance(self.examples, HighestLosses):
            each = self._token_losses(self.wrapped, batch)
            return self.examples.weighted(batch, each), each.sum()
        loss = self._summed_loss(self.wrapped, batch)
        return loss, loss

    def _token_losses(self, model: nn.Module, batch: Batch) -> Tensor:  # [R]
        with self._autocast():
            losses: Tensor = model(batch.to(self.device), self.config.train.label_smoothing, True)
            return losses

    def _summed_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        with self._autocast():
            loss: Tensor = model(batch.to(self.device), self.config.train.label_smoothing)
            return loss

    def _autocast(self) -> torch.autocast:
        bfloat16 = self.config.train.precision == "bfloat16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=bfloat16)

    def watch(self, show: Display) -> None:
        """Stop at a loss that is not finite, and log. On an accelerator only now and then: it would have to wait."""
        at, every = self.progress, self.config.train.log_every
        due = at.step % every == 0
        if not (due or self.device.type == "cpu" or at.step % self.config.train.save_every == 0):
            return
        loss = self.losses.checked(at.step, self.folder)
        at.lap("steps")  # on an accelerator this waits for them
        fraction = self.fraction()
        show.progress(
            fraction, {"step": at.step, "epoch": at.epoch, "loss": loss, "mixture": self.mixture.probabilities}
        )
        if due:
            before_tokens, before_seconds = self._logged
            seconds = at.seconds["data"] + at.seconds["steps"]
            speed = (at.tokens - before_tokens) / max(seconds - before_seconds, 1e-9)
            self._logged = (at.tokens, seconds)
            lr = self.optimizer.param_groups[0]["lr"]
            self._record(Stepped(step=at.step, loss=loss, lr=lr, tokens=at.tokens, tokens_per_second=speed))
            show.progress(fraction, {"tokens/s": speed})
            show.log(f"step {at.step}  loss {loss:.3f}  {speed:,.0f} tokens/s")

    def check_losses(self) -> None:
        if self.losses:
            self.losses.checked(self.progress.step, self.folder)

    # ------------------------------------------------------------------------------------------ the mixture

    def _probe_loss(self, model: nn.Module, parts: list[Batch]) -> Tensor:
        total = sum((self._summed_loss(model, part) for part in parts), torch.zeros((), device=self.device))
        return total / sum(part.tokens for part in parts)

    def priority(self, epoch: int) -> str | dict[str, float]:
        return "regular" if epoch < self.config.mixture.switch_epoch else self.config.mixture.priority

    def steps_until_update(self) -> int:
        moving = self.balancer or self.schedule
        return self.config.train.pool if moving is None else moving.steps_until_update

    def balance(self) -> Update | None:
        """One step of the balancer. The default looks where the steps of training average out, if there is such a
        place: at single steps what all gradients have in common hides how they differ.
        """
        if self.balancer is None:
            return None
        due = self.balancer.steps_until_update == 1 and self.config.mixture.method in ("anchored", "shuffled")
        with self.at_averaged_weights() if due else contextlib.nullcontext():
            return self.balancer.step()

    def record_update(self, update: Update, show: Display) -> None:
        self._record(record_of(update, self.progress.step, self.stream.passes))
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
        """The model with its averaged weights, where there are any: what is evaluated and kept."""
        return contextlib.nullcontext() if self.averaged is None else self.averaged.swapped()

    def validate(self, show: Display) -> None:
        """Measure every dev set; keep the best model; let priorities follow the losses."""
        at, select = self.progress, self.config.train.select
        at.lap("rest")
        self.check_losses()
        with self.at_averaged_weights():
            measured = self._measured()
            translated = self._translated() if select == "translation" else {}
            value = mean_of(translated["bleu"]) if translated else measured.value(select)
            at.validated = at.step
            better = is_better(select, value, at.best)
            at.waited = 0 if better else at.waited + 1
            if better:
                at.best, at.best_step = value, at.step
                self._write_best()
        losses = measured.dev_loss
        if self.balancer is not None:
            if all(math.isfinite(loss) for loss in losses.values()):
                self.balancer.dev_losses = losses
            self.balancer.priority = self.priority(at.epoch)
        at.finished = at.finished or self.out_of_patience()
        seconds = at.lap("validation")
        perplexity = {name: math.exp(min(loss, 700.0)) for name, loss in losses.items()}
        means = measured.means()
        self._record(Validated(
            step=at.step, epoch=at.epoch, **asdict(measured), **translated, perplexity=perplexity,
            mean=means["dev_loss"], means=means, best=better, passes=self.stream.passes,
            mixture=self.mixture.probabilities, sentences=at.sentences, tokens=at.tokens, finished=at.finished,
            seconds=seconds, clock=dict(at.seconds),
        ))  # fmt: skip
        if self.examples is not None and self.records is not None:
            self._record(self.examples.record(at.step))
        shown = "" if MEASURES[select] == "dev loss" else f"  {MEASURES[select]} {value:.4f}"
        mark = "  (best)" if better else ""
        show.line(f"epoch {at.epoch}  step {at.step}  dev loss {means['dev_loss']:.4f}{shown}{mark}")

    def _measured(self) -> Measured:
        self.model.eval()
        with self._autocast():
            measured = measure(self.model, self.dev, self.config.train.batch_tokens, self.device, self.processes)
        self.model.train()
        return measured

    def _translated(self) -> dict[str, Any]:
        """BLEU of part of the dev sets with its signature."""
        from .dev_bleu import dev_bleu

        weights, threads = self.model.state_dict(), torch.get_num_threads()
        scores, signature = dev_bleu(
            self.config, weights, self._vocabulary, self.dev, self.folder, threads, self.processes
        )
        return {"bleu": scores, "signature": signature}

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
            self._write_checkpoint(self.records.flushed())
        self.processes.meet()  # nobody ends, or goes on, before it is written

    def _write_checkpoint(self, records: int) -> None:
        """records: their length in bytes."""
        tensors, state = saved(self)
        path = self.folder / "checkpoints" / f"step-{self.progress.step:08}.safetensors"
        beside = {"records": records, "processes": self.processes.size, "data": self._fingerprint}
        checkpoints.write(path, tensors, {**state, **beside})
        checkpoints.prune(self.folder, self.config.train.keep, self.progress.step)

    def _check_beside(self, state: dict[str, Any]) -> None:
        check_beside(self.folder, int(state["records"]), Progress(**state["progress"]).step)

    def _load(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> int:
        """Returns how far the records are to be kept."""
        self.progress = Progress(**state["progress"])
        changed = data_of(self.folder, state) != self._fingerprint
        load(self, tensors, state, changed)
        if changed:
            self.changed = renew(self, state)
        self._logged = (self.progress.tokens, self.progress.seconds["data"] + self.progress.seconds["steps"])
        if self.progress.finished and not self.reason_to_finish() and not self.out_of_patience():
            self.progress.finished = ""  # max_steps or max_epochs has grown
        self.before = int(state.get("processes", 1))
        return int(state["records"])

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
