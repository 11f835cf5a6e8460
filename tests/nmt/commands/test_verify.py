"""Damaged files, second writers and full disks, as the commands meet them; `multidds verify`."""

import contextlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from conftest import ROOT, multidds
from made_runs import flipped, report
from toy_runs import Silent, small_config

from multidds._base.errors import DamagedError, UserError
from multidds._base.files import locked
from multidds.nmt.commands.verify import verify
from multidds.nmt.common.checksummed import write_checksummed
from multidds.nmt.evaluation.evaluate import evaluate
from multidds.nmt.evaluation.export import read_export
from multidds.nmt.evaluation.translate import Translator
from multidds.nmt.prepare import prepare
from multidds.nmt.runs import checkpoints
from multidds.nmt.training.train import train


@pytest.fixture(scope="module")
def evaluated(corpus, tmp_path_factory):
    """A small run that was trained and evaluated, and its config."""
    with pytest.MonkeyPatch.context() as patch:
        config = small_config(corpus, patch, "translate.beam=1", "train.keep=3")
        run = tmp_path_factory.mktemp("evaluated") / "run"
        train(config, run, Silent())
        evaluate(run, threads=1)
    return run, config


@pytest.fixture
def run(evaluated, corpus, tmp_path, monkeypatch):
    """A copy of it, from where its data is."""
    monkeypatch.chdir(corpus)
    return shutil.copytree(evaluated[0], tmp_path / "run")


def test_a_damaged_best_model_is_trained_again(evaluated, run):
    before = checkpoints.read(run / "best.safetensors")[0]
    flipped(run / "best.safetensors", -5)
    with pytest.raises(DamagedError, match="best.safetensors: is damaged"):
        checkpoints.read(run / "best.safetensors")
    show = Silent()
    train(evaluated[1], run, show)
    assert re.search(r"best.safetensors: is damaged .* Going on from step-00000008.safetensors\.$", show.lines[0])
    after = checkpoints.read(run / "best.safetensors")[0]
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_a_damaged_export_is_made_again_and_says_so(run):
    notices = []
    flipped(run / "export" / "model.bin", 1000)
    with pytest.raises(DamagedError, match=r"model.bin: is damaged"):
        read_export(run / "export")
    Translator(run, threads=1, notice=notices.append)
    assert [re.search(r"model\.bin: is damaged .* Making it again\.$", notice) is not None for notice in notices] == [
        True
    ]
    read_export(run / "export")


