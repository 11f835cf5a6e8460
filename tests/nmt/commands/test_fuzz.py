"""Files that no person wrote, and files with one thing wrong: a clear line, never a traceback.

MULTIDDS_FUZZ_CASES=5000 makes thousands of cases of each kind; by default there are a few.
"""

import gzip
import os
from pathlib import Path

import pytest
from conftest import ROOT
from hypothesis import example, given, settings
from hypothesis import strategies as st
from odd_toml import JUNK, ODD, changed, one_line

from multidds._base.errors import UserError
from multidds.nmt.config.config import load_config, parse_config, read_run
from multidds.nmt.evaluation.scores import read_scores
from multidds.nmt.experiment.experiment_file import load_experiment
from multidds.nmt.experiment.run_list import plan
from multidds.nmt.prepare.prepared import read_manifest
from multidds.nmt.prepare.text_files import read_pairs
from multidds.nmt.prepare.vocabulary import load_vocabulary, model_digests
from multidds.nmt.runs import checkpoints
from multidds.nmt.runs.record_files import Follower, read_records

CASES = int(os.environ.get("MULTIDDS_FUZZ_CASES", "40"))
RECIPE = (ROOT / "recipes" / "reference.toml").read_text(encoding="utf-8")
EXPERIMENT = f"""\
folder = "runs/x"
parallel = 2
evaluate = false
[settings.s]
recipe = "{ROOT}/recipes/tiny.toml"
set = {{train = {{max_steps = 5}}}}
[methods.m]
set = {{mixture = {{method = "static", prior = "uniform"}}}}
[[blocks]]
name = "b"
settings = ["s"]
methods = ["m"]
seeds = [1]
"""
FILES = st.binary(max_size=200)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@settings(max_examples=CASES)
@given(changed(RECIPE), st.lists(st.sampled_from(RECIPE.splitlines()), max_size=2), ODD)
@example(RECIPE.encode(), ["probe_budget = 0.0"], "1e-320")
@example(RECIPE.encode(), ["max_steps = 1"], "9" * 5000)
def test_a_recipe_is_valid_or_one_clear_line(folder, content, lines, odd):
    path = folder / "r.toml"
    path.write_bytes(content)
    overrides = [f"mixture.{line.partition(' = ')[0]}={odd}" for line in lines if " = " in line]
    for given_overrides in ([], overrides):
        try:
            config = load_config(path, given_overrides)
        except UserError as error:
            one_line(error, "--set" if str(error).startswith("--set") else path)
        else:  # what was read is what a run would keep
            assert parse_config(config.model_dump(mode="json"), "again") == config


@settings(max_examples=CASES)
@given(changed(EXPERIMENT))
def test_an_experiment_is_valid_or_one_clear_line(folder, content):
    path = folder / "e.toml"
    path.write_bytes(content)
    try:
        plan(path, load_experiment(path))
    except UserError as error:
        one_line(error, path)
    assert not (folder / "runs").exists()


LINES = {
    "text": b"ein satz\nnoch einer\n",
    "tsv": b"a\tb\nein satz\ta sentence\nnoch\tmore\n",
    "jsonl": b'{"a": "ein satz", "b": "a sentence"}\n{"a": "noch", "b": "more"}\n',
    "ted": b"a\tb\tc\nein satz\ta sentence\t__NULL__\nnoch\tmore\tmehr\n",
}


@pytest.mark.parametrize("format_", LINES)
@settings(max_examples=CASES)
@given(st.data())
def test_text_in_any_format_is_read_or_one_clear_line(folder, format_, data):
    content = LINES[format_]
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(content)))
        content = content[:at] + data.draw(JUNK) + content[at + data.draw(st.integers(0, 20)) :]
    if data.draw(st.booleans()):
        content = bytearray(gzip.compress(content))
        for _ in range(data.draw(st.integers(0, 2))):
            content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(0, 255))
        content = bytes(content[: data.draw(st.integers(0, len(content)))])
    (folder / "t.a").write_bytes(content)
    (folder / "t.b").write_bytes(LINES["text"])
    path = f"{folder}/t." + ("{lang}" if format_ == "text" else "a")
    table = {"folder": "x", "pairs": ["a-b"], "train": path, "dev": path, "format": format_}
    config = parse_config({"data": table}, "r.toml").data
    try:
        pairs = list(read_pairs(config, config.pairs[0], "train"))
    except UserError as error:
        one_line(error, folder / "t.")
    else:
        assert all("\n" not in source + target for source, target in pairs)


READERS = {
    "config.json": read_run,
    "scores.json": read_scores,
    "manifest.json": read_manifest,
    "records.jsonl": read_records,
    "vocabulary.json": lambda folder: (load_vocabulary(folder), model_digests(folder)),
    "best.safetensors": lambda folder: checkpoints.read(folder / "best.safetensors"),
}


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=CASES)
@given(FILES | changed('{"layout": 2, "files": {}, "fingerprint": "x", "config": {}}\n'))
@example(b'{"a":' * 100_000)
@example(b"9" * 5000)
@example(b"\xff" * 8)
@example((2**40).to_bytes(8, "little") + b"{}")
@example((2).to_bytes(8, "little") + b"{}")
def test_a_file_that_is_not_ours_is_one_clear_line(tmp_path_factory, name, content):
    folder = tmp_path_factory.mktemp("run")
    (folder / name).write_bytes(content)
    try:
        found = READERS[name](folder)
    except UserError as error:
        one_line(error, folder)
    else:
        assert (name, found) == ("records.jsonl", [])  # a line that is being written
    Follower(folder).read()
    assert [path.name for path in Path(folder).iterdir()] == [name]
    assert (folder / name).read_bytes() == content
