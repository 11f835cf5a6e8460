"""The real Lightning, on CPU: equal to a hand-written loop, invisible probes, exact resume, "
"processes, refusals."""

import csv
import json
import logging
import os

import lightning_fit
import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import LightningDataModule, seed_everything
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from odd_names import NAMES
from ranks import leave
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, TensorDataset
from toy_lightning import DEV, QUIET, SIZES, TRAIN, Net, Stateless, loader_and_callback, net, result, trainer
from toys import dataset

from multidds import Balancer, Mixture, MixtureSampler, Scorer, batches_of
from multidds.integrations.lightning import BalanceCallback, mixed_loader

pytestmark = QUIET


def logged(logger):
    """The rows of a CSVLogger, without their empty cells."""
    logger.save()
    with open(logger.experiment.metrics_file_path, newline="") as file:
        return [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]


@pytest.mark.claim("Lightning", "**same result as a loop by hand**, bit for bit")
def test_it_equals_a_hand_written_loop(tmp_path):
    loader, callback = loader_and_callback()
    module = net()
    trainer(tmp_path, callback, max_steps=20).fit(module, loader)

    mixture = Mixture.proportional(SIZES)
    sampler = MixtureSampler(SIZES, mixture, batch_size=4, seed=5)
    by_hand = net()
    optimizer = by_hand.configure_optimizers()

    def loss(module, batch):
        return nn.functional.cross_entropy(module.net(batch[0]), batch[1])

    balancer = Balancer(
        mixture,
        by_hand,
        loss,
        train={name: batches_of(d, 4) for name, d in TRAIN.items()},
        dev={name: batches_of(d, 4) for name, d in DEV.items()},
        every=3,
        scorer=Scorer(lr=1.0),
    )
    for _, batch in zip(range(20), DataLoader(ConcatDataset(TRAIN.values()), batch_sampler=sampler), strict=False):
        optimizer.zero_grad()
        loss(by_hand, batch).backward()
        optimizer.step()
        balancer.step()
    assert mixture.version == 6
    assert callback.mixture.probabilities == mixture.probabilities
    assert mixture.probabilities != Mixture.proportional(SIZES).probabilities
    assert all(torch.equal(p, q) for p, q in zip(module.parameters(), by_hand.parameters(), strict=True))
    assert loader.passes == sampler.passes


class Ears(Callback):
    """Everything that a trainer says of itself after each batch and epoch."""

    def __init__(self):
        self.heard = []

    def hear(self, trainer, module):
        shown = [trainer.callback_metrics, trainer.logged_metrics, trainer.progress_bar_metrics]
        metrics = {key: float(value) for metrics in shown for key, value in metrics.items()}
        own = [module.seen.compute().item(), module.losses["MeanMetric"].compute().item(), len(module.outputs)]
        own += [module.losses["SumMetric"].compute().item(), module._current_fx_name]
        counters = json.dumps(trainer.fit_loop.state_dict(), default=str)
        self.heard.append((metrics, own, counters, torch.get_rng_state().tolist()))

    def on_train_batch_end(self, trainer, module, *args):
        self.hear(trainer, module)

    def on_train_epoch_end(self, trainer, module):
        self.hear(trainer, module)


@pytest.mark.claim("Lightning", "**metrics and logs untouched by probes**, as are counters and random states")
def test_a_probe_is_invisible(tmp_path):
    """Updates that do not move the mixture (rewards of NaN) leave everything else as it is without the "
    "callback."""

    def run(folder, *callbacks, **settings):
        loader, callback = loader_and_callback(every=2, callback=settings)
        module, ears = net(dropout=0.3), Ears()
        logger = CSVLogger(folder)
        runner = trainer(folder, *([callback] if settings else []), ears, max_epochs=2, logger=logger)
        runner.fit(module, loader)
        rows = [row for row in logged(logger) if "mixture/a" not in row]
        return callback, ears.heard, result(module, callback, loader), rows, len(module.outputs)

    still = {"reward": lambda alignment, weights: torch.full((3,), torch.nan), "sketch": 16, "priority": "low"}
    callback, *with_it = run(tmp_path / "a", **still)
    assert len(callback.balancer.history) == 15
    _, *without = run(tmp_path / "b")
    ours = {key for key in with_it[0][-1][0] if "/" in key}
    assert "mixture/a" in ours
    for metrics, *_ in with_it[0]:
        for key in ours:
            metrics.pop(key, None)
    assert with_it == without


