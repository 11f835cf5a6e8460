"""Balancing inside the real Lightning: equal to a plain loop, invisible probes, exact resume, processes, refusals."""

import csv
import json
import logging
from collections import defaultdict
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from assertions import assert_equal, assert_ranks_equal_one_process
from lightning.pytorch import LightningDataModule, seed_everything
from lightning.pytorch.callbacks import BackboneFinetuning, Callback, EMAWeightAveraging, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from odd_names import NAMES
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset
from toy_lightning import DEV, QUIET, SIZES, TRAIN, Net, Stateless, loader_and_callback, net, result, trainer
from toys import dataset

from multidds import Balancer, Limits, Mixture, MixtureSampler, Probes, batches_of
from multidds.integrations.lightning import BalanceCallback, mixed_loader
from multidds.rules import Cosine, MovingAverage, RelevancePlan, Scorer

pytestmark = QUIET


def loss_of(module, batch):
    return nn.functional.cross_entropy(module.net(batch[0]), batch[1])


def logged(logger):
    """The rows of a CSVLogger, without their empty cells."""
    logger.save()
    with open(logger.experiment.metrics_file_path, newline="") as file:
        return [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]


@pytest.mark.claim("Lightning", "**same result as a loop by hand**, bit for bit")
def test_fit_equals_a_plain_loop(tmp_path):
    loader, callback = loader_and_callback()
    module = net()
    trainer(tmp_path, callback, max_steps=20).fit(module, loader)

    mixture = Mixture.proportional(SIZES)
    sampler = MixtureSampler(SIZES, mixture, batch_size=4, seed=5)
    by_hand = net()
    optimizer = by_hand.configure_optimizers()
    balancer = Balancer(
        mixture,
        by_hand,
        loss_of,
        train={name: batches_of(d, 4) for name, d in TRAIN.items()},
        dev={name: batches_of(d, 4) for name, d in DEV.items()},
        every=3,
        rule=Scorer(lr=1.0),
    )
    for _, batch in zip(range(20), DataLoader(ConcatDataset(TRAIN.values()), batch_sampler=sampler), strict=False):
        optimizer.zero_grad()
        loss_of(by_hand, batch).backward()
        optimizer.step()
        balancer.step()
    assert mixture.version == 6
    assert callback.mixture.probabilities == mixture.probabilities
    assert mixture.probabilities != Mixture.proportional(SIZES).probabilities
    assert all(torch.equal(p, q) for p, q in zip(module.parameters(), by_hand.parameters(), strict=True))
    assert loader.passes == sampler.passes


class Recorder(Callback):
    """Records what a trainer shows of itself after each batch and epoch."""

    def __init__(self):
        self.records = []

    def record(self, trainer, module):
        shown = [trainer.callback_metrics, trainer.logged_metrics, trainer.progress_bar_metrics]
        metrics = {key: float(value) for metrics in shown for key, value in metrics.items() if "/" not in key}
        own = [module.seen.compute().item(), module.losses["MeanMetric"].compute().item(), len(module.outputs)]
        own += [module.losses["SumMetric"].compute().item(), module._current_fx_name]
        counters = json.dumps(trainer.fit_loop.state_dict(), default=str)
        self.records.append((metrics, own, counters, torch.get_rng_state().tolist()))

    def on_train_batch_end(self, trainer, module, *args):
        self.record(trainer, module)

    def on_train_epoch_end(self, trainer, module):
        self.record(trainer, module)


@pytest.mark.claim("Lightning", "**metrics and logs untouched by probes**, as are counters and random states")
def test_probes_are_invisible(tmp_path):
    """Updates that do not move the mixture (rewards of NaN) leave all else as it is without the callback."""

    def run(folder, *callbacks):
        loader, callback = loader_and_callback(every=2, callback={"rule": Scorer(no_reward), "priority": "low"})
        module, recorder, logger = net(dropout=0.3), Recorder(), CSVLogger(folder)
        callbacks = [callback] if folder.name == "with" else []
        trainer(folder, *callbacks, recorder, max_epochs=2, logger=logger).fit(module, loader)
        assert not callbacks or len(callback.balancer.history) == 15
        rows = [row for row in logged(logger) if "mixture/a" not in row]
        return recorder.records, result(module, callback, loader), rows, len(module.outputs)

    def no_reward(probe, round_):
        return probe.agreed(dict.fromkeys(Cosine()(probe, round_), float("nan")))

    assert run(tmp_path / "with") == run(tmp_path / "without")


