"""Updates in the loggers and on the consoles of trainers: all numbers in the loggers, one line on the console."""

import io
import os
import re
import sys

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from toy_lightning import QUIET, TRAIN, loader_and_callback, net
from toy_lightning import trainer as lightning
from toy_trainers import SIZES, mixtures, streams, train_sets, trainer_of
from transformers import PrinterCallback
from transformers.integrations import WandbCallback

from multidds import Budget, Mixture, Update
from multidds.history import moments_of
from multidds.history.loggers import keep_history, on_console, table
from multidds.integrations.lightning import BalanceCallback, mixed_loader
from multidds.rules import RelevancePlan, paper

pytestmark = QUIET
LINE = re.compile(r"^step (\d+)  ((\w \d+→\d+%  )*\w \d+→\d+%|unchanged: .*)$", re.MULTILINE)


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """Weights & Biases without network."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    return pytest.importorskip("wandb")


@pytest.mark.parametrize("bar", [False, True])
def test_trainer_prints_a_line_for_an_update_and_none_of_its_numbers(bar, tmp_path, capsys):
    trainer, _ = trainer_of(tmp_path, every=4, settings={"logging_steps": 2, "disable_tqdm": not bar})
    trainer.train()
    printed = capsys.readouterr().out
    assert [int(step) for step, *_ in LINE.findall(printed)] == [4, 8, 12]
    assert "mixture/" not in printed
    assert printed.count("'loss'") == 7  # the Trainer's own lines are all there
    assert len(mixtures(trainer)) == 3


def test_trainer_without_a_console_prints_nothing(tmp_path, capsys):
    trainer, _ = trainer_of(tmp_path, every=4)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    assert "step 4" not in capsys.readouterr().out


STARTED = r"plan: \w \d+% \(.* passes\), \w \d+%, \w \d+% · 3 updates, about \d+% of the time · "


@pytest.mark.parametrize("bar", [False, True])
def test_trainer_begins_with_the_start_line(bar, tmp_path, capsys, caplog):
    settings = {"disable_tqdm": not bar, "save_strategy": "steps"}
    trainer, _ = trainer_of(tmp_path, every=4, rule=RelevancePlan(), settings=settings)
    trainer.train()
    first, *others = capsys.readouterr().out.splitlines()
    assert re.match(STARTED, first)
    assert f"mixture.jsonl in {tmp_path}; multidds report {tmp_path}" in first
    assert not any("plan: " in line for line in others)
    assert re.fullmatch(r".*14 steps have 3 updates, too few to learn from; .*\n", caplog.text)
    assert "mixture.jsonl" in os.listdir(tmp_path)


def test_trainer_logs_a_start_that_needs_a_setting_or_has_no_console(tmp_path, capsys, caplog):
    trainer, _ = trainer_of(tmp_path, every=Budget(), rule=RelevancePlan())
    trainer.train()
    assert "14 steps have 0 updates" in caplog.text
    assert "no update, so nothing is learned" in capsys.readouterr().out
    trainer, _ = trainer_of(tmp_path, every=4, rule=RelevancePlan())
    trainer.remove_callback(PrinterCallback)
    with caplog.at_level("INFO", logger="multidds"):
        trainer.train()
    assert re.search(STARTED, caplog.text)
    assert "Trainer's log" in caplog.text
    assert "plan: " not in capsys.readouterr().out


@pytest.mark.parametrize("rule", [RelevancePlan(), paper()])
def test_trainer_says_where_a_resumed_training_is(rule, tmp_path, capsys):
    settings = {"save_strategy": "steps", "save_steps": 6}
    trainer_of(tmp_path, every=4, rule=rule, settings=settings)[0].train()
    capsys.readouterr()
    trainer, _ = trainer_of(tmp_path, every=4, rule=rule, settings=settings)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    first, *others = capsys.readouterr().out.splitlines()
    share = max(mixtures(trainer)[4].values())
    assert re.fullmatch(rf"resumed at step 6; \w {100 * share:.0f}%, .*; 2 updates to come", first)
    assert not any("resumed" in line for line in others)


def test_trainer_says_that_streams_have_no_sizes(tmp_path, caplog):
    data = streams()
    mixed = {"data": data, "settings": {"max_steps": 2}}
    trainer, callback = trainer_of(tmp_path, every=4, rule=RelevancePlan(), **mixed)
    callback.mixture.sizes = None
    trainer.train()
    assert "no plan, because sizes (of the mixture) are not known" in caplog.text


def test_trainer_says_that_a_dev_set_is_a_training_set(tmp_path, caplog):
    data = train_sets()
    trainer_of(tmp_path, data=data, eval_dataset=data["b"], settings={"max_steps": 1})[0].train()
    assert "dev set 'dev' and the dataset 'b' are the same data" in caplog.text


@pytest.mark.parametrize("kept", [True, False])
def test_lightning_begins_with_the_start_line(kept, tmp_path, caplog):
    loader, callback = loader_and_callback(every=3, callback={"rule": RelevancePlan()})
    logger = CSVLogger(tmp_path, name="csv") if kept else False
    with caplog.at_level("INFO", logger="lightning.pytorch"):
        lightning(tmp_path, callback, max_steps=7, logger=logger).fit(net(), loader)
    (line,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("plan: ")]
    assert "% · 2 updates, about " in line
    folder = tmp_path / "csv" / "version_0"
    assert (f"mixture.jsonl in {folder}; multidds report {folder}" in line) == kept
    assert ("callback.balancer.history" in line) != kept
    assert (folder / "mixture.jsonl").is_file() == kept


@pytest.mark.parametrize("rule", [RelevancePlan(), paper()])
def test_lightning_says_where_a_resumed_training_is(rule, tmp_path, caplog):
    def run(ckpt_path=None):
        loader, callback = loader_and_callback(every=3, callback={"rule": rule})
        saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=4)
        lightning(tmp_path, callback, saver, max_steps=7).fit(net(), loader, ckpt_path=ckpt_path)
        return callback

    with caplog.at_level("INFO", logger="lightning.pytorch"):
        run()
        caplog.clear()
        callback = run(tmp_path / "step=4.ckpt")
    lines = [record.getMessage() for record in caplog.records]
    (line,) = [line for line in lines if line.startswith(("plan: ", "mixture: ", "resumed"))]
    assert re.fullmatch(r"resumed at step 4; \w \d+%, .*; 1 update to come", line)
    assert [update.step for update in callback.balancer.history] == [6]


def test_lightning_takes_one_dev_set_and_says_that_it_is_a_training_set(tmp_path, caplog):
    mixture = Mixture.proportional({name: len(d) for name, d in TRAIN.items()})
    loader = mixed_loader(TRAIN, mixture, 4)
    callback = BalanceCallback(mixture, TRAIN["b"], every=1)
    lightning(tmp_path, callback, max_steps=1).fit(net(), loader)
    assert "dev set 'dev' and the dataset 'b' are the same data" in caplog.text
    assert list(callback.balancer.history[0].dev_losses) == ["dev"]
    assert callback.balancer.start.keys() == TRAIN.keys()


def charts(folder):
    """{chart: its patterns} of the custom layout in an event file, and the tags of its numbers."""
    (file,) = list(folder.rglob("*tfevents*"))
    events = EventAccumulator(str(file)).Reload()
    layout = layout_pb2.Layout()
    layout.ParseFromString(events.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0])
    (category,) = layout.category
    return {chart.title: list(chart.multiline.tag) for chart in category.chart}, events.Tags()["scalars"]


def test_tensorboard_has_the_mixture_as_one_chart(tmp_path):
    trainer, _ = trainer_of(tmp_path, every=4, settings={"report_to": ["tensorboard"]})
    trainer.train()
    patterns, tags = charts(tmp_path)
    for group, chart in (("mixture", "mixture"), ("reward", "rewards")):
        matching = [tag for tag in tags if re.fullmatch(patterns[chart][0], tag)]
        assert sorted(matching) == [f"train/{group}/{name}" for name in SIZES]


def test_lightning_logs_the_same_numbers(tmp_path, caplog):
    loader, callback = loader_and_callback(every=3)
    loggers = [TensorBoardLogger(tmp_path, name="tb"), CSVLogger(tmp_path, name="csv")]
    with caplog.at_level("INFO", logger="lightning.pytorch"):  # which an example run in this process has made silent
        lightning(tmp_path, callback, max_steps=7, logger=loggers).fit(net(), loader)
    lines = [match for record in caplog.records if (match := LINE.match(record.getMessage()))]
    assert [int(line[1]) for line in lines] == [3, 6]
    patterns, tags = charts(tmp_path / "tb")
    assert [tag for tag in tags if re.fullmatch(patterns["mixture"][0], tag)] == [f"mixture/{name}" for name in SIZES]
    moments = moments_of(tmp_path / "tb")  # mixture.jsonl, in the folder of the first logger
    assert [moment.step for moment in moments] == [0, 3, 6]
    assert [moment.step for moment in moments_of(tmp_path / "csv")] == [3, 6]
    assert moments[-1].mixture == moments_of(tmp_path / "csv")[-1].mixture == callback.mixture.probabilities


def test_output_folder_of_a_trainer_has_the_whole_history(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 7}
    for steps, resume in ((10, None), (14, True)):  # the update of step 8 is made again
        trainer, callback = trainer_of(tmp_path, every=4, settings=settings | {"max_steps": steps})
        trainer.train(resume_from_checkpoint=resume and str(tmp_path / "checkpoint-7"))
    moments = moments_of(tmp_path)
    assert [moment.step for moment in moments] == [0, 4, 8, 12]
    assert moments[0].mixture == pytest.approx(Mixture.proportional(SIZES).probabilities)
    assert moments[-1].mixture == callback.mixture.probabilities
    assert moments[-1].groups["passes"].keys() == SIZES.keys()
    start, *later = moments_of(tmp_path / "checkpoint-14")  # the Trainer's own log
    assert (start.step, start.mixture, start.prior) == (0, moments[0].mixture, moments[0].mixture)
    assert [moment.step for moment in later] == [4, 8, 12]


class Recorder:
    """wandb, with a record of what is logged."""

    def __init__(self, real, logged):
        self._real, self._logged = real, logged

    def __getattr__(self, name):
        return getattr(self._real, name)

    def log(self, row):
        self._logged.append(row)
        return self._real.log(row)


def test_weights_and_biases_get_a_table_from_the_trainer(tmp_path, offline):
    trainer, _ = trainer_of(tmp_path, every=4, settings={"report_to": ["wandb"], "run_name": "toy"})
    logged = []
    (callback,) = [one for one in trainer.callback_handler.callbacks if isinstance(one, WandbCallback)]
    callback._wandb = Recorder(callback._wandb, logged)
    trainer.train()
    offline.finish()
    tables = [row["multidds/mixture"] for row in logged if "multidds/mixture" in row]
    assert len(tables) == 3
    assert tables[0].columns == ["dataset", "prior", "before", "share", "reward", "noise", "passes"]
    assert {row[0]: row[3] for row in tables[-1].data} == mixtures(trainer)[12]
    assert list(tmp_path.glob("wandb/offline-run-*"))


def test_weights_and_biases_get_a_table_from_lightning(tmp_path, offline):
    loader, callback = loader_and_callback(every=3)
    logger = WandbLogger(save_dir=tmp_path, offline=True, name="toy")
    lightning(tmp_path, callback, max_steps=7, logger=logger).fit(net(), loader)
    assert logger.experiment.summary["multidds/mixture"]["nrows"] == 3
    assert logger.experiment.summary["mixture/a"] == callback.mixture["a"]
    offline.finish()


UPDATE = Update(
    step=8,
    mixture={"a": 0.7, "b": 0.3},
    rewards={"a": 0.1, "b": 0.2},
    dev_losses={},
    train_losses={},
    weights={},
    alignment=None,
    seconds=0.1,
    before={"a": 0.5, "b": 0.5},
    prior={"a": 0.6, "b": 0.4},
)


def test_table_has_a_row_for_each_dataset_the_largest_first():
    columns, rows = table(UPDATE, {"a": 2.0})
    assert [dict(zip(columns, row, strict=True)) for row in rows] == [
        {"dataset": "a", "prior": 0.6, "before": 0.5, "share": 0.7, "reward": 0.1, "noise": None, "passes": 2.0},
        {"dataset": "b", "prior": 0.4, "before": 0.5, "share": 0.3, "reward": 0.2, "noise": None, "passes": None},
    ]


def test_console_without_arrows_gets_the_line_in_its_own_letters(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    lines = []
    on_console(UPDATE, lines.append)
    assert lines == ["step 8  a 50->70%  b 50->30%"]


def test_history_that_cannot_be_written_does_not_end_the_training(tmp_path, caplog):
    (tmp_path / "file").touch()
    keep_history([UPDATE], tmp_path / "file" / "folder", {})
    assert "[Errno 20]" in caplog.text