@pytest.mark.claim("Lightning", "**gradient accumulation**: the balancer steps once per optimizer step")
@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_balancer_steps_once_per_optimizer_step(accumulate, tmp_path):
    loader, callback = loader_and_callback(every=2)
    module = net()
    runner = trainer(tmp_path, callback, max_epochs=2, accumulate_grad_batches=accumulate)
    runner.fit(module, loader)
    assert len(loader) == 15
    assert runner.global_step == 2 * 15 / accumulate
    assert [update.step for update in callback.balancer.history] == list(range(2, runner.global_step + 1, 2))


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
    trainer(tmp_path, callback, max_epochs=3, limit_train_batches=7).fit(module, loader)
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


@pytest.mark.claim("Lightning", "a second `fit` continues")
def test_a_second_fit_goes_on_where_the_first_ended(tmp_path):
    def run(*ends):
        loader, callback = loader_and_callback(workers=2)
        module, runner = net(kind=Stateless), trainer(tmp_path, callback, max_steps=1)
        for end in ends:
            runner.fit_loop.epoch_loop.max_steps = end
            runner.fit(module, loader)
        return result(module, callback, loader)

    assert run(10, 24) == run(24)


# (way, options of the trainer, where it is saved): mid-epoch, at an epoch's end, within accumulation, after validation
RESUMES = [
    ("plain", {"max_steps": 25}, {"every_n_train_steps": 10}),
    ("workers", {"max_steps": 25}, {"every_n_train_steps": 10}),
    ("persistent", {"max_steps": 25}, {"every_n_train_steps": 11}),
    ("plain", {"max_epochs": 3}, {"every_n_epochs": 1}),
    ("workers", {"max_epochs": 3}, {"every_n_epochs": 1}),
    ("workers", {"max_epochs": 3, "accumulate_grad_batches": 2}, {"every_n_train_steps": 5}),
    pytest.param(
        "plain", {"max_epochs": 3, "limit_train_batches": 9, "precision": "bf16-mixed"}, {"every_n_train_steps": 12},
        marks=pytest.mark.bfloat16,
    ),
    ("plain", {"max_epochs": 2, "val_check_interval": 5}, {"monitor": "val_loss", "save_top_k": -1}),
]  # fmt: skip


@pytest.mark.claim(
    "Lightning",
    "**exact resume**, **bf16 on the CPU**: in the middle of an epoch, accumulation, validation, workers, dropout",
)
@pytest.mark.parametrize(("way", "options", "saving"), RESUMES, ids=str)
def test_a_resumed_fit_equals_an_uninterrupted_one(way, options, saving, tmp_path):
    def run(folder, ckpt_path=None):
        seed_everything(1, verbose=False)
        loader, callback = loader_and_callback(callback={"batches": 2, "reward": "multidds"}, **WAYS[way])
        module = net(dropout=0.3)
        saver = ModelCheckpoint(folder, "{step}", **({"save_top_k": -1} | saving))
        val = DataLoader(DEV["x"], batch_size=4) if "monitor" in saving else None
        seed_everything(1 if ckpt_path is None else 2, verbose=False)  # the resumed process has other random numbers
        trainer(tmp_path, saver, callback, **options).fit(module, loader, val, ckpt_path=ckpt_path)
        return module, result(module, callback, loader)

    _, whole = run(tmp_path / "whole")
    saved = sorted((tmp_path / "whole").glob("*.ckpt"), key=lambda path: path.stat().st_mtime)
    assert len(saved) > 1
    checkpoint = torch.load(saved[0], weights_only=True)
    assert checkpoint["callbacks"]["BalanceCallback"]["balancer"]["rounds"] > 0
    module, resumed = run(tmp_path / "resumed", saved[0])
    assert 0 < len(module.batches) < len(whole[-1])
    assert module.batches == whole[-1][-len(module.batches) :]
    assert resumed[:-1] == whole[:-1]


