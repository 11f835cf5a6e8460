"""Static runs of any trainer beside learned ones: their own evaluations say which is better."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader
from toy_lightning import DEV, QUIET, SIZES, TRAIN, Net, loader_and_callback
from toy_lightning import trainer as lightning
from toy_trainers import trainer_of
from updates import updates

from multidds import Balancer, Mixture, Update, interleave
from multidds.history import Moment, evaluations_of, moments_of, save_history
from multidds.report import Run, by_method, report
from multidds.report.comparison import compared
from multidds.report.run import find_runs, groups_of
from multidds.rules import RelevancePlan

pytestmark = QUIET


class Evaluated(Net):
    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        x, y = batch
        name = list(DEV)[dataloader_idx]
        self.log(f"val_loss/{name}", torch.nn.functional.cross_entropy(self.net(x), y), add_dataloader_idx=False)


def train_trainer(folder, learned):
    """A Hugging Face Trainer, which evaluates by itself."""
    settings = {"eval_strategy": "steps", "eval_steps": 7, "save_strategy": "steps", "save_steps": 14}
    every, options = (4, {"rule": RelevancePlan()}) if learned else (0, {})
    trainer_of(folder, every, settings=settings, **options)[0].train()


def train_lightning(folder, learned):
    loader, callback = loader_and_callback(every=4, callback={"rule": RelevancePlan()})
    logger = CSVLogger(folder.parent, name=folder.name)
    trainer = lightning(folder, *[callback] * learned, max_steps=14, logger=logger, val_check_interval=7)
    trainer.fit(Evaluated(), loader, [DataLoader(d, 9) for d in DEV.values()])


def train_loop(folder, learned):
    """A loop of one's own; its evaluations are a CSV file."""
    torch.manual_seed(0)
    model, mixture = torch.nn.Linear(4, 3).double(), Mixture.proportional(SIZES)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    def loss(model, batch):
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    loaders = {name: DataLoader(d, 4, shuffle=True) for name, d in TRAIN.items()}
    stream = interleave(loaders, mixture, seed=1)
    dev = {name: DataLoader(d, 9) for name, d in DEV.items()}
    probes = {name: DataLoader(d, 4, shuffle=True) for name, d in TRAIN.items()}
    balancer = Balancer(mixture, model, loss, train=probes, dev=dev, every=4) if learned else None
    folder.mkdir(parents=True)
    with (folder / "metrics.csv").open("w", newline="") as file:
        rows = csv.DictWriter(file, ["step", *(f"eval_loss/{name}" for name in DEV)])
        rows.writeheader()
        for step, (_, batch) in zip(range(1, 15), stream, strict=False):
            loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            if balancer is not None and balancer.step():
                save_history(balancer, folder, passes=stream.passes)
            if step % 7 == 0:
                losses = {f"eval_loss/{name}": loss(model, d[:]).item() for name, d in DEV.items()}
                rows.writerow({"step": step, **losses})