@pytest.mark.claim("Lightning", "**gradient accumulation**: the balancer steps once per optimizer step")
@pytest.mark.parametrize("accumulate", [1, 3])
def test_balancer_steps_once_per_optimizer_step(accumulate, tmp_path):
    loader, callback = loader_and_callback(every=2)
    runner = trainer(tmp_path, callback, max_epochs=2, accumulate_grad_batches=accumulate)
    runner.fit(net(), loader)
    assert len(loader) == 15
    assert runner.global_step == 2 * 15 / accumulate
    assert [update.step for update in callback.balancer.history] == list(range(2, runner.global_step + 1, 2))


def test_passes_are_limited_by_the_length_of_training(tmp_path):
    """The length is known when the fit begins, not when the callback is constructed."""
    passes = {}
    for limits in (Limits(), Limits(max_passes={"a": 0.5})):
        loader, callback = loader_and_callback(callback={"limits": limits})
        trainer(tmp_path, callback, max_epochs=2).fit(net(), loader)
        passes[limits.max_passes is None] = loader.passes["a"]
    assert passes[False] < 0.8 < passes[True]


WAYS = {
    "plain": {},
    "workers": {"workers": 2},
    "persistent": {"workers": 2, "persistent_workers": True, "prefetch_factor": 3},
}


@pytest.mark.claim(
    "Lightning", "**data-loader workers**: none, 2, persistent; nothing is lost at the end of an epoch, a fixed delay"
)
@pytest.mark.parametrize("way", WAYS)
def test_new_epochs_lose_nothing_and_the_lag_is_fixed(way, tmp_path):
    """The same batches as one MixtureSampler whose mixture is moved `lag` batches late."""
    loader, callback = loader_and_callback(every=4, **WAYS[way])
    assert loader.passes == dict.fromkeys(SIZES, 0.0)
    module = net()
    runner = trainer(tmp_path, callback, max_epochs=3, limit_train_batches=7)
    runner.fit(module, loader)
    lag = {"plain": 0, "workers": 4, "persistent": 6}[way]
    mixture = Mixture.proportional(SIZES)
    moves = {update.step + lag: update.mixture for update in callback.balancer.history}
    data, expected = ConcatDataset(TRAIN.values()), []
    for number, indices in zip(range(21), MixtureSampler(SIZES, mixture, 4, seed=5), strict=False):
        expected.append([data[i][0][0].item() for i in indices])
        if number + 1 in moves:
            mixture.move(moves[number + 1])
    assert module.batches == expected
    assert sum(loader.state_dict()["counts"].values()) == 21 * 4
    assert loader.passes == {name: loader.state_dict()["counts"][name] / size for name, size in SIZES.items()}
    # At the last update, batches that were read ahead are not counted.
    counted = sum(runner.callback_metrics[f"passes/{name}"] * size for name, size in SIZES.items())
    assert counted == pytest.approx(20 * 4, abs=1e-3)


class Scheduled(Net):
    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.02)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


BEST = {"monitor": "val_loss"}
# {what: (way to load, options of the trainer, of the ModelCheckpoint, more callbacks)}
RESUMES = {
    "mid-epoch": ("plain", {"max_steps": 25}, {"every_n_train_steps": 10}),
    "workers": ("workers", {"max_steps": 25}, {"every_n_train_steps": 10}),
    "persistent workers": ("persistent", {"max_steps": 25}, {"every_n_train_steps": 11}),
    "epochs": ("workers", {"max_epochs": 3}, {"every_n_epochs": 1}),
    "accumulation": ("workers", {"max_epochs": 3, "accumulate_grad_batches": 2}, {"every_n_train_steps": 5}),
    "bf16": (
        "plain",
        {"max_epochs": 3, "limit_train_batches": 9, "precision": "bf16-mixed"},
        {"every_n_train_steps": 12},
    ),
    "best model": ("plain", {"max_epochs": 3}, BEST),
    "validation every second epoch": ("plain", {"max_epochs": 5, "check_val_every_n_epoch": 2}, BEST),
    "validation twice an epoch": ("plain", {"max_epochs": 2, "val_check_interval": 0.5}, BEST),
    "validation by steps": ("plain", {"max_steps": 30, "val_check_interval": 7, "check_val_every_n_epoch": None}, BEST),
    "part epochs": ("plain", {"max_steps": 20, "limit_train_batches": 0.4}, {"every_n_train_steps": 7}),
    "last step of an epoch": ("plain", {"max_epochs": 2}, {"every_n_train_steps": 15}),
    "odd accumulation, clipping": (
        "plain",
        {"max_epochs": 3, "accumulate_grad_batches": 4, "gradient_clip_val": 0.1},
        {"every_n_train_steps": 3},
    ),
    "averaged weights": ("plain", {"max_steps": 20}, {"every_n_train_steps": 10}, EMAWeightAveraging),
}