# (sizes of the changed datasets, where it was saved): an epoch becomes shorter than what was done of it, or longer
@pytest.mark.claim(
    "Lightning",
    "**datasets added or left out on resume**: refused, or gone on with as asked, where an epoch becomes "
    "shorter than what was done of it",
)
@pytest.mark.parametrize("sizes", [{"b": 13, "c": 7, "d": 9}, {"a": 40, "b": 20, "d": 90}], ids=str)
def test_changed_data_is_refused_or_gone_on_with_as_asked(sizes, tmp_path):
    loader, callback = loader_and_callback()
    saver = ModelCheckpoint(tmp_path / "saved", "{step}", every_n_train_steps=11, save_top_k=-1)
    trainer(tmp_path, saver, callback, max_steps=12).fit(net(), loader)
    (saved,) = (tmp_path / "saved").glob("*.ckpt")
    checkpoint = torch.load(saved, weights_only=True)["callbacks"]["BalanceCallback"]
    before = checkpoint["mixture"]["probabilities"]

    def changed(path=saved, folder="changed", **options):
        data = {name: dataset(size, seed=size) for name, size in sizes.items()}
        mixture = Mixture.proportional(sizes)
        loader = mixed_loader(data, mixture, 4, seed=5)
        dev = {"y": DEV["y"], "z": DEV["x"]}
        callback = BalanceCallback(mixture, dev, 3, scorer=Scorer(lr=1.0), batch_size=4, **options)
        module = net()
        saver = ModelCheckpoint(tmp_path / folder, "{step}", every_n_train_steps=11, save_top_k=-1)
        trainer(tmp_path, saver, callback, max_steps=25).fit(module, loader, ckpt_path=path)
        return module, callback, loader

    with pytest.raises(ValueError, match="'d' is missing. Where the data were changed on purpose, changed_data=True"):
        changed()
    module, callback, loader = changed(changed_data=True)
    update = callback.balancer.history[0]
    assert update.step == 12
    assert update.before["d"] == pytest.approx(sizes["d"] / sum(sizes.values()))
    kept = [name for name in sizes if name in before]
    assert update.before[kept[0]] / update.before[kept[1]] == pytest.approx(before[kept[0]] / before[kept[1]])
    assert len(module.batches) == 14
    counts = loader.state_dict()["counts"]
    assert counts.keys() == sizes.keys()
    assert sum(counts.values()) == 14 * 4 + sum(checkpoint["loader"]["counts"][name] for name in kept)

    (newer,) = (tmp_path / "changed").glob("*.ckpt")
    again, third, loaded = changed(newer, "again")
    assert again.batches == module.batches[-len(again.batches) :]
    assert result(again, third, loaded)[:-1] == result(module, callback, loader)[:-1]


def test_a_loader_refuses_the_state_of_other_data_before_its_first_batch():
    state = mixed_loader(TRAIN, Mixture.proportional(SIZES), 4).state_dict()
    other = mixed_loader({"a": TRAIN["a"], "b": TRAIN["c"]}, Mixture.uniform("ab"), 4)
    other.load_state_dict(state)  # by Lightning, before a callback can say that other data are meant
    with pytest.raises(ValueError, match="'c' is unknown; there are 'a', 'b'. Where the data were changed on purpose"):
        next(iter(other))
    with pytest.raises(ValueError, match="'places'|'batches'|'sizes'"):
        other.load_state_dict({})


def test_a_finished_fit_with_changed_data_leaves_their_mixture(tmp_path):
    loader, callback = loader_and_callback()
    saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=12)
    trainer(tmp_path, saver, callback, max_steps=12).fit(net(), loader)
    (saved,) = tmp_path.glob("*.ckpt")
    learned = callback.mixture.probabilities
    mixture = Mixture.proportional({"a": 40, "b": 13, "d": 53})
    sets = {"a": TRAIN["a"], "b": TRAIN["b"], "d": dataset(53, seed=3)}
    again = BalanceCallback(mixture, DEV, 3, changed_data=True)
    saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=12)
    trainer(tmp_path, saver, again, max_steps=12).fit(net(), mixed_loader(sets, mixture, 4, seed=5), ckpt_path=saved)
    assert mixture["d"] == pytest.approx(0.5)
    assert mixture["a"] / mixture["b"] == pytest.approx(learned["a"] / learned["b"])