@pytest.mark.parametrize("train", [train_trainer, train_lightning, train_loop])
def test_the_first_sentence_says_whether_learning_is_better(train, tmp_path):
    for name in ("uniform", "learned"):
        train(tmp_path / name, learned=name == "learned")
    made = report([tmp_path], tmp_path / "out")
    found = {name: evaluations_of(*(tmp_path / name).glob("version_0")) if train is train_lightning
             else evaluations_of(tmp_path / name) for name in ("uniform", "learned")}  # fmt: skip
    assert [len(found["uniform"][name]) for name in "xy"] == [2, 2]
    means = {
        name: min((x + y) / 2 for (_, x), (_, y) in zip(losses["x"], losses["y"], strict=True))
        for name, losses in found.items()
    }
    change = means["learned"] / means["uniform"] - 1
    word = "level with" if abs(change) < 0.005 else "better than" if change < 0 else "worse than"
    match = re.match(
        r"learned(?:/version_0)? is (.*) uniform(?:/version_0)?: mean dev loss (\S+) against (\S+), (\S+)%",
        made.summaries[0],
    )
    assert (match[1], match[2], match[3]) == (word, f"{means['learned']:.3f}", f"{means['uniform']:.3f}")
    assert float(match[4]) == pytest.approx(abs(100 * change), abs=0.06)
    page = made.page.read_text(encoding="utf-8")
    for heading in ("Is it better?", "What the mixture did", "Which data helps which goal?", "Dev losses of all runs"):
        assert heading in page
    assert any(word in made.summaries[1] for word in ("moved", "updates in"))
    folder = tmp_path / "learned" / "version_0" if train is train_lightning else tmp_path / "learned"
    table = moments_of(folder)[-1].relevance  # in mixture.jsonl, whichever trainer wrote it
    assert {len(row) for row in table.values()} == {3}
    assert all(value <= 1 and error > 0 for row in table.values() for value, error in row.values())


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("eval_loss", "dev"),
        ("eval_my_topics_loss", "my_topics"),
        ("eval_loss/a b", "a b"),
        ("val_loss", "dev"),
        ("val_loss_epoch", "dev"),
        ("val/loss/dataloader_idx_1", "dataloader_idx_1"),
        ("valid_x_loss", "x"),
        ("val_loss_step", None),
        ("eval_runtime", None),
        ("loss", None),
        ("dev_loss/x", None),  # of the probes
    ],
)
def test_a_key_names_its_dev_set(tmp_path, key, name):
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": [{"step": 5, key: 1.5}]}))
    assert evaluations_of(tmp_path) == ({} if name is None else {name: [(5, 1.5)]})


def run(label, losses, weights=None, moved=False):
    moments = moments_of(updates("ab")) if moved else []
    evaluations = {name: [(10.0 * i, loss) for i, loss in enumerate(of, 1)] for name, of in losses.items()}
    return Run(label, Path(), moments, evaluations, weights or {})


def test_the_best_static_run_and_the_priority_decide():
    ours = run("learned", {"a": [2.0, 1.0, 3.0], "b": [1.0, 2.0, 3.0]}, {"a": 1.0, "b": 0.0}, moved=True)
    static = [
        run("uniform", {"a": [9.0, 9.0, 1.5], "b": [9.0, 9.0, 1.5]}),
        run("t5", {"a": [9.0, 9.0, 1.25], "b": [9.0] * 3, "c": [0.0] * 3}),
    ]
    (sentence,) = compared([ours, *static]).verdict()
    assert sentence.startswith("learned is better than t5: mean dev loss, weighted by the priority 1.000 against 1.250")
    ours.weights = {}
    (sentence,) = compared([*static, ours]).verdict()
    assert sentence.startswith("learned is level with uniform: mean dev loss 1.500 against 1.500")
    table = compared([ours, *static]).table("k")
    assert [cell.text for cell in table.rows[0].values()] == ["a", "2.0000", "1.5000", "1.2500"]
    assert [cell.number for cell in table.rows[-1].values()] == [None, 10, 30, 30]
    assert compared([ours]) is None
    assert compared(static).verdict() == []  # nothing was learned
    (sentence,) = compared([ours, run("other", {"z": [1.0]})]).verdict()
    assert sentence.startswith("other is not compared: its dev set is z, and not ")
    first, second = compared([ours, *static, run("other", {"z": [1.0]})]).verdict()
    assert (first.split()[0], second.split()[0]) == (ours.method, "other")


# ------------------------------------------------------------------------------------------ red sentences


def relevant(shares, table, passes=None, weights=None, count=4):
    """The run of a plain loop, at whose last updates the relevance was `table`."""
    made = [
        Update(step=10 * i, mixture=shares, rewards=dict.fromkeys(shares, 0.1), dev_losses={}, train_losses={},
               weights=weights or {}, alignment=None, seconds=0.1, prior=shares,
               relevance={d: {n: ((v if i > 2 else 1.0), 0.1) for n, v in row.items()} for d, row in table.items()})
        for i in range(1, count + 1)
    ]  # fmt: skip
    moments = moments_of(made)
    if passes:
        moments[-1].groups["passes"] = passes
    return Run("r", Path(), moments)