@pytest.mark.claim(
    "Lightning",
    "**exact resume**, **bf16 on the CPU**: in the middle of an epoch, accumulation, validation, workers, dropout",
)
@pytest.mark.claim(
    "Lightning",
    "exact resume: best model, validation by epochs, fractions or steps, odd accumulation, part epochs, EMA",
)
@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=pytest.mark.bfloat16 if what == "bf16" else ()) for what in RESUMES]
)
def test_resume_is_exact(what, tmp_path):
    way, options, saving, *more = RESUMES[what]

    def run(folder, noise, ckpt_path=None):
        loader, callback = loader_and_callback(
            callback={"probes": Probes(batches=2), "rule": Scorer(Cosine(), lr=1.0)}, **WAYS[way]
        )
        module = net(dropout=0.3, kind=Scheduled)
        saver = ModelCheckpoint(folder, "{step}", **({"save_top_k": -1} | saving))
        val = DataLoader(DEV["x"], batch_size=4) if saving is BEST else None
        seed_everything(noise, verbose=False)  # the resumed process has other random numbers
        callbacks = [saver, callback, *(kind() for kind in more)]
        trainer(tmp_path, *callbacks, **options).fit(module, loader, val, ckpt_path=ckpt_path)
        return result(module, callback, loader)

    *whole, batches = run(tmp_path / "whole", noise=1)
    saved = min((tmp_path / "whole").glob("*.ckpt"), key=lambda path: int(path.stem.removeprefix("step=")))
    assert torch.load(saved, weights_only=True)["callbacks"]["BalanceCallback"]["steps"] > 0
    *resumed, again = run(tmp_path / "resumed", noise=2, ckpt_path=saved)
    assert 0 < len(again) < len(batches)
    assert again == batches[-len(again) :]
    assert resumed == whole


@pytest.mark.claim("Lightning", "exact resume with averages of parameters and gradients")
@pytest.mark.parametrize(
    "options", [{"rule": RelevancePlan()}, {"rule": Scorer(MovingAverage()), "probes": Probes(average=40)}]
)
def test_averages_resume_exactly(options, tmp_path):
    def run(ckpt_path=None):
        loader, callback = loader_and_callback(callback=options)
        module = net(dropout=0.3, kind=Scheduled)
        saver = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=7)
        trainer(tmp_path, saver, callback, max_steps=20).fit(module, loader, ckpt_path=ckpt_path)
        return [*result(module, callback, loader)[:-1], callback.balancer.state_dict()["tensors"]]

    whole = run()
    assert any(key.startswith("averaged.") for key in whole[-1])
    assert_equal(run(tmp_path / "step=7.ckpt"), whole)


@pytest.mark.claim("Lightning", "another priority counts at a resume, and a line says so")
def test_another_priority_at_a_resume_counts_and_a_line_says_so(tmp_path, caplog):
    for priority, ckpt_path in (("regular", None), ({"x": 1.0}, tmp_path / "step=7.ckpt")):
        loader, callback = loader_and_callback(callback={"rule": RelevancePlan(), "priority": priority})
        saver = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=7)
        trainer(tmp_path, saver, callback, max_steps=20).fit(net(), loader, ckpt_path=ckpt_path)
    assert callback.balancer.history[-1].weights == {"x": 1.0} | dict.fromkeys(set(DEV) - {"x"}, 0.0)
    assert "regular" in caplog.text


@pytest.mark.claim("Lightning", "a second `fit` continues")
def test_second_fit_continues(tmp_path):
    def run(*ends):
        loader, callback = loader_and_callback(workers=2)
        module, runner = net(kind=Stateless), trainer(tmp_path, callback, max_steps=1)
        for end in ends:
            runner.fit_loop.epoch_loop.max_steps = end
            runner.fit(module, loader)
        return result(module, callback, loader)

    assert run(10, 24) == run(24)


def test_checkpoint_of_other_data_is_refused(tmp_path):
    loader, callback = loader_and_callback()
    saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=11)
    trainer(tmp_path, saver, callback, max_steps=12).fit(net(), loader)
    for sizes, message in (({"a": 40, "b": 20, "d": 90}, "'d'"), ({**SIZES, "c": 8}, "7 examples of 'c', not 8")):
        mixture = Mixture.proportional(sizes)
        data = {name: dataset(size, seed=size) for name, size in sizes.items()}
        saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=11)
        runner = trainer(tmp_path, saver, BalanceCallback(mixture, DEV, 3, rule=Scorer(lr=1.0)), max_steps=25)
        with pytest.raises(ValueError, match=message):
            runner.fit(net(), mixed_loader(data, mixture, 4, seed=5), ckpt_path=tmp_path / "step=11.ckpt")