def test_a_step_saved_before_the_callback_heard_of_it_is_caught_up(tmp_path):
    class Early(Callback):
        """A user's own, first in the list: it saves before the update of this step."""

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if trainer.global_step == 6:
                trainer.save_checkpoint(tmp_path / "early.ckpt")

    def run(ckpt_path=None, **options):
        loader, callback = loader_and_callback(every=3)
        module = net()
        trainer(tmp_path, Early(), callback, max_steps=12).fit(module, loader, ckpt_path=ckpt_path)
        return result(module, callback, loader)[:-1]

    whole = run()
    assert torch.load(tmp_path / "early.ckpt", weights_only=True)["callbacks"]["BalanceCallback"]["steps"] == 5
    assert run(tmp_path / "early.ckpt") == whole


@pytest.mark.claim("Lightning", "logs")
def test_updates_are_logged(tmp_path):
    loader, callback = loader_and_callback(every=3)
    logger = CSVLogger(tmp_path)
    runner = trainer(tmp_path, callback, max_steps=7, logger=logger)
    runner.fit(net(), loader)
    rows = [row for row in logged(logger) if "mixture/a" in row]
    assert [row["step"] for row in rows] == [3, 6]  # optimizer steps so far, as in every trainer
    assert [update.step for update in callback.balancer.history] == [3, 6]
    last = callback.balancer.history[-1]
    for name in SIZES:
        assert rows[-1][f"mixture/{name}"] == last.mixture[name]
        assert rows[-1][f"reward/{name}"] == last.rewards[name]
        assert rows[-1][f"train_loss/{name}"] == last.train_losses[name]
        assert runner.callback_metrics[f"mixture/{name}"] == pytest.approx(last.mixture[name])
    assert rows[-1]["dev_loss/x"] == last.dev_losses["x"]
    assert sum(rows[-1][f"passes/{name}"] * size for name, size in SIZES.items()) == pytest.approx(6 * 4)


def test_datasets_of_any_names_are_trained_and_logged(tmp_path):
    names = NAMES[:3]
    mixture = Mixture.proportional(dict(zip(names, SIZES.values(), strict=True)))
    loader = mixed_loader(dict(zip(names, TRAIN.values(), strict=True)), mixture, 4, seed=5)
    callback = BalanceCallback(mixture, {"../x": DEV["x"]}, 3, batch_size=4)
    logger = CSVLogger(tmp_path)
    trainer(tmp_path, callback, max_steps=7, logger=logger).fit(net(), loader)
    rows = [row for row in logged(logger) if "dev_loss/../x" in row]
    assert {name: rows[-1][f"mixture/{name}"] for name in names} == callback.balancer.history[-1].mixture
    same = mixed_loader(dict(zip(names, TRAIN.values(), strict=True)), mixture, 4, seed=5)
    same.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert same.passes == loader.passes


def test_passes_do_not_count_what_is_read_ahead(tmp_path):
    loader, callback = loader_and_callback(every=3, workers=2)
    runner = trainer(tmp_path, callback, max_steps=3)
    runner.fit(net(), loader)
    drawn = sum(runner.callback_metrics[f"passes/{name}"] * size for name, size in SIZES.items())
    assert drawn == pytest.approx(3 * 4, abs=1e-4)


def test_a_skipped_update_is_said(tmp_path, caplog):
    loader, callback = loader_and_callback(
        every=1, callback={"loss": lambda module, batch: module.net(batch[0]).sum() / 0}
    )
    with caplog.at_level(logging.WARNING, logger="multidds"):
        trainer(tmp_path, callback, max_steps=1).fit(net(), loader)
    assert "the mixture did not move at step 1: the gradient of dev set 'x' is not finite" in caplog.text