def test_a_dataset_that_is_learned_by_heart_is_named(tmp_path):
    table = {"x": {"a": 1.0, "b": 1.0}}
    (sentence,) = relevant({"a": 0.5, "b": 0.5}, table, {"a": 40.0, "b": 1.0}).warnings()
    assert sentence.startswith("a (40 times): after 16 passes")
    assert relevant({"a": 0.5, "b": 0.5}, table, {"a": 16.0, "b": 1.0}).warnings() == []
    assert relevant({"a": 0.9, "b": 0.1}, table, {"a": 40.0, "b": 40.0}).warnings() == []  # a long training, as given
    known = replace(relevant({"a": 0.5, "b": 0.5}, table, {"a": 40.0, "b": 1.0}), most_passes=41)
    assert known.warnings() == []
    names = [f"d{i}" for i in range(9)]
    shares = dict.fromkeys(names, 1 / 9)
    (sentence,) = relevant(
        shares, {"x": dict.fromkeys(names, 1.0)}, dict.fromkeys(names, 20.0) | {"d8": 0.1}
    ).warnings()
    assert sentence.startswith("d0 (20 times), d1 (20 times)")
    assert "d4 (20 times) and 3 more: " in sentence


def test_a_run_under_way_is_compared_at_its_own_step_and_others_are_left_out():
    moved = [Moment(9, {"mixture": {"a": 1.0}})]
    ours = Run("learned", Path(), moved, {"a": [(50, 3.0), (100, 2.5)]})
    theirs = Run("uniform", Path(), [], {"a": [(50, 3.1), (100, 2.6), (1000, 1.6)]})
    other = Run("other", Path(), [], {"z": [(100, 0.1)]})
    sentence, left_out = compared([ours, theirs, other]).verdict()
    assert left_out.startswith(f"{other.label} is not compared")
    assert "learned is better than uniform" in sentence
    assert "up to step 100" in sentence


def seeds(method, *losses, learned=False):
    moved = [Moment(9, {"mixture": {"a": 1.0}})] if learned else []
    return [Run(method, Path(), moved, {"a": [(10.0, loss)]}, seed=i) for i, loss in enumerate(losses, 1)]


def test_seeds_of_a_method_are_compared_by_their_mean():
    ours, lucky = seeds("learned", 1.0, 1.1, 1.2, learned=True), seeds("lucky", 0.5, 3.5, 3.5)
    steady = seeds("steady", 1.9, 1.8, 1.85)
    found = compared([*ours, *lucky, *steady])
    (sentence,) = found.verdict()
    assert sentence.startswith(
        "learned (3 seeds) is better than steady (3 seeds): mean dev loss 1.100 ± 0.248 against 1.850 ± 0.124, "
    )
    half = 2.78 * ((0.01 + 0.0025) / 2 * 2 / 3) ** 0.5
    assert f"{0.75 / 1.85:.1%} ± {half / 1.85:.1%} lower" in sentence
    table = found.table("k")
    assert [cell.number for cell in table.rows[0].values()] == pytest.approx([None, 1.1, 2.5, 1.85])
    assert [cell.number for cell in table.rows[2].values()] == pytest.approx([None, 0.248, 4.300, 0.124], abs=1e-3)
    assert found.tiles()[0][0] == "1.100 ± 0.248"


def test_a_difference_within_the_interval_of_the_seeds_is_level():
    ours, theirs = seeds("learned", 1.0, 1.2, 1.1, learned=True), seeds("uniform", 1.15, 1.3, 1.15)
    assert compared([*ours, *theirs]).verdict()[0].startswith("learned (3 seeds) is level with uniform (3 seeds)")
    assert compared([ours[0], theirs[0]]).verdict()[0].startswith("learned is better than uniform")  # one seed: unknown