class SavesEarly(Callback):
    """A user's own callback, first in the list: it saves before the update of this step."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step == 6:
            trainer.save_checkpoint(Path(trainer.default_root_dir, "early.ckpt"))


def test_step_saved_before_it_was_counted_is_counted_after_the_resume(tmp_path):
    def run(ckpt_path=None):
        loader, callback = loader_and_callback(every=3)
        module = net()
        trainer(tmp_path, SavesEarly(), callback, max_steps=12).fit(module, loader, ckpt_path=ckpt_path)
        return result(module, callback, loader)[:-1]

    whole = run()
    assert torch.load(tmp_path / "early.ckpt", weights_only=True)["callbacks"]["BalanceCallback"]["steps"] == 5
    assert run(tmp_path / "early.ckpt") == whole


class Stops(Net):
    """Raises in the middle of a batch, before its optimizer step."""

    def training_step(self, batch, batch_idx):
        if self.raises and self.global_step == 8:
            raise RuntimeError("the disk is full")
        return super().training_step(batch, batch_idx)


class StopsInProbe(Net):
    """Raises in the probe after the sixth step."""

    def training_step(self, batch, batch_idx):
        if self.raises and self.global_step == 6 and len(batch[1]) == 5:  # batches of training have 4
            raise RuntimeError("out of memory")
        return super().training_step(batch, batch_idx)


@pytest.mark.claim(
    "Lightning", "a checkpoint written after an exception loses no batch (the batch is repeated, with other dropout)"
)
@pytest.mark.claim("Lightning", "an exception in a probe")
@pytest.mark.parametrize(("kind", "workers"), [(Stops, 0), (Stops, 2), (StopsInProbe, 0)])
def test_checkpoint_of_an_exception_loses_nothing(kind, workers, tmp_path):
    def run(folder, raises=False, ckpt_path=None):
        loader, callback = loader_and_callback(workers=workers, callback={"batch_size": 5})
        module = net(kind=kind)
        module.raises = raises
        saver = ModelCheckpoint(folder, "stopped", save_on_exception=True, every_n_train_steps=1000)
        runner = trainer(tmp_path, callback, saver, max_steps=14)
        if not raises:
            runner.fit(module, loader, ckpt_path=ckpt_path)
            return callback.balancer.state_dict(), result(module, callback, loader)
        with pytest.raises(RuntimeError, match="the disk is full|out of memory"):
            runner.fit(module, loader)
        return None

    state, (*whole, batches) = run(tmp_path / "whole")
    run(tmp_path / "stopped", raises=True)
    again, (*resumed, rest) = run(tmp_path / "resumed", ckpt_path=tmp_path / "stopped" / "stopped.ckpt")
    assert rest == batches[-len(rest) :]
    assert (again, resumed) == (state, whole)


@pytest.mark.claim("Lightning", "resuming a finished training")
def test_finished_checkpoint_still_brings_its_mixture(tmp_path):
    def run(ckpt_path=None):
        loader, callback = loader_and_callback()
        runner = trainer(tmp_path, callback, ModelCheckpoint(tmp_path, save_last=True), max_epochs=1)
        runner.fit(net(), loader, ckpt_path=ckpt_path)
        return runner, callback.mixture.probabilities

    _, learned = run()
    assert learned != Mixture.proportional(SIZES).probabilities
    runner, mixture = run(tmp_path / "last.ckpt")
    assert mixture == learned
    runner.save_checkpoint(tmp_path / "again.ckpt")
    first, again = (torch.load(tmp_path / f"{name}.ckpt", weights_only=True) for name in ("last", "again"))
    assert again["callbacks"]["BalanceCallback"]["balancer"] == first["callbacks"]["BalanceCallback"]["balancer"]


@pytest.mark.claim("Lightning", "logs")
def test_updates_are_logged_whatever_the_datasets_are_called(tmp_path):
    names = NAMES[:3]
    mixture = Mixture.proportional(dict(zip(names, SIZES.values(), strict=True)))
    data = dict(zip(names, TRAIN.values(), strict=True))
    loader, logger = mixed_loader(data, mixture, 4, seed=5), CSVLogger(tmp_path)
    callback = BalanceCallback(mixture, {"../x": DEV["x"]}, 3, batch_size=4)
    runner = trainer(tmp_path, callback, max_steps=7, logger=logger)
    runner.fit(net(), loader)
    rows = [row for row in logged(logger) if f"mixture/{names[0]}" in row]
    assert [row["step"] for row in rows] == [3, 6]  # optimizer steps so far, as in every trainer
    last = callback.balancer.history[-1]
    for group, values in (("mixture", last.mixture), ("reward", last.rewards), ("train_loss", last.train_losses)):
        assert {name: rows[-1][f"{group}/{name}"] for name in names} == values
    assert rows[-1]["dev_loss/../x"] == last.dev_losses["../x"]
    assert runner.callback_metrics[f"mixture/{names[0]}"] == pytest.approx(last.mixture[names[0]])
    assert sum(rows[-1][f"passes/{name}"] * len(d) for name, d in data.items()) == pytest.approx(6 * 4)
    same = mixed_loader(data, mixture, 4, seed=5)
    same.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert same.passes == loader.passes


def test_skipped_update_is_a_warning(tmp_path, caplog):
    own = {"loss": lambda module, batch: module.net(batch[0]).sum() / 0}
    loader, callback = loader_and_callback(every=1, callback=own)
    with caplog.at_level(logging.WARNING, logger="multidds"):
        trainer(tmp_path, callback, max_steps=1).fit(net(), loader)
    assert "step 1  no update: the gradient of dev set 'x'" in caplog.text


class TwoLosses(Net):
    """Logs a validation loss for each dev set, not finite after step 20."""

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        loss = torch.tensor([1.0, 2.0][dataloader_idx] if self.global_step < 20 else torch.nan)
        self.log(f"val/{'xy'[dataloader_idx]}", loss, add_dataloader_idx=False)


@pytest.mark.claim("Lightning", "validation losses rank the dev sets")
@pytest.mark.claim("Lightning", "validation losses that are not finite")
def test_validation_losses_rank_the_dev_sets(tmp_path, caplog):
    vals = [DataLoader(d, batch_size=9) for d in DEV.values()]
    settings = {"priority": "low", "dev_metrics": {name: f"val/{name}" for name in DEV}}
    loader, callback = loader_and_callback(every=5, callback=settings)
    trainer(tmp_path, callback, max_epochs=3).fit(net(kind=TwoLosses), loader, vals)
    assert callback.balancer.dev_losses == {"x": 1.0, "y": 2.0}
    assert callback.balancer.history[-1].weights == {"x": 0.0, "y": 1.0}
    assert "'x': nan" in caplog.text

    settings["dev_metrics"] = {"x": "val/x", "y": "vall/y"}
    loader, callback = loader_and_callback(callback=settings)
    with pytest.raises(KeyError, match="dev_metrics.* 'vall/y', for 'y'; .*'loss'"):
        trainer(tmp_path, callback, max_epochs=1).fit(net(kind=TwoLosses), loader, vals)


@pytest.mark.claim("Lightning", "the trainer's precision and batch hooks")
@pytest.mark.bfloat16
def test_probes_run_under_the_precision_and_the_hooks_of_the_trainer(tmp_path):
    class Watched(Net):
        def on_before_batch_transfer(self, batch, dataloader_idx):
            return [batch[0].float(), batch[1]]

        def on_after_batch_transfer(self, batch, dataloader_idx):
            return [batch[0].abs(), batch[1]]

        def training_step(self, batch):
            out = self.net(batch[0])
            seen.append((out.dtype, self.training, batch[0].dtype, bool((batch[0] >= 0).all())))
            return nn.functional.cross_entropy(out.float(), batch[1])

    loader, callback = loader_and_callback(every=1)
    module = net(kind=Watched).float()
    for precision, dtype in (("32-true", torch.float32), ("bf16-mixed", torch.bfloat16)):  # two trainers
        seen = []
        trainer(tmp_path, callback, max_steps=2, precision=precision).fit(module, loader)
        assert seen == [(dtype, True, torch.float32, True)] * 2 * (1 + 3 + 2)


@pytest.mark.claim("Lightning", "nested containers are restored")
def test_containers_of_containers_are_restored(tmp_path):
    class Collects(Net):
        def __init__(self, dropout=0.0):
            super().__init__(dropout)
            self.by_name, self.by_kind, self.pair = {"loss": []}, defaultdict(list), [[], []]
            self.sums = {"loss": torch.zeros(())}

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)["loss"]
            for collected in (self.by_name["loss"], self.by_kind["loss"], self.pair[0]):
                collected.append(loss.item())
            self.sums["loss"] += loss.detach().float()
            return loss

    loader, callback = loader_and_callback(every=2)
    module = net(kind=Collects)
    trainer(tmp_path, callback, max_steps=6).fit(module, loader)
    assert len(callback.balancer.history) == 3
    losses = module.by_name["loss"]
    assert len(losses) == 6
    assert module.by_kind == {"loss": losses}
    assert module.pair == [losses, []]
    assert module.sums["loss"].item() == pytest.approx(sum(losses))


@pytest.mark.claim("Lightning", "a `training_step` that returns None")
def test_probe_batch_that_training_step_skips_skips_the_update(tmp_path):
    class Skips(Net):
        probed = 0

        def training_step(self, batch, batch_idx):
            if len(batch[1]) == 5:  # a probe batch: those of training have 4
                Skips.probed += 1
                if Skips.probed <= 5:  # the first update
                    return None
            return super().training_step(batch, batch_idx)

    loader, callback = loader_and_callback(every=2, callback={"batch_size": 5})
    trainer(tmp_path, callback, max_steps=4).fit(net(kind=Skips), loader)
    first, second = callback.balancer.history
    assert "is not finite" in first.skipped
    assert second.skipped is None


class HasBackbone(Net):
    def __init__(self, dropout=0.0):
        super().__init__(dropout)
        self.backbone = self.net[0]

    def configure_optimizers(self):
        return torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=0.02)


@pytest.mark.claim("Lightning", "callbacks that unfreeze parameters")
@pytest.mark.filterwarnings("ignore:The provided params to be frozen already exist")
@pytest.mark.parametrize("reward", [Cosine(), MovingAverage()], ids=["probes", "averages"])
def test_parameters_that_a_callback_unfreezes_are_probed_from_then_on(reward, tmp_path):
    def run(folder, ckpt_path=None):
        loader, callback = loader_and_callback(every=4, callback={"rule": Scorer(reward, lr=0.5)})
        module, saver = net(kind=HasBackbone), ModelCheckpoint(folder, "{step}", every_n_train_steps=10, save_top_k=-1)
        unfreezes = BackboneFinetuning(unfreeze_backbone_at_epoch=1, verbose=False)
        trainer(tmp_path, unfreezes, callback, saver, max_epochs=3).fit(module, loader, ckpt_path=ckpt_path)
        return callback.balancer, result(module, callback, loader)[:-1]

    balancer, whole = run(tmp_path / "whole")
    assert [update.step for update in balancer.history] == list(range(4, 45, 4))
    assert not balancer.parameters_changed
    assert run(tmp_path / "resumed", tmp_path / "whole" / "step=10.ckpt")[1] == whole


class Data(LightningDataModule):
    """Constructs its loader anew whenever Lightning asks, as datamodules do."""

    def __init__(self):
        super().__init__()
        self.mixture, self.made = Mixture.proportional(SIZES), 0

    def train_dataloader(self):
        self.made += 1
        return mixed_loader(TRAIN, self.mixture, 4, seed=5)


@pytest.mark.claim("Lightning", "a datamodule, reloading")
def test_loader_that_is_reloaded_continues_the_draws(tmp_path):
    def run(**options):
        data, module = Data(), net()
        callback = BalanceCallback(data.mixture, DEV, 4, rule=Scorer(lr=1.0))
        trainer(tmp_path, callback, max_epochs=3, limit_train_batches=6, **options).fit(module, data)
        return data.made, module.batches, data.mixture.probabilities

    assert run(reload_dataloaders_every_n_epochs=1) == (3, *run()[1:])


@pytest.mark.claim("Lightning", "a second fit with a datamodule, or with other data")
def test_second_fit_with_a_datamodule_continues_the_draws(tmp_path):
    def run(*ends):
        data, module = Data(), net(kind=Stateless)
        callback = BalanceCallback(data.mixture, DEV, 3, rule=RelevancePlan(plan=False))  # which does not know the end
        for end in ends:
            trainer(tmp_path, callback, max_steps=end).fit(module, data)
        return module.batches, data.mixture.probabilities, [p.tolist() for p in module.parameters()]

    assert run(6, 9) == run(15)


def test_another_module_begins_with_draws_of_its_own(tmp_path):
    data = Data()
    callback = BalanceCallback(data.mixture, DEV, 100, rule=Scorer())
    first, second = net(), net()
    for module in (first, second):
        trainer(tmp_path, callback, max_steps=3).fit(module, data)
    assert first.batches == second.batches


class Marked(Dataset):
    def __init__(self, data, mark, seen):
        self.data, self.mark, self.seen = data, mark, seen

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        self.seen.add(self.mark)
        return self.data[i]


@pytest.mark.claim("Lightning", "a second fit with a datamodule, or with other data")
def test_probes_use_the_data_of_the_present_loader(tmp_path):
    seen, mixture, module = set(), Mixture.proportional(SIZES), net()
    callback = BalanceCallback(mixture, DEV, 2)
    for mark in ("first", "second"):
        seen.clear()
        loader = mixed_loader({name: Marked(d, mark, seen) for name, d in TRAIN.items()}, mixture, 4)
        trainer(tmp_path, callback, max_steps=4).fit(module, loader)
        assert seen == {mark}


@pytest.mark.claim("Lightning", "other sources of probe batches")
@pytest.mark.claim("Lightning", "lists of examples")
def test_sources_of_probe_batches(tmp_path):
    """dev and train may be given as a Balancer takes them, beside datasets; the loader's data may be lists."""
    generated, sizes = [], set()

    def source(generator):
        generated.append(1)
        return [torch.randn(4, 4, generator=generator, dtype=torch.float64), torch.tensor([0, 1, 2, 0])]

    def loss(module, batch):
        sizes.add(len(batch[1]))
        return loss_of(module, batch)

    mixture = Mixture.uniform(SIZES)
    lists = {name: [d[i] for i in range(len(d))] for name, d in TRAIN.items()}
    dev = {"x": source, "y": DataLoader(DEV["y"], batch_size=4), "z": DEV["x"], "list": [DEV["x"][:4]]}
    for train in (None, {"a": source, "b": TRAIN["b"], "c": TRAIN["c"]}):
        callback = BalanceCallback(mixture, dev, 1, train=train, loss=loss)
        trainer(tmp_path, callback, max_steps=2).fit(net(), mixed_loader(lists, mixture, 4))
        assert callback.balancer.history[-1].dev_losses.keys() == dev.keys()
    assert len(generated) == 4 + 8  # two updates, two batches of each source
    assert sizes <= {4, 2, 1}  # half of a training batch; the last batch of a DataLoader over 9 examples