@pytest.mark.claim("Lightning", "validation losses rank the dev sets")
def test_validation_losses_rank_the_dev_sets(tmp_path):
    class TwoVals(Net):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            name = "xy"[dataloader_idx]
            self.log(f"val_loss/{name}", torch.tensor({"x": 1.0, "y": 2.0}[name]), add_dataloader_idx=False)

    metrics = {name: f"val_loss/{name}" for name in DEV}
    settings = {"priority": "low", "dev_metrics": metrics}
    loader, callback = loader_and_callback(every=5, callback=settings)
    vals = [DataLoader(d, batch_size=9) for d in DEV.values()]
    trainer(tmp_path, callback, max_steps=10, val_check_interval=7).fit(net(kind=TwoVals), loader, vals)
    assert callback.balancer.dev_losses == {"x": 1.0, "y": 2.0}
    assert callback.balancer.history[-1].weights == {"x": 0.0, "y": 1.0}

    settings["dev_metrics"] = {"x": "val_loss/x", "y": "val_los/y"}
    loader, callback = loader_and_callback(callback=settings)
    with pytest.raises(
        KeyError, match="no validation logged 'val_los/y', the loss of the dev set 'y'; there are 'loss'"
    ):
        trainer(tmp_path, callback, max_steps=8, val_check_interval=7).fit(net(kind=TwoVals), loader, vals)


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

    seen = []
    loader, callback = loader_and_callback(every=1)
    module = net(kind=Watched).float()
    trainer(tmp_path, callback, max_steps=2, precision="32-true").fit(module, loader)
    assert set(seen) == {(torch.float32, True, torch.float32, True)}
    seen.clear()
    trainer(tmp_path, callback, max_steps=2, precision="bf16-mixed").fit(module, loader)  # another trainer
    assert len(seen) == 2 * (1 + 3 + 2)
    assert set(seen) == {(torch.bfloat16, True, torch.float32, True)}


@pytest.mark.claim("Lightning", "a datamodule, reloading")
def test_a_datamodule_of_ones_own_and_reloading(tmp_path):
    """A loader that Lightning asks for again goes on with the draws of the one before."""

    class Data(LightningDataModule):
        def __init__(self):
            super().__init__()
            self.mixture, self.made = Mixture.proportional(SIZES), []

        def train_dataloader(self):
            self.made.append(mixed_loader(TRAIN, self.mixture, 4, seed=5))
            return self.made[-1]

    def run(**options):
        data, module = Data(), net()
        callback = BalanceCallback(data.mixture, DEV, 4, scorer=Scorer(lr=1.0))
        trainer(tmp_path, callback, max_epochs=3, limit_train_batches=6, **options).fit(module, data)
        return len(data.made), module.batches, data.mixture.probabilities

    assert run(reload_dataloaders_every_n_epochs=1) == (3, *run()[1:])


@pytest.mark.claim("Lightning", "other sources of probe batches")
def test_probes_of_sources_and_of_other_datasets(tmp_path):
    """dev and train may be given as a Balancer takes them, beside datasets."""
    seen = []

    def source(generator):
        seen.append(1)
        return [torch.randn(3, 4, generator=generator, dtype=torch.float64), torch.tensor([0, 1, 2])]

    mixture = Mixture.uniform(SIZES)
    loader = mixed_loader(TRAIN, mixture, 4)
    dev = {"x": source, "y": DataLoader(DEV["y"], batch_size=4), "z": DEV["x"], "list": [DEV["x"][:4]]}
    callback = BalanceCallback(mixture, dev, 1, train={"a": source, "b": TRAIN["b"], "c": TRAIN["c"]})
    trainer(tmp_path, callback, max_steps=2).fit(net(), loader)
    assert len(seen) == 8  # two updates, two batches of each of two sources
    assert set(callback.balancer.history[-1].dev_losses) == set(dev)


class Manual(Net):
    def __init__(self, dropout=0.0):
        super().__init__(dropout)
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(nn.functional.cross_entropy(self.net(batch[0]), batch[1]))
        optimizer.step()


class TakesIterator(Net):
    def training_step(self, dataloader_iter):
        raise NotImplementedError


@pytest.mark.claim("Lightning", "manual optimization with `loss=`")
def test_manual_optimization_works_with_a_loss(tmp_path):
    settings = {"loss": lambda module, batch: nn.functional.cross_entropy(module.net(batch[0]), batch[1])}
    loader, callback = loader_and_callback(callback=settings)
    trainer(tmp_path, callback, max_steps=7).fit(net(kind=Manual), loader)
    assert [update.step for update in callback.balancer.history] == [3, 6]