def test_one_dev_set_under_two_names_is_compared():
    ours = Run("learned", Path(), [Moment(9, {"mixture": {"a": 1.0}})], {"a": [(10, 2.0), (20, 1.0)]})
    theirs = Run("uniform", Path(), [], {"dev": [(10, 2.5), (20, 2.0)]})
    first, second = compared([ours, theirs]).verdict()
    assert first.startswith("learned is better than uniform: mean dev loss 1.000 against 2.000")
    assert second == "uniform calls its dev set dev and not a: they are compared as the same data."
    other = Run("uniform", Path(), [], {"dev": [(20, 2.0)]})  # evaluated less often: who knows
    assert "uniform is not compared" in compared([ours, other]).verdict()[0]
    assert [len(members) for _, members in groups_of([ours, theirs])] == [2]
    assert [len(members) for _, members in groups_of([ours, other])] == [1, 1]


def test_a_run_without_an_update_and_one_that_watches_are_not_learned():
    start = Moment(0, {"mixture": {"a": 0.5, "b": 0.5}}, prior={"a": 0.9, "b": 0.1})
    watched = Moment(9, {"mixture": {"a": 0.9, "b": 0.1}, "proposed": {"a": 0.2, "b": 0.8}}, prior=start.prior)
    losses = {"a": [(10.0, 1.0)]}
    planned, watch = Run("learned", Path(), [start], losses), Run("w", Path(), [watched], losses)
    assert (planned.label, planned.learned, watch.learned) == ("learned (planned)", False, False)
    assert planned.sentence() == "learned (planned): planned, no update yet: nothing is learned, 10 steps."
    assert watch.sentence() == "w: watched by 1 update in 9 steps; it would have learned b 10% → 80%, a 90% → 20%."
    ours, theirs = compared([watch, planned]).both
    assert (ours.label, theirs.label) == ("learned (planned)", "w")


# -------------------------------------------------------------------------------------------------- seeds by folder


def evaluated(folder):
    folder.mkdir(parents=True)
    (folder / "metrics.csv").write_text("step,eval_loss/a\n10,1.5\n")


@pytest.mark.parametrize(
    ("folders", "methods"),
    [
        (["learned/seed-1", "learned/seed-2", "uniform/seed-1"], {"learned": [1, 2], "uniform": [1]}),
        (["seed-1/learned", "seed-2/learned"], {"learned": [1, 2]}),
        (["learned-1", "learned-2", "learned-3", "uniform-1", "uniform-2"], {"learned": [1, 2, 3], "uniform": [1, 2]}),
        (["learned_seed7", "learned_seed9"], {"learned": [7, 9]}),
        (["learned-0/version_0", "learned-1/version_0"], {"learned/version_0": [0, 1]}),
        (["a/version_0", "a/version_1"], {"a/version_0": [1], "a/version_1": [1]}),
        (["temperature-1", "temperature-5"], {"temperature-1": [1], "temperature-5": [1]}),
        (["run-1"], {"run-1": [1]}),
    ],
)
def test_seeds_of_any_trainer_are_found_by_their_folders(tmp_path, folders, methods):
    for folder in folders:
        evaluated(tmp_path / folder)
    ((_, members),) = groups_of(find_runs([tmp_path]))
    assert {method: [run.seed for run in of] for method, of in by_method(members).items()} == methods


def test_all_runs_are_named_and_those_without_an_evaluation(tmp_path):
    for name in ("uniform-1", "uniform-2", *(f"fixed{letter}" for letter in "abcde")):
        evaluated(tmp_path / name)
    save_history(updates("ab"), tmp_path / "learned")  # without an evaluation
    evaluated(tmp_path / "young")
    (tmp_path / "young" / "metrics.csv").write_text("step,eval_loss/a\n")
    printed = report([tmp_path], tmp_path / "out").summaries
    named = "fixeda, fixedb, fixedc, fixedd, fixede, uniform (seeds 1, 2)"
    assert any(named in sentence and "first is drawn" in sentence for sentence in printed)
    assert any("young" in sentence and "Left out" in sentence for sentence in printed)
    evaluated(tmp_path / "a" / "uniform")
    save_history(updates("ab"), tmp_path / "a" / "learned")
    (tmp_path / "a" / "learned" / "metrics.csv").write_text("step,eval_loss/a\n10,1.0\n")
    save_history(updates("ab"), tmp_path / "a" / "late")
    assert "Without an evaluation yet: late." in report([tmp_path / "a"], tmp_path / "b").summaries