class Manual(Net):
    def __init__(self, dropout=0.0):
        super().__init__(dropout)
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss_of(self, batch))
        optimizer.step()


class TakesIterator(Net):
    def training_step(self, dataloader_iter):
        raise NotImplementedError


@pytest.mark.claim("Lightning", "manual optimization with `loss=`")
def test_manual_optimization_works_with_a_loss(tmp_path):
    loader, callback = loader_and_callback(callback={"loss": loss_of})
    trainer(tmp_path, callback, max_steps=7).fit(net(kind=Manual), loader)
    assert [update.step for update in callback.balancer.history] == [3, 6]


OTHER = mixed_loader(TRAIN, Mixture.proportional(SIZES), 4)


@pytest.mark.claim("Lightning", "settings that cannot work are refused")
@pytest.mark.parametrize(
    ("options", "kind", "other", "message"),
    [
        ({}, Manual, None, "manual optimization .* loss="),
        ({}, TakesIterator, None, "dataloader_iter .* loss="),
        ({"overfit_batches": 1}, Net, None, "overfit_batches"),
        ({}, Net, OTHER, "mixture .* mixed_loader"),
        ({}, Net, DataLoader(TRAIN["a"], batch_size=4), "mixed_loader.* DataLoader"),
        ({}, Net, [OTHER, OTHER], "mixed_loader.* list"),
    ],
)
def test_fits_that_cannot_work_are_refused(options, kind, other, message, tmp_path):
    loader, callback = loader_and_callback()
    with pytest.raises((TypeError, ValueError), match=message):
        trainer(tmp_path, callback, max_steps=1, **options).fit(net(kind=kind), other or loader)