@pytest.mark.claim("Lightning", "settings that cannot work are refused")
def test_what_cannot_be_done_is_refused(tmp_path):
    def fit(message, kind=Net, loader=None, error=ValueError, **options):
        made, callback = loader_and_callback()
        with pytest.raises(error, match=message):
            trainer(tmp_path, callback, max_steps=1, **options).fit(net(kind=kind), made if loader is None else loader)

    fit("with manual optimization training_step takes steps of its own; give loss=", Manual)
    fit("a training_step that takes dataloader_iter cannot be given a probe batch; give loss=", TakesIterator)
    fit("overfit_batches wants the same batches again, but a mixture draws new ones", overfit_batches=1)
    other = mixed_loader(TRAIN, Mixture.proportional(SIZES), 4)
    fit("it has another Mixture object than mixed_loader; give both the same", loader=other)
    ordinary = DataLoader(TRAIN["a"], batch_size=4)
    fit("the training loader must be one mixed_loader\\(...\\), got DataLoader", loader=ordinary, error=TypeError)
    fit("the training loader must be one mixed_loader\\(...\\), got list", loader=[other, other], error=TypeError)


@pytest.mark.claim("Lightning", "other ways to shard a model are refused")
@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        (
            FSDPStrategy,
            {},
            "strategy is FSDPStrategy; use one device, strategy='ddp' or ModelParallelStrategy, or .* Replay",
        ),
        (ModelParallelStrategy, {"reward": "moving-average"}, "of which Lightning would save those of one rank"),
        (
            ModelParallelStrategy,
            {"losses": lambda module, batch: None},
            "mix datasets keep a gradient in shards, of which",
        ),
    ],
)
def test_ways_to_divide_the_model_that_do_not_work_are_refused(strategy, options, message, tmp_path):
    _, callback = loader_and_callback(callback=options)
    runner = trainer(tmp_path, callback)
    runner._accelerator_connector.strategy = strategy()
    with pytest.raises(ValueError, match=message):
        callback.setup(runner, net(), "fit")


def test_wrong_arguments_are_refused_where_they_are_given():
    mixture = Mixture.proportional(SIZES)
    with pytest.raises(ValueError, match="BalanceCallback: there must be at least one dev set"):
        BalanceCallback(mixture, {}, 3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'batchs'"):
        BalanceCallback(mixture, DEV, 3, batchs=2)
    with pytest.raises(TypeError, match="loss must be a function \\(module, batch\\), got str"):
        BalanceCallback(mixture, DEV, 3, loss="mse")
    with pytest.raises(ValueError, match="BalanceCallback: every must be a whole number of at least 1, but it is 0"):
        BalanceCallback(mixture, DEV, 0)
    with pytest.raises(ValueError, match="BalanceCallback: batch_size must be a whole number"):
        BalanceCallback(mixture, DEV, 1, batch_size=0)
    with pytest.raises(ValueError, match="BalanceCallback: dev_metrics: 'y' is missing"):
        BalanceCallback(mixture, DEV, 3, dev_metrics={"x": "val_loss"})
    with pytest.raises(ValueError, match="BalanceCallback: train: 'b', 'c' are missing"):
        BalanceCallback(mixture, DEV, 3, train={"a": TRAIN["a"]})
    with pytest.raises(TypeError, match="BalanceCallback: the mixture must be a Mixture, got dict"):
        BalanceCallback(SIZES, DEV, 3)
    with pytest.raises(ValueError, match="the mixture decides what is drawn; leave 'shuffle' out"):
        mixed_loader(TRAIN, mixture, 4, shuffle=True)
    with pytest.raises(ValueError, match="mixed_loader: 'c' is missing"):
        mixed_loader({name: TRAIN[name] for name in "ab"}, mixture, 4)
    with pytest.raises(ValueError, match="mixed_loader: batch_size must be a whole number of at least 1, but it is 0"):
        mixed_loader(TRAIN, mixture, 0)
    with pytest.raises(ValueError, match="mixed_loader: the size of 'c' must be a whole number of at least 1"):
        mixed_loader(TRAIN | {"c": TensorDataset(torch.zeros(0))}, mixture, 4)
    with pytest.raises(TypeError, match="the dataset 'c' must be map-style, with a length and indices, got Endless"):
        mixed_loader(TRAIN | {"c": Endless()}, mixture, 4)


class Endless(IterableDataset):
    def __iter__(self):
        return iter(())


class Sharded(Net):
    def configure_model(self):
        fully_shard(self.net, mesh=self.device_mesh["data_parallel"])


def fitted(folder, batch_size, batches, ckpt_path=None, dropout=0.0, noise=0, kind=Net, **options):
    loader, callback = loader_and_callback(batch_size, callback={"batches": batches})
    module = net(dropout, kind)
    torch.manual_seed(noise)
    saver = ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=7)
    trainer(folder, callback, saver, max_epochs=2, **options).fit(module, loader, ckpt_path=ckpt_path)
    if kind is Sharded:
        assert all(isinstance(p, DTensor) for p in module.parameters())
    parameters = [(p.full_tensor() if kind is Sharded else p).tolist() for p in module.parameters()]
    state = loader.state_dict()
    return [parameters, callback.mixture.probabilities, state["counts"], state["position"]]


