"""Every file of a run carries its identity; a file of another run is refused wherever it is read."""

import shutil

import pytest
from conftest import multidds
from made_runs import read_checksummed_json, report
from toy_runs import Silent, small_config

from multidds._base.errors import DamagedError, UserError
from multidds.nmt.commands.verify import verify
from multidds.nmt.common.checksummed import write_checksummed
from multidds.nmt.config.config import read_run
from multidds.nmt.evaluation.evaluate import evaluate
from multidds.nmt.evaluation.scores import read_scores
from multidds.nmt.evaluation.translate import Translator
from multidds.nmt.runs import checkpoints
from multidds.nmt.runs.identity import identity_of
from multidds.nmt.training.train import train

TINY = ("translate.beam=1", "train.keep=3", "train.max_steps=8", "train.validate_every=4")


@pytest.fixture(scope="module")
def made(corpus, tmp_path_factory):
    """Runs with seeds 1, 1 and 2, trained and evaluated, and the config of the first."""
    folder, configs = tmp_path_factory.mktemp("made"), {}
    with pytest.MonkeyPatch.context() as patch:
        for name, seed in (("one", 1), ("again", 1), ("two", 2)):
            configs[name] = small_config(corpus, patch, *TINY, f"train.seed={seed}", f"train.save_every={3 + seed}")
            train(configs[name], folder / name, Silent())
            evaluate(folder / name, threads=1)
    return folder, configs["one"]


@pytest.fixture
def run(made, corpus, tmp_path, monkeypatch):
    """A copy of the first run, from where its data is."""
    monkeypatch.chdir(corpus)
    return shutil.copytree(made[0] / "one", tmp_path / "run")


def swap(made, run, *names):
    """Replaces files of a run by those of the other seed."""
    for name in names:
        source = made[0] / "two" / name
        if source.is_dir():
            shutil.rmtree(run / name)
            shutil.copytree(source, run / name)
        else:
            shutil.copy(source, run / name)


def test_equal_runs_have_equal_identities_and_equal_bytes(made):
    one, again, two = (made[0] / name for name in ("one", "again", "two"))
    assert identity_of(one) == identity_of(again) != identity_of(two)
    assert identity_of(two).startswith("learned, seed 2, ")
    best = [(run / "best.safetensors").read_bytes() for run in (one, again, two)]
    assert best[0] == best[1] != best[2]
    (again / "config.json").replace(again / "kept.json")
    assert identity_of(again) is None
    (again / "kept.json").replace(again / "config.json")


@pytest.mark.parametrize(
    ("names", "damaged"),
    [
        (["best.safetensors"], "best.safetensors"),
        (["checkpoints"], "step-00000008.safetensors"),
        (["export"], "multidds.json"),
        (["scores.json", "hypotheses", "references"], "scores.json"),
        (["records.jsonl"], "records.jsonl"),
        (["config.json"], "best.safetensors"),
    ],
)
def test_verify_names_the_run_that_a_file_is_from(made, run, names, damaged):
    swap(made, run, *names)
    lines = [line for one in verify(run) for line in one.lines() if line.startswith("  ")]
    other = "seed 1" if names == ["config.json"] else "seed 2"
    assert any(damaged in line and f"another run (learned, {other}, " in line for line in lines), lines


def test_another_runs_model_is_neither_evaluated_nor_used(made, run, corpus):
    swap(made, run, "best.safetensors", "export")
    for use in (lambda: evaluate(run, threads=1), lambda: Translator(run, threads=1)):
        with pytest.raises(DamagedError, match=r"best.safetensors: is of another run \(learned, seed 2"):
            use()
    done = multidds("evaluate", run, cwd=corpus, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1].count("another run")) == (2, 1), done.stderr
    assert read_scores(run)["seed"] == 1


def test_another_runs_scores_are_made_again_and_not_reported(made, run, tmp_path):
    before, notices = (run / "scores.json").read_bytes(), []
    swap(made, run, "scores.json", "hypotheses", "references")
    with pytest.raises(DamagedError, match=r"scores.json: is of another run .*seed 2"):
        report([run], tmp_path / "report")
    evaluate(run, threads=1, notice=notices.append)
    assert "scores.json: is of another run" in notices[0]
    assert (run / "scores.json").read_bytes() == before


def test_another_runs_export_is_made_again(made, run):
    swap(made, run, "export")
    notices = []
    Translator(run, threads=1, notice=notices.append)
    assert "is of another run" in notices[0]
    assert not any(one.damage for one in verify(run))


def test_another_runs_records_or_config_are_not_reported(made, run, tmp_path):
    for name in ("records.jsonl", "config.json"):
        other = shutil.copytree(run, tmp_path / name)
        swap(made, other, name)
        with pytest.raises(UserError, match="is of another run"):
            report([other], tmp_path / "report")


def test_a_run_is_not_resumed_from_another_runs_checkpoint(made, run):
    newest = checkpoints.listed(run)[-1]
    shutil.copy(made[0] / "two" / "checkpoints" / newest.name, newest)
    show = Silent()
    train(made[1], run, show)
    assert f"{newest.name}: is of another run (learned, seed 2" in show.lines[0]
    assert show.lines[0].endswith("Going on from step-00000004.safetensors.")
    assert (run / "best.safetensors").read_bytes() == (made[0] / "one" / "best.safetensors").read_bytes()
    swap(made, run, "checkpoints")
    with pytest.raises(DamagedError, match="another run"):
        train(made[1], run, Silent())


def test_a_run_keeps_its_identity_when_it_is_made_longer(made, run):
    before = identity_of(run)
    config = made[1].model_copy(update={"train": made[1].train.model_copy(update={"max_steps": 10})})
    train(config, run, Silent())
    assert read_run(run)[0].train.max_steps == 10
    assert identity_of(run) == before
    assert not any(damage for one in verify(run) for kind, damage in one.damage.items() if kind != "scores")


def test_a_vocabulary_of_other_data_is_refused(made, run):
    path = run / "vocabulary" / "vocabulary.json"
    content = read_checksummed_json(path)
    content["tokens"]["source"].reverse()
    write_checksummed(path, content)
    shutil.rmtree(run / "export")
    with pytest.raises(DamagedError, match="vocabulary.json: is of another run or other data"):
        Translator(run, threads=1)
    assert any("vocabulary" in one.damage for one in verify(run))
