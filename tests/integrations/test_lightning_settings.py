"""Lightning with callbacks, modules and datamodules as people have them: nothing lost, nothing "
"leaked, exact resume."""

from collections import defaultdict

import pytest
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import BackboneFinetuning, EMAWeightAveraging, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset
from toy_lightning import DEV, QUIET, SIZES, TRAIN, Net, Stateless, loader_and_callback, net, result, trainer

from multidds import Mixture, Scorer
from multidds.integrations.lightning import BalanceCallback, mixed_loader

pytestmark = QUIET


class Stops(Net):
    """Fails in the middle of a batch, before its optimizer step."""

    fails = False

    def training_step(self, batch, batch_idx):
        if self.fails and self.global_step == 8:
            raise RuntimeError("the disk is full")
        return super().training_step(batch, batch_idx)


@pytest.mark.claim(
    "Lightning", "a checkpoint written after an exception loses no batch (the batch is repeated, with other dropout)"
)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_checkpoint_of_an_exception_loses_no_batch(workers, tmp_path):
    def run(folder, fails=False, ckpt_path=None):
        loader, callback = loader_and_callback(workers=workers)
        module = net(kind=Stops)
        module.fails = fails
        saver = ModelCheckpoint(folder, "stopped", save_on_exception=True, every_n_train_steps=1000)
        runner = trainer(tmp_path, callback, saver, max_steps=14)
        if fails:
            with pytest.raises(RuntimeError, match="the disk is full"):
                runner.fit(module, loader)
        else:
            runner.fit(module, loader, ckpt_path=ckpt_path)
        return result(module, callback, loader)

    *whole, batches = run(tmp_path / "whole")
    run(tmp_path / "stopped", fails=True)
    *resumed, again = run(tmp_path / "resumed", ckpt_path=tmp_path / "stopped" / "stopped.ckpt")
    assert again == batches[8:]
    assert resumed == whole


@pytest.mark.claim("Lightning", "an exception in a probe")
def test_an_update_that_raised_is_made_after_the_resume(tmp_path):
    def run(folder, fails=False, ckpt_path=None):
        def loss(module, batch):
            if fails and module.global_step == 6:
                raise RuntimeError("out of memory")
            return nn.functional.cross_entropy(module.net(batch[0]), batch[1])

        loader, callback = loader_and_callback(callback={"loss": loss})
        module, saver = net(), ModelCheckpoint(folder, "stopped", save_on_exception=True, every_n_train_steps=1000)
        runner = trainer(tmp_path, callback, saver, max_steps=12)
        if fails:
            with pytest.raises(RuntimeError, match="out of memory"):
                runner.fit(module, loader)
        else:
            runner.fit(module, loader, ckpt_path=ckpt_path)
        return callback.balancer.state_dict(), result(module, callback, loader)[:-1]

    whole = run(tmp_path / "whole")
    run(tmp_path / "stopped", fails=True)
    assert run(tmp_path / "resumed", ckpt_path=tmp_path / "stopped" / "stopped.ckpt") == whole


@pytest.mark.claim("Lightning", "nested containers are restored")
def test_what_is_collected_in_containers_of_containers_is_put_back(tmp_path):
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
def test_where_training_step_skips_a_probe_batch_the_update_is_skipped(tmp_path):
    class Skips(Net):
        probed = 0

        def training_step(self, batch, batch_idx):
            if len(batch[1]) == 5:  # a probe batch: the ones of training have 4
                Skips.probed += 1
                if Skips.probed <= 5:  # the first update
                    return None
            return super().training_step(batch, batch_idx)

    loader, callback = loader_and_callback(every=2, callback={"batch_size": 5})
    trainer(tmp_path, callback, max_steps=4).fit(net(kind=Skips), loader)
    first, second = callback.balancer.history
    assert "is not finite" in first.skipped
    assert second.skipped is None


@pytest.mark.claim("Lightning", "validation losses that are not finite")
def test_a_validation_loss_that_is_not_finite_leaves_the_ranks(tmp_path, caplog):
    class Diverges(Net):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            loss = torch.tensor([1.0, 2.0][dataloader_idx] if self.global_step < 20 else torch.nan)
            self.log(f"val/{'xy'[dataloader_idx]}", loss, add_dataloader_idx=False)

    settings = {"priority": "low", "dev_metrics": {name: f"val/{name}" for name in DEV}}
    loader, callback = loader_and_callback(every=5, callback=settings)
    vals = [DataLoader(d, batch_size=9) for d in DEV.values()]
    trainer(tmp_path, callback, max_epochs=3).fit(net(kind=Diverges), loader, vals)
    assert callback.balancer.dev_losses == {"x": 1.0, "y": 2.0}
    assert callback.balancer.history[-1].weights == {"x": 0.0, "y": 1.0}
    assert "'val/x' is nan: the dev sets keep their ranks" in caplog.text


class HasBackbone(Net):
    def __init__(self, dropout=0.0):
        super().__init__(dropout)
        self.backbone = self.net[0]

    def configure_optimizers(self):
        return torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=0.02)


