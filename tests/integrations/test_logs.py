"""What the loggers and consoles of trainers show of an update: all of it there, a line here."""

import io
import json
import re
import sys

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from toy_lightning import QUIET, loader_and_callback, net
from toy_lightning import trainer as lightning
from toy_trainers import SIZES, mixtures, trainer_of
from toys import batches, mlp
from toys import loss as loss_of

from multidds import Balancer, Mixture, Update
from multidds.history import moments_of
from multidds.history.loggers import keep_history, on_console, table

pytestmark = QUIET

LINE = re.compile(r"^step (\d+)  ((\w \d+→\d+%  )*\w \d+→\d+%|unchanged: .*)$", re.MULTILINE)


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """Weights & Biases without network."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    return pytest.importorskip("wandb")


def test_the_trainer_prints_a_line_for_an_update_and_none_of_its_numbers(tmp_path, capsys):
    trainer, _ = trainer_of(tmp_path, every=4, settings={"logging_steps": 2})
    trainer.train()
    printed = capsys.readouterr().out
    assert [int(step) for step, *_ in LINE.findall(printed)] == [4, 8, 12]
    assert "mixture/" not in printed
    assert printed.count("'loss'") == 7  # the Trainer's own lines are all there
    assert len(mixtures(trainer)) == 3


def test_a_trainer_without_a_console_stays_silent(tmp_path, capsys):
    from transformers import PrinterCallback

    trainer, _ = trainer_of(tmp_path, every=4)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    assert "step 4" not in capsys.readouterr().out


def test_a_bar_of_the_trainer_is_not_broken_by_the_line(tmp_path, capsys):
    trainer, _ = trainer_of(tmp_path, every=4, settings={"disable_tqdm": False})
    trainer.train()
    assert len(LINE.findall(capsys.readouterr().out)) == 3


def charts(folder):
    """{chart: its patterns} of the custom layout that an event file has; and the tags of its numbers."""
    (file,) = list(folder.rglob("*tfevents*"))
    events = EventAccumulator(str(file)).Reload()
    layout = layout_pb2.Layout()
    layout.ParseFromString(events.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0])
    (category,) = layout.category
    return {chart.title: list(chart.multiline.tag) for chart in category.chart}, events.Tags()["scalars"]


def test_tensorboard_has_the_mixture_as_one_chart(tmp_path):
    trainer, _ = trainer_of(tmp_path, every=4, settings={"report_to": ["tensorboard"]})
    trainer.train()
    found, tags = charts(tmp_path)
    for group, chart in (("mixture", "mixture"), ("reward", "rewards")):
        matching = [tag for tag in tags if re.fullmatch(found[chart][0], tag)]
        assert sorted(matching) == [f"train/{group}/{name}" for name in SIZES]


def test_lightning_has_it_too_under_the_same_numbers(tmp_path, caplog):
    loader, callback = loader_and_callback(every=3)
    loggers = [TensorBoardLogger(tmp_path, name="tb"), CSVLogger(tmp_path, name="csv")]
    with caplog.at_level("INFO", logger="lightning.pytorch"):  # which an example run in this process has made silent
        lightning(tmp_path, callback, max_steps=7, logger=loggers).fit(net(), loader)
    lines = [record.getMessage() for record in caplog.records if LINE.match(record.getMessage())]
    assert [int(LINE.match(line)[1]) for line in lines] == [3, 6]
    found, tags = charts(tmp_path / "tb")
    assert [tag for tag in tags if re.fullmatch(found["mixture"][0], tag)] == [f"mixture/{name}" for name in SIZES]
    moments = moments_of(tmp_path / "tb")  # mixture.jsonl, in the folder of the first logger
    assert [moment.step for moment in moments] == [0, 3, 6]
    assert [moment.step for moment in moments_of(tmp_path / "csv")] == [3, 6]
    assert moments[-1].mixture == moments_of(tmp_path / "csv")[-1].mixture == callback.mixture.probabilities


def test_the_output_folder_of_a_trainer_has_the_whole_history(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 7}
    for steps, resume in ((10, None), (14, True)):  # the update of step 8 is made again
        trainer, callback = trainer_of(tmp_path, every=4, settings=settings | {"max_steps": steps})
        trainer.train(resume_from_checkpoint=resume and str(tmp_path / "checkpoint-7"))
    moments = moments_of(tmp_path)
    assert [moment.step for moment in moments] == [0, 4, 8, 12]
    assert moments[0].mixture == pytest.approx(Mixture.proportional(SIZES).probabilities)
    assert moments[-1].mixture == callback.balancer.mixture.probabilities
    assert moments[-1].groups["passes"].keys() == SIZES.keys()
    assert [moment.step for moment in moments_of(tmp_path / "checkpoint-14")] == [4, 8, 12]
    state = json.loads((tmp_path / "checkpoint-14" / "trainer_state.json").read_text())
    assert "reward" not in json.dumps(
        state["stateful_callbacks"]["BalanceCallback"]["attributes"]["balancer"]["mixture"]
    )


def test_weights_and_biases_get_a_table_from_the_trainer(tmp_path, offline):
    trainer, _ = trainer_of(tmp_path, every=4, settings={"report_to": ["wandb"], "run_name": "toy"})
    logged = []
    from transformers.integrations import WandbCallback

    (callback,) = [one for one in trainer.callback_handler.callbacks if isinstance(one, WandbCallback)]
    real = callback._wandb
    callback._wandb = Recorder(real, logged)
    trainer.train()
    offline.finish()
    tables = [row["multidds/mixture"] for row in logged if "multidds/mixture" in row]
    assert len(tables) == 3
    assert tables[0].columns == ["dataset", "prior", "before", "share", "reward", "noise", "passes"]
    assert {row[0]: row[3] for row in tables[-1].data} == mixtures(trainer)[12]
    assert list(tmp_path.glob("wandb/offline-run-*"))


class Recorder:
    """wandb, with what is logged written down."""

    def __init__(self, real, logged):
        self._real, self._logged = real, logged

    def __getattr__(self, name):
        return getattr(self._real, name)

    def log(self, row):
        self._logged.append(row)
        return self._real.log(row)


def test_weights_and_biases_get_a_table_from_lightning(tmp_path, offline):
    loader, callback = loader_and_callback(every=3)
    logger = WandbLogger(save_dir=tmp_path, offline=True, name="toy")
    lightning(tmp_path, callback, max_steps=7, logger=logger).fit(net(), loader)
    assert logger.experiment.summary["multidds/mixture"]["nrows"] == 3
    assert logger.experiment.summary["mixture/a"] == callback.mixture["a"]
    offline.finish()


# ------------------------------------------------------------------------------------------------------- the parts


def update():
    return Update(
        step=8, mixture={"a": 0.7, "b": 0.3}, rewards={"a": 0.1, "b": 0.2}, dev_losses={}, train_losses={}, weights={},
        alignment=None, seconds=0.1, before={"a": 0.5, "b": 0.5}, prior={"a": 0.6, "b": 0.4},
    )  # fmt: skip


def test_a_table_has_a_row_for_each_dataset_the_largest_first():
    columns, rows = table(update(), {"a": 2.0})
    assert [dict(zip(columns, row, strict=True)) for row in rows] == [
        {"dataset": "a", "prior": 0.6, "before": 0.5, "share": 0.7, "reward": 0.1, "noise": None, "passes": 2.0},
        {"dataset": "b", "prior": 0.4, "before": 0.5, "share": 0.3, "reward": 0.2, "noise": None, "passes": None},
    ]


def test_a_console_without_arrows_gets_the_line_in_its_own_letters(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    lines = []
    on_console(update(), lines.append)
    assert lines == ["step 8  a 50->70%  b 50->30%"]


def test_a_history_that_cannot_be_written_does_not_end_the_training(tmp_path, caplog):
    keep_history([update()], tmp_path / "missing" / "folder", {})
    assert "the history of the mixture is not written: [Errno 2]" in caplog.text


@pytest.mark.parametrize(("role", "kind"), [("train", "dataset"), ("dev", "dev set")])
def test_an_error_in_the_loss_keeps_its_type_and_names_the_data(role, kind):
    def loss(model, batch):
        if (batch[0] == 7).all():
            raise KeyError("labels")
        return loss_of(model, batch)

    data = {"train": batches(("a", "b"), 2), "dev": batches(("x", "y"), 2, seed=1)}
    name = {"train": "b", "dev": "y"}[role]
    data[role][name] = [[torch.full_like(part, 7) for part in batch] for batch in data[role][name]]
    balancer = Balancer(Mixture.uniform("ab"), mlp(), loss, every=1, **data)
    with pytest.raises(KeyError, match="labels") as caught:
        balancer.step()
    assert caught.value.__notes__ == [f"Balancer: raised by the loss of a probe batch of {kind} {name!r}."]