@pytest.mark.claim("Lightning", "other ways to shard a model are refused")
@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        (FSDPStrategy, {}, "FSDPStrategy .*ModelParallelStrategy.*Replay"),
        (ModelParallelStrategy, {"rule": Scorer(MovingAverage())}, "MovingAverage"),
    ],
)
def test_strategies_that_do_not_work_are_refused(strategy, options, message, tmp_path):
    _, callback = loader_and_callback(callback=options)
    runner = trainer(tmp_path, callback)
    runner._accelerator_connector.strategy = strategy()
    with pytest.raises(ValueError, match=message):
        callback.setup(runner, net(), "fit")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dev": {}}, "dev is empty"),
        ({"dev": {"x": dataset(4), "y": dataset(0)}}, "dev: .*'y'"),
        ({"batchs": 2}, "batchs"),
        ({"reward": "multidds-s"}, r"^BalanceCallback: reward= .*rule=Scorer\(reward="),
        ({"groups": {"a": "web"}}, r"^BalanceCallback: groups= .*limits=Limits\(groups="),
        ({"loss": "mse"}, "loss .* str"),
        ({"every": 0}, "every .* 0"),
        ({"batch_size": 0}, "batch_size .* 0"),
        ({"dev_metrics": {"x": "val_loss"}}, "dev_metrics: 'y'"),
        ({"train": {"a": TRAIN["a"]}}, "train: 'b', 'c'"),
        ({"mixture": SIZES}, "mixture .* dict"),
        ({"priority": {"z": 1.0}}, "priority.* 'z'"),
        ({"limits": Limits(bounds={"z": (0.0, 0.5)})}, "bounds.* 'z'"),
        ({"rule": "scorer"}, "rule .*'scorer'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_wrong_arguments_are_refused_at_construction(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        BalanceCallback(**{"mixture": Mixture.proportional(SIZES), "dev": DEV, "every": 3} | arguments)


@pytest.mark.claim("Lightning", "**static mixture without the callback** (resumes within an epoch)")
def test_static_mixture_needs_no_callback_and_resumes_within_an_epoch(tmp_path):
    def run(ckpt_path=None):
        loader, module = mixed_loader(TRAIN, Mixture.proportional(SIZES), 4, seed=5, num_workers=2), net()
        saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=10)
        trainer(tmp_path, saver, max_steps=19).fit(module, loader, ckpt_path=ckpt_path)
        assert sum(loader.passes[name] * size for name, size in SIZES.items()) == pytest.approx(19 * 4)
        return loader.state_dict(), [p.tolist() for p in module.parameters()], module.batches[-9:]

    assert run() == run(tmp_path / "step=10.ckpt")