@pytest.mark.claim("Lightning", "callbacks that unfreeze parameters")
@pytest.mark.filterwarnings("ignore:The provided params to be frozen already exist")
@pytest.mark.parametrize("reward", ["multidds-s", "moving-average"])
def test_parameters_that_a_callback_unfreezes_are_probed_from_then_on(reward, tmp_path):
    def run(folder, ckpt_path=None):
        loader, callback = loader_and_callback(every=4, callback={"reward": reward, "scorer": Scorer(lr=0.5)})
        module, saver = net(kind=HasBackbone), ModelCheckpoint(folder, "{step}", every_n_train_steps=10, save_top_k=-1)
        unfreezes = BackboneFinetuning(unfreeze_backbone_at_epoch=1, verbose=False)
        trainer(tmp_path, unfreezes, callback, saver, max_epochs=3).fit(module, loader, ckpt_path=ckpt_path)
        return callback.balancer, result(module, callback, loader)[:-1]

    balancer, whole = run(tmp_path / "whole")
    assert [update.step for update in balancer.history] == list(range(4, 45, 4))
    assert balancer.knows_the_parameters
    assert balancer._prober.vector_bytes == sum(p.numel() * 8 for p in Net().parameters())
    assert run(tmp_path / "resumed", tmp_path / "whole" / "step=10.ckpt")[1] == whole


class Data(LightningDataModule):
    """Makes its loader anew whenever Lightning asks, as datamodules do."""

    def __init__(self):
        super().__init__()
        self.mixture = Mixture.proportional(SIZES)

    def train_dataloader(self):
        return mixed_loader(TRAIN, self.mixture, 4, seed=5)


@pytest.mark.claim("Lightning", "a second fit with a datamodule, or with other data")
def test_a_second_fit_with_a_datamodule_goes_on_with_the_draws(tmp_path):
    def run(*ends):
        data, module = Data(), net(kind=Stateless)
        callback = BalanceCallback(data.mixture, DEV, 3)
        for end in ends:
            runner = trainer(tmp_path, callback, max_steps=end)
            runner.fit(module, data)
        return module.batches, data.mixture.probabilities, [p.tolist() for p in module.parameters()]

    assert run(6, 9) == run(15)


def test_another_module_begins_with_draws_of_its_own(tmp_path):
    data = Data()
    callback = BalanceCallback(data.mixture, DEV, 100, scorer=Scorer())
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
def test_probes_follow_the_data_of_the_loader(tmp_path):
    seen, mixture, module = set(), Mixture.proportional(SIZES), net()
    callback = BalanceCallback(mixture, DEV, 2)
    for mark in ("first", "second"):
        seen.clear()
        loader = mixed_loader({name: Marked(d, mark, seen) for name, d in TRAIN.items()}, mixture, 4)
        trainer(tmp_path, callback, max_steps=4).fit(module, loader)
        assert seen == {mark}


@pytest.mark.claim("Lightning", "lists of examples")
def test_lists_of_examples_are_probed_in_batches(tmp_path):
    sizes, mixture = set(), Mixture.proportional(SIZES)

    def loss(module, batch):
        sizes.add(batch[0].shape)
        return nn.functional.cross_entropy(module.net(batch[0]), batch[1])

    lists = {name: [d[i] for i in range(len(d))] for name, d in TRAIN.items()}
    callback = BalanceCallback(mixture, DEV, 1, loss=loss)
    trainer(tmp_path, callback, max_steps=2).fit(net(), mixed_loader(lists, mixture, 4))
    assert sizes == {(4, 4)}


@pytest.mark.claim("Lightning", "resuming a finished training")
def test_a_finished_checkpoint_still_brings_its_mixture(tmp_path):
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


class Scheduled(Net):
    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.02)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


# {what: (options of the trainer, of the ModelCheckpoint, more callbacks)}
SETTINGS = {
    "the best model of each epoch": ({"max_epochs": 3}, {"monitor": "val_loss"}, []),
    "validation every second epoch": ({"max_epochs": 5, "check_val_every_n_epoch": 2}, {"monitor": "val_loss"}, []),
    "validation twice an epoch": ({"max_epochs": 2, "val_check_interval": 0.5}, {"monitor": "val_loss"}, []),
    "validation by steps, over epochs": (
        {"max_steps": 30, "val_check_interval": 7, "check_val_every_n_epoch": None},
        {"monitor": "val_loss"},
        [],
    ),
    "a part of each epoch": ({"max_steps": 20, "limit_train_batches": 0.4}, {"every_n_train_steps": 7}, []),
    "at the last step of an epoch": ({"max_epochs": 2}, {"every_n_train_steps": 15}, []),
    "accumulation that does not divide the epoch, clipping": (
        {"max_epochs": 3, "accumulate_grad_batches": 4, "gradient_clip_val": 0.1},
        {"every_n_train_steps": 3},
        [],
    ),
    "averaged weights": ({"max_steps": 20}, {"every_n_train_steps": 10}, [EMAWeightAveraging]),
}


@pytest.mark.claim(
    "Lightning",
    "exact resume: best model, validation by epochs, fractions or steps, odd accumulation, part epochs, EMA",
)
@pytest.mark.parametrize("what", SETTINGS)
def test_an_ordinary_setting_resumes_exactly(what, tmp_path):
    options, saving, more = SETTINGS[what]

    def run(folder, noise, ckpt_path=None):
        loader, callback = loader_and_callback()
        module = net(dropout=0.3, kind=Scheduled)
        saver = ModelCheckpoint(folder, "{step}", **({"save_top_k": -1} | saving))
        torch.manual_seed(noise)  # the resumed process has other random numbers
        callbacks = [saver, callback, *(kind() for kind in more)]
        val = DataLoader(DEV["x"], batch_size=4)
        trainer(tmp_path, *callbacks, **options).fit(module, loader, val, ckpt_path=ckpt_path)
        return result(module, callback, loader)

    *whole, batches = run(tmp_path / "whole", noise=1)
    saved = min((tmp_path / "whole").glob("*.ckpt"), key=lambda path: int(path.stem.removeprefix("step=")))
    *resumed, again = run(tmp_path / "resumed", noise=2, ckpt_path=saved)
    assert 0 < len(again) < len(batches)
    assert again == batches[-len(again) :]
    assert resumed == whole
