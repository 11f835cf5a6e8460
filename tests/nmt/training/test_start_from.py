"""`[train] start_from`: a training that starts from the weights, the vocabulary and the mixture of an earlier run."""

import re
import shutil

import pytest
import torch
from conftest import ROOT, multidds
from made_runs import read_lines, updates_of
from toy_runs import SMALL, Silent, Stopping, same_runs
from toy_text import write_with_loud

from multidds import Mixture
from multidds.nmt.batches.batch import evaluation_batches
from multidds.nmt.config.config import load_config
from multidds.nmt.prepare import prepare
from multidds.nmt.prepare.vocabulary import load_vocabulary
from multidds.nmt.training.schedule import planned_sentences
from multidds.nmt.training.train import Training, train

SECTION = "Fine-tuning in the translation application"
OLD, GROWN = "mirror-base shift-base", "shift-base loud-base"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    write_with_loud(folder / "data" / "made-up")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train(recipe(OLD, "old", "train.average=4", "mixture.method=multidds-s"), folder / "runs" / "old", Silent())
    return folder


@pytest.fixture(autouse=True)
def here(text, monkeypatch):
    monkeypatch.chdir(text)


def overrides(pairs, folder, *more):
    listed = ", ".join(f'"{pair}"' for pair in pairs.split())
    sets = [f"data.pairs=[{listed}]", f"data.folder=data/{folder}", "vocabulary.size=60"]
    return [*SMALL, "train.validate_every=5", *sets, *more]


def recipe(pairs, folder, *more):
    config = load_config(ROOT / "recipes" / "tiny.toml", overrides(pairs, folder, *more))
    prepare(config, processes=1)
    return config


def fine_tuned(pairs, folder, *more):
    return recipe(pairs, folder, "train.start_from=runs/old", *more)


def best_validation(run):
    return [record for record in read_lines(run) if record["kind"] == "validation" and record["best"]][-1]


@pytest.mark.claim(SECTION, "with the same vocabulary, a fine-tuned run starts at the earlier run's dev losses")
@pytest.mark.parametrize("average", [0, 4])
def test_a_fine_tuned_run_starts_at_the_best_dev_losses_of_the_earlier_one(text, tmp_path, average):
    train(fine_tuned(OLD, "same", f"train.average={average}"), tmp_path / "run", Silent())
    start, first = read_lines(tmp_path / "run")[:2]
    assert (start["kind"], first["kind"], first["step"], first["best"]) == ("start", "validation", 0, True)
    assert first["dev_loss"] == pytest.approx(best_validation(text / "runs" / "old")["dev_loss"], abs=1e-6)


@pytest.mark.claim(SECTION, "if the vocabulary grows, the dev losses are the same with the new rows masked")
def test_with_new_tokens_masked_the_dev_losses_are_those_of_the_earlier_run(text, tmp_path):
    places = [f"data.{split}=data/made-up/{{many}}-base/{split}.{{lang}}" for split in ("train", "dev", "test")]
    train(recipe("base-mirror base-shift", "o2m", *places), text / "runs" / "o2m", Silent())
    config = recipe("base-mirror base-shift base-loud", "o2m-grown", *places, "train.start_from=runs/o2m")
    run = Training(config, tmp_path / "run")
    run.close()
    earlier = load_vocabulary(text / "runs" / "o2m" / "vocabulary")
    known = len(earlier["target"])
    assert len(run.vocabulary["target"]) > known
    assert len(run.vocabulary["source"]) > len(earlier["source"])
    expected = best_validation(text / "runs" / "o2m")["dev_loss"]
    run.model.eval()
    for name in ("base-mirror", "base-shift"):
        total, tokens = 0.0, 0
        for batch in evaluation_batches(run.dev[name], 200):
            with torch.no_grad():
                logits = run.model.logits(batch)
                total += torch.nn.functional.cross_entropy(logits[:, :known], batch.target_out, reduction="sum").item()
            tokens += batch.tokens
        assert total / tokens == pytest.approx(expected[name], abs=1e-6)


@pytest.mark.claim(SECTION, "new datasets get the share of the plan, the others keep their learned proportions")
def test_new_datasets_get_the_share_of_the_plan(text, tmp_path):
    config = fine_tuned(GROWN, "grown")
    run = Training(config, tmp_path / "run")
    run.close()
    sizes = {name: len(sentences) for name, sentences in run.data.items()}
    plan = Mixture.planned(sizes, planned_sentences(config, run.data))
    assert run.mixture["loud-base"] == pytest.approx(plan["loud-base"])
    three = fine_tuned("mirror-base shift-base loud-base", "three")
    run = Training(three, tmp_path / "three")
    run.close()
    learned = updates_of(text / "runs" / "old")[-1]["mixture"]
    ratio = learned["mirror-base"] / learned["shift-base"]
    assert run.mixture["mirror-base"] / run.mixture["shift-base"] == pytest.approx(ratio)
    assert ratio != pytest.approx(1)
    for prior, share in (("uniform", 1 / 3), ("proportional", 300 / 900)):
        run = Training(
            fine_tuned("mirror-base shift-base loud-base", "three", f"mixture.prior={prior}"), tmp_path / prior
        )
        run.close()
        assert run.mixture["loud-base"] == pytest.approx(share)


@pytest.mark.claim(SECTION, "it resumes exactly, also when the earlier run is gone")
def test_a_fine_tuned_run_resumes_exactly_without_the_earlier_one(text, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    config = fine_tuned(GROWN, "grown")
    train(config, whole, Silent())
    train(config, cut, Stopping(after=7))
    shutil.move("runs/old", "runs/gone")
    try:
        train(config, cut, Silent())
    finally:
        shutil.move("runs/gone", "runs/old")
    same_runs(whole, cut)


def damage(run):
    content = bytearray((run / "best.safetensors").read_bytes())
    content[-5] ^= 1
    (run / "best.safetensors").write_bytes(content)


@pytest.mark.claim(SECTION, "another width, a missing run, a damaged model: one line that names both values")
@pytest.mark.parametrize(
    ("change", "more", "message"),
    [
        (None, ["model.width=32"], r"start_from = 'runs/copy'.*width = 16.*32"),
        (None, ["model.norm=layer"], r"start_from = 'runs/copy'.*norm = 'scale'.*'layer'"),
        (shutil.rmtree, [], r"start_from = 'runs/copy'.*runs/copy: is not a run"),
        (damage, [], r"start_from = 'runs/copy'.*best\.safetensors: is damaged"),
    ],
)
@pytest.mark.slow
def test_what_cannot_be_started_from_is_one_line(text, tmp_path, change, more, message):
    shutil.copytree("runs/old", "runs/copy", dirs_exist_ok=True)
    sets = overrides(OLD, "copy", "train.start_from=runs/copy", *more)
    prepare(load_config(ROOT / "recipes" / "tiny.toml", sets), processes=1)
    if change is not None:
        change(text / "runs" / "copy")
    options = [part for override in sets for part in ("--set", override)]
    done = multidds("train", ROOT / "recipes" / "tiny.toml", "--run", tmp_path / "run", *options, cwd=text, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert re.search(message, done.stderr), done.stderr
    assert not (tmp_path / "run").exists()