@pytest.mark.parametrize("file", ["scores.json", "hypotheses/mirror-base.txt", "references/shift-base.txt"])
def test_damaged_scores_are_refused_by_a_report_and_made_again(run, tmp_path, file):
    before = (run / "scores.json").read_bytes()
    flipped(run / file, 7)
    other = shutil.copytree(run, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    del config["checksum"]
    config["config"]["mixture"] |= {"method": "static", "prior": "uniform"}
    write_checksummed(other / "config.json", config)
    with pytest.raises(DamagedError, match=rf"{Path(file).name}: is damaged .* run 'multidds evaluate' again"):
        report([run, other], tmp_path / "report")
    notices = []
    evaluate(run, threads=1, notice=notices.append)
    assert [notice.endswith("run 'multidds evaluate' again. Doing so now.") for notice in notices] == [True]
    assert (run / "scores.json").read_bytes() == before
    evaluate(run, threads=1, notice=notices.append)
    assert len(notices) == 1


def test_verify_reads_everything_and_names_what_is_damaged(run, corpus):
    done = multidds("verify", run, cwd=corpus)
    kinds = ("config", "records", "mixture", "vocabulary", "checkpoints", "scores", "best model", "export")
    assert [line.split(": ")[1] for line in done.stdout.splitlines()[:-1]] == list(kinds)
    assert done.stdout.endswith("Everything is whole.\n")
    flipped(run / "vocabulary" / "base.spm.model", 99)
    (run / "references" / "mirror-base.txt").unlink()
    flipped(checkpoints.listed(run)[0], 99)
    done = multidds("verify", run.parent, cwd=corpus, check=False)
    assert done.returncode == 1
    assert re.search(r"checkpoints: 2 whole, 1 damaged\n  .*step-00000004.safetensors: is damaged", done.stdout)
    assert "base.spm.model: is damaged (its checksum does not fit); copy it from the prepared data." in done.stdout
    assert "mirror-base.txt: is missing; run 'multidds evaluate' again." in done.stdout
    assert done.stdout.endswith("damaged: 3\n")
    assert multidds("verify", run / "nothing", cwd=corpus, check=False).stderr.endswith("there is no such folder.\n")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_verify_goes_on_opens_no_pipes_and_names_loops(run, corpus):
    special = [
        "scores.json",
        "best.safetensors",
        "records.jsonl",
        "mixture.jsonl",
        "hypotheses/mirror-base.txt",
        "export/model.bin",
    ]
    for name in special:
        (run / name).unlink()
    os.mkfifo(run / "best.safetensors")
    os.mkfifo(run / "records.jsonl")
    os.mkfifo(run / "mixture.jsonl")
    os.mkfifo(run / "export" / "model.bin")
    (run / "scores.json").symlink_to("scores.json")
    write_checksummed(run / "vocabulary" / "vocabulary.json", {"other": 1})
    (run.parent / "a").symlink_to("b")
    (run.parent / "b").symlink_to("a")
    (run.parent / "c").mkdir()
    (run.parent / "c" / "up").symlink_to("..")
    done = multidds("verify", run.parent, cwd=corpus, check=False, timeout=60)
    assert done.returncode == 1, done.stderr
    assert "checkpoints: 3 whole" in done.stdout
    for name in ("best.safetensors", "records.jsonl", "mixture.jsonl", "model.bin"):
        assert re.search(rf"{name}: is not a regular file", done.stdout), name
    assert re.search(r"scores.json: cannot be read: .*symbolic links", done.stdout)
    assert re.search(r"vocabulary.json: is of another run", done.stdout)
    for name in ("a", "b", "c/up"):
        assert f"{run.parent / name}: is a link that leads back to itself" in done.stdout
    assert done.stdout.endswith("damaged: 9\n")


def test_verify_knows_prepared_data(evaluated, corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(corpus)
    prepare(evaluated[1], processes=1)
    shutil.copytree(evaluated[1].data.folder, tmp_path / "data" / "prepared")
    (found,) = verify(tmp_path / "data")
    assert (found.folder.name, found.whole, found.damage) == ("prepared", {"prepared data": 11}, {})
    flipped(tmp_path / "data" / "prepared" / "manifest.json", 3)
    (found,) = verify(tmp_path / "data")
    assert "manifest.json: is damaged" in found.damage["prepared data"][0]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no run and no prepared data"):
        verify(tmp_path / "empty")


def test_every_command_that_writes_refuses_to_be_the_second(run, evaluated, corpus, tmp_path, monkeypatch):
    (run / "scores.json").unlink()
    with locked(run / "scores.lock", "x"), pytest.raises(UserError, match="run: is being evaluated by another process"):
        evaluate(run, threads=1)
    shutil.rmtree(run / "export")
    with locked(run / "export.lock", "x"), pytest.raises(UserError, match="run: is being exported by another process"):
        evaluate(run, threads=1)
    with locked(tmp_path / "report.lock", "x"), pytest.raises(UserError, match="another process is writing a report"):
        report([run], tmp_path)
    experiment = tmp_path / "e.toml"
    experiment.write_text(
        f'folder = "{tmp_path}"\nevaluate = false\n[settings.s]\nrecipe = "{ROOT}/recipes/tiny.toml"\n[methods.m]\n'
        '[[blocks]]\nname = "b"\nsettings = ["s"]\nmethods = ["m"]\nseeds = [1]\n'
    )
    with locked(tmp_path / "experiment.lock", "x"):
        done = multidds("experiment", experiment, cwd=corpus, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "another process is at work on the experiment there" in done.stderr


@contextlib.contextmanager
def small_disk(folder, size):
    folder.mkdir()
    try:
        options = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        subprocess.run(options, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no disk can be mounted here: {error}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_stops_a_training_that_goes_on_when_there_is_room(evaluated, corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(corpus)
    config, whole = evaluated[1], evaluated[0]
    later = ("export", "scores.json", "hypotheses", "references")
    files = [path for path in whole.rglob("*") if path.is_file() and path.relative_to(whole).parts[0] not in later]
    pages = sum(path.stat().st_size // 4096 + 1 for path in files)
    size = 4096 * pages - checkpoints.listed(whole)[-1].stat().st_size // 2
    with small_disk(tmp_path / "disk", size):
        run = tmp_path / "disk" / "run"
        with pytest.raises((UserError, OSError), match="No space left|StorageFull|os error 28"):
            train(config, run, Silent())
        assert checkpoints.newest(run).state["progress"]["step"] == 8
        assert not list(run.rglob("*.partial"))
        subprocess.run(["mount", "-o", "remount,size=100m", str(tmp_path / "disk")], check=True)
        assert train(config, run, Silent()).finished
        tensors = [checkpoints.read(checkpoints.listed(folder)[-1])[0] for folder in (run, whole)]
        assert all(torch.equal(tensor, tensors[1][name]) for name, tensor in tensors[0].items())


def test_a_full_disk_is_one_line_for_prepare(corpus, tmp_path):
    with small_disk(tmp_path / "disk", 200_000):
        overrides = ("--processes", "1", "--set", f"data.folder={tmp_path}/disk/out")
        done = multidds("prepare", ROOT / "recipes" / "tiny.toml", *overrides, cwd=corpus, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert re.search(r"^multidds: \S*/disk/out\S*: No space left on device$", done.stderr.strip())
        assert [path.name for path in (tmp_path / "disk").iterdir()] == ["out.partial"]  # to go on with
        subprocess.run(["mount", "-o", "remount,size=10m", str(tmp_path / "disk")], check=True)
        multidds("prepare", ROOT / "recipes" / "tiny.toml", *overrides, cwd=corpus)
        assert [path.name for path in (tmp_path / "disk").iterdir()] == ["out"]