class Sharded(Net):
    def configure_model(self):
        fully_shard(self.net, mesh=self.device_mesh["data_parallel"])


def fitted(folder, ckpt_path=None, kind=Net, dropout=0.0, noise=0, settings=None, **options):
    processes = dist.get_world_size() if dist.is_initialized() else 1
    probes = Probes(batches=2, count="in all")
    loader, callback = loader_and_callback(4 // processes, callback={"probes": probes} | (settings or {}))
    module = net(dropout, kind)
    torch.manual_seed(noise)
    saver = ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=7)
    trainer(folder, callback, saver, max_epochs=2, **options).fit(module, loader, ckpt_path=ckpt_path)
    assert all(isinstance(p, DTensor) for p in module.parameters()) == (kind is Sharded)
    parameters = [(p.full_tensor() if kind is Sharded else p).tolist() for p in module.parameters()]
    averages = callback.balancer.state_dict()["tensors"]
    assert not averages or kind is not Sharded  # whose averages Lightning would save of one rank only
    state = loader.state_dict()
    return [parameters, callback.mixture.probabilities, state["counts"], state["position"], averages]


def fitted_on_ranks(folder):
    """Twice on one process; on several with DDP and in the shards of FSDP2."""
    if not dist.is_initialized():
        return [fitted(folder / "one")] * 2
    sharded = {"devices": 2, "kind": Sharded}
    return [
        fitted(folder / "ddp", devices=2, strategy="ddp"),
        fitted(folder / "sharded", strategy=ModelParallelStrategy(2, 1), **sharded),
    ]