def one_rank(rank, folder):
    """As torchrun starts them; the group meets in a file instead of at a port."""
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0}
    places |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1, "TORCHELASTIC_RUN_ID": "test", "GLOO_SOCKET_IFNAME": "lo"}
    os.environ.update({key: str(value) for key, value in places.items()})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    options = {"devices": 2, "strategy": "ddp"}
    found = [fitted(folder / "plain", 2, 1, **options)]
    options["dropout"] = 0.3  # other random numbers on each rank, and others again after the resume
    found.append(fitted(folder / "dropout", 2, 1, noise=100 + rank, **options))
    saved = folder / "dropout" / "step=7.ckpt"
    found.append(fitted(folder / "resumed", 2, 1, saved, noise=200 + rank, **options))
    # Again in the shards of FSDP2.
    options = {"devices": 2, "kind": Sharded}
    for name, saved in (("sharded", None), ("sharded again", folder / "sharded" / "step=7.ckpt")):
        strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
        found.append(fitted(folder / name, 2, 1, saved, strategy=strategy, **options))
    (folder / f"{rank}.json").write_text(json.dumps(found))
    leave()


@pytest.mark.claim("Lightning", "**two processes** equal one with twice the batch, and resume")
@pytest.mark.claim("Lightning", "**FSDP2** (`ModelParallelStrategy`) equals one process, and resumes")
@pytest.mark.slow
def test_two_processes_equal_one_with_twice_the_batch_and_resume_exactly(tmp_path):
    torch.multiprocessing.start_processes(one_rank, (tmp_path,), nprocs=2, start_method="fork")  # imports are slow
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second
    together, uninterrupted, resumed, sharded, sharded_again = first
    assert uninterrupted == resumed
    assert sharded == sharded_again
    parameters, mixture, counts, position = fitted(tmp_path, 4, 2)
    for found in (together, sharded):
        assert found[2:] == [counts, position]
        assert found[1] == pytest.approx(mixture, abs=1e-9)
        for got, expected in zip(found[0], parameters, strict=True):
            assert torch.allclose(torch.tensor(got), torch.tensor(expected), atol=1e-9)


@pytest.mark.slow
def test_the_example_drops_the_noise_and_resumes_exactly(tmp_path):
    results = lightning_fit.main(400)
    assert results["learned"]["mixture"]["junk"] < results["proportional"]["mixture"]["junk"] / 2
    for name, score in results["learned"]["accuracy"].items():
        assert score > results["proportional"]["accuracy"][name]
    model, mixture = lightning_fit.fit(tmp_path, 200)
    resumed, its_mixture = lightning_fit.fit(tmp_path, 200, ckpt_path=tmp_path / "step=100.ckpt")
    assert its_mixture == mixture
    assert all(torch.equal(p, q) for p, q in zip(resumed.parameters(), model.parameters(), strict=True))


@pytest.mark.claim("Lightning", "**static mixture without the callback** (resumes within an epoch)")
def test_a_fixed_mixture_needs_no_callback_and_resumes_within_an_epoch(tmp_path):
    def run(ckpt_path=None):
        loader, module = mixed_loader(TRAIN, Mixture.proportional(SIZES), 4, seed=5, num_workers=2), net()
        saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=10)
        trainer(tmp_path, saver, max_steps=19).fit(module, loader, ckpt_path=ckpt_path)
        return loader.state_dict(), [p.tolist() for p in module.parameters()], module.batches[-9:]

    assert run() == run(tmp_path / "step=10.ckpt")
