"""`[train] start_from`: data prepared with the vocabulary of an earlier run."""

import shutil

import numpy as np
import pytest
from conftest import ROOT
from toy_runs import SMALL
from toy_text import write_with_loud

from multidds._base.errors import DamagedError, UserError
from multidds.nmt.config.config import load_config
from multidds.nmt.prepare import Prepared, prepare
from multidds.nmt.runs.earlier_run import earlier_run
from multidds.nmt.runs.run_folder import open_run

OLD, NEW = "mirror-base shift-base", "shift-base loud-base"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    write_with_loud(folder / "data" / "made-up")
    return folder


@pytest.fixture(autouse=True)
def here(text, monkeypatch):
    monkeypatch.chdir(text)


def recipe(pairs, folder, *overrides, start=""):
    listed = ", ".join(f'"{pair}"' for pair in pairs.split())
    sets = [f"data.pairs=[{listed}]", f"data.folder=data/{folder}", f"train.start_from={start}", "vocabulary.size=60"]
    return load_config(ROOT / "recipes" / "tiny.toml", [*SMALL, *sets, *overrides])


def prepared(*arguments, **options):
    config = recipe(*arguments, **options)
    prepare(config, processes=1)
    return config, Prepared(config)


@pytest.fixture(scope="module")
def earlier(text):
    """The folder of a run, which need not have been trained to lend its vocabulary."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(text)
        config, data = prepared(OLD, "old")
        open_run(config, text / "runs" / "old", data, {}, 0).close()
        (text / "runs" / "old" / "best.safetensors").touch()
    return "runs/old"


@pytest.mark.claim(
    "Fine-tuning in the translation application",
    "prepared data take over the vocabulary of `[train] start_from`: old tokens at their numbers, new ones behind them",
)
def test_the_vocabulary_of_the_earlier_run_grows_at_its_end(earlier):
    _, old = prepared(OLD, "old")
    config, new = prepared(NEW, "new", start=earlier)
    assert new.vocabulary["source"][: len(old.vocabulary["source"])] == old.vocabulary["source"]
    assert new.vocabulary["target"] == old.vocabulary["target"]  # base has its model already
    added = new.vocabulary["source"][len(old.vocabulary["source"]) :]
    assert any(piece.strip("▁").isupper() for piece in added)
    assert not set(added) & set(old.vocabulary["source"])
    for side in ("source", "target"):
        before, after = (data.arrays("shift-base", "train", side)[0] for data in (old, new))
        assert np.array_equal(before, after)
    found = earlier_run(config, new)
    assert found.config.data.names == tuple(OLD.split())
    assert found.vocabulary == old.vocabulary
    assert not prepare(config, processes=1)  # nothing has changed
    assert earlier_run(recipe(OLD, "old"), old) is None


def test_new_target_languages_have_tags_behind_the_old_tokens(earlier):
    places = [f"data.{split}=data/made-up/{{many}}-base/{split}.{{lang}}" for split in ("train", "dev", "test")]
    _, old = prepared(OLD, "old")
    _, new = prepared("shift-base base-mirror", "tags", *places, start=earlier)
    assert new.tags["base-mirror"] >= len(old.vocabulary["source"])
    assert new.vocabulary["source"][new.tags["base-mirror"]] == "<2mirror>"


def test_one_model_for_all_languages_encodes_a_new_one_too(text):
    joint = ("vocabulary.kind=joint", "vocabulary.size=70")
    config, old = prepared(OLD, "joint", *joint)
    open_run(config, text / "runs" / "joint", old, {}, 0).close()
    _, new = prepared(NEW, "joint-grown", *joint, start="runs/joint")
    assert new.vocabulary == old.vocabulary
    assert new.sizes == {"shift-base": 300, "loud-base": 300}


def test_what_cannot_be_started_from_is_refused_with_both_values(earlier, tmp_path):
    with pytest.raises(UserError, match=r"start_from = 'runs/none': runs/none: is not a run"):
        prepare(recipe(NEW, "x", start="runs/none"))
    with pytest.raises(UserError, match="start_from = 'runs/old': .*'per-language'.*'joint'"):
        prepare(recipe(NEW, "x", "vocabulary.kind=joint", start=earlier))
    shutil.copytree(earlier, tmp_path / "copy")
    config, data = prepared(NEW, "copied", start=tmp_path / "copy")
    (tmp_path / "copy" / "best.safetensors").unlink()
    with pytest.raises(UserError, match="start_from = .*copy.*no trained model yet"):
        earlier_run(config, data)
    (tmp_path / "copy" / "vocabulary" / "shift.spm.model").write_bytes(b"x")
    with pytest.raises(DamagedError, match="shift.spm.model: is damaged"):
        prepare(recipe(NEW, "damaged", start=tmp_path / "copy"), processes=1)


def test_other_prepared_data_are_refused(earlier, text):
    config, data = prepared(NEW, "new", start=earlier)
    with pytest.raises(UserError, match=r"other settings \(train.start_from\)"):
        Prepared(recipe(NEW, "new"))
    with pytest.raises(UserError, match=r"other settings \(train.start_from\)"):
        Prepared(recipe(NEW, "new", start="runs/other"))
    other, its_data = prepared("loud-base", "loud")
    open_run(other, text / "runs" / "loud", its_data, {}, 0).close()
    (text / "runs" / "loud" / "best.safetensors").touch()
    changed = config.model_copy(update={"train": config.train.model_copy(update={"start_from": "runs/loud"})})
    with pytest.raises(UserError, match="start_from = 'runs/loud': data/new has another vocabulary"):
        earlier_run(changed, data)