def resumed_on_ranks(folder):
    default = {"rule": RelevancePlan(), "probes": Probes(batches=4, count="in all")}
    ddp = {
        "devices": 2,
        "strategy": "ddp",
        "dropout": 0.3,
        "settings": default,
    }  # other random numbers on each rank, and after the resume
    whole = fitted(folder / "dropout", noise=100 + dist.get_rank(), **ddp)
    again = fitted(folder / "again", folder / "dropout" / "step=7.ckpt", noise=200 + dist.get_rank(), **ddp)
    assert_equal(again, whole)
    assert whole[-1]
    options = {"kind": Sharded, "devices": 2, "settings": default}
    sharded = [
        fitted(folder / name, ckpt_path, strategy=ModelParallelStrategy(2, 1), **options)
        for name, ckpt_path in (("sharded", None), ("sharded again", folder / "sharded" / "step=7.ckpt"))
    ]
    assert_equal(sharded[0], sharded[1])


def probes_divided_on_ranks(folder):
    """Checks that of three datasets each of two processes probes one alone."""
    probed = set()

    def loss(module, batch):
        first = batch[0][0]
        probed.update(name for name, rows in TRAIN.items() if any(torch.equal(x, first) for x, _ in rows))
        return loss_of(module, batch)

    loader, callback = loader_and_callback(callback={"loss": loss})
    trainer(folder, callback, max_steps=3, devices=2, strategy="ddp").fit(net(), loader)
    by_rank = [None] * 2
    dist.all_gather_object(by_rank, probed)
    assert len(by_rank[0]) == len(by_rank[1]) == 2
    assert by_rank[0] | by_rank[1] == TRAIN.keys()


@pytest.mark.claim("Lightning", "**two processes** equal one with twice the batch, and resume")
@pytest.mark.claim("Lightning", "**FSDP2** (`ModelParallelStrategy`) equals one process, and resumes")
@pytest.mark.slow
def test_two_processes_equal_one_with_twice_the_batch(tmp_path):
    checks = [partial(resumed_on_ranks, tmp_path / "resumed"), partial(probes_divided_on_ranks, tmp_path / "divided")]
    assert_ranks_equal_one_process(fitted_on_ranks, tmp_path, arguments=[tmp_path], checks=checks, fork=True)
