import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import ROOT, multidds
from toy_runs import Silent, small_config
from toy_text import CALL, made, recipe

from multidds._base.errors import DamagedError, UserError
from multidds._base.files import locked
from multidds.nmt.batches import Sentences
from multidds.nmt.common.checksummed import write_checksummed
from multidds.nmt.config import parse_config
from multidds.nmt.prepare import Prepared, prepare
from multidds.nmt.prepare.encode import Encoder
from multidds.nmt.prepare.text_files import read_pairs
from multidds.nmt.prepare.vocabulary import END, load_model, model_file, models_of, tag_of
from multidds.nmt.training.train import train


def content_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def arrays(settings):
    ready = Prepared(settings)
    return {
        (pair, split, side): [array.tolist() for array in ready.arrays(pair, split, side)]
        for pair in settings.data.names
        for split in ("train", "dev")
        for side in ("source", "target")
    }


# ---------------------------------------------------------------------------------------------- tokens


def test_arrays_hold_the_text_and_the_manifest_counts_it(tmp_path):
    settings = made(tmp_path)
    source = tmp_path / "ab-base.train.ab"
    lines = source.read_text().splitlines()
    lines[3], lines[5] = "", "a" * 9 + " " + "abc " * 200
    source.write_text("".join(line + "\n" for line in lines))
    assert prepare(settings, processes=2)
    ready = Prepared(settings)
    counted = ready.manifest["pairs"]["ab-base"]["train"]
    assert counted["pairs"] == 298
    assert counted["dropped"] == {"empty side": 1, "too long": 1}
    assert ready.manifest["pairs"]["ab-base"]["test"]["pairs"] == 15
    tokens, offsets = ready.arrays("ab-base", "train", "source")
    vocabulary = ready.vocabulary["source"]
    kept = [line for i, line in enumerate(lines) if i not in (3, 5)]
    texts = ["".join(vocabulary[t] for t in tokens[a:b]).replace("▁", " ").strip() for a, b in pairwise(offsets)]
    assert texts == kept
    assert counted["source tokens"] == len(tokens)
    assert ready.test_lines("ab-base", "target") == (tmp_path / "ab-base.test.base").read_text().splitlines()


@pytest.mark.parametrize("kind", ["joint", "per-language"])
def test_tokens_are_those_of_every_line_encoded_by_itself(tmp_path, kind, monkeypatch):
    settings = made(tmp_path, vocabulary={"kind": kind})
    odd = ["", " ab ", "\x1f", "a\u2028b", "\x85é", "abcd " * 200, "b\r", "ﬁ", "日本"]
    for lang in ("ab", "base"):
        with (tmp_path / f"ab-base.train.{lang}").open("a", encoding="utf-8", newline="\n") as file:
            file.write("".join(text + "\n" for text in odd))
    monkeypatch.setattr("multidds.nmt.prepare.shard_plan.LARGEST", 70)
    prepare(settings, processes=1)
    ready = Prepared(settings)
    for pair in settings.data.pairs:
        sides = ((pair.source, "source"), (pair.target, "target"))
        encoders = [Encoder.load(settings, ready.folder, lang, side) for lang, side in sides]
        rows = []
        for texts in read_pairs(settings.data, pair, "train"):
            row = [
                [int(encoder.numbers[piece]) for piece in encoder.model.encode(text.strip())]
                for encoder, text in zip(encoders, texts, strict=True)
            ]
            if all(0 < len(tokens) <= settings.data.max_length for tokens in row):
                rows.append(tuple(row))
        stored = ready.stored(pair.name, "train")
        assert [tuple(side.tolist() for side in stored.tokens(i)) for i in range(len(stored))] == rows
        assert ready.longer_tokens(pair.name, "train") == sum(max(map(len, row)) for row in rows)
        longest = ready.manifest["pairs"][pair.name]["train"]["longest"]
        assert longest == [max(map(len, side)) for side in zip(*rows, strict=True)]


def test_lengths_in_all_are_counted_with_tags_and_ends(tmp_path):
    settings = made(tmp_path, ("base-ab", "base-cd"))
    prepare(settings, processes=1)
    ready = Prepared(settings)
    for name in settings.data.names:
        sentences = Sentences(ready, name, "train")
        assert sentences.tag is not None
        assert sentences.all_tokens == sentences.lengths.sum()
        assert [sentences.sizes(i) for i in range(9)] == [
            (len(source) + 1, len(target) + 1) for source, target in map(sentences.tokens, range(9))
        ]


@pytest.mark.parametrize("kind", ["text", "tsv"])
@pytest.mark.slow
def test_any_number_of_shards_and_processes_makes_the_same_arrays(tmp_path, monkeypatch, kind):
    settings = made(tmp_path)
    if kind == "tsv":
        for pair in ("ab-base", "cd-base"):
            columns = [(tmp_path / f"{pair}.train.{lang}").read_text().splitlines() for lang in pair.split("-")]
            rows = [pair.replace("-", "\t"), *map("\t".join, zip(*columns, strict=True))]
            for split in ("train", "dev", "test"):
                (tmp_path / f"{pair}.{split}.tsv").write_text("\n".join(rows))
        files = {split: str(tmp_path / ("{pair}." + split + ".tsv")) for split in ("train", "dev", "test")}
        settings = made(tmp_path, format="tsv", **files)
    prepare(settings, processes=1)
    whole = arrays(settings)
    assert sorted(path.name for path in (tmp_path / "prepared").glob("*.bin")) == ["dev-00000.bin", "train-00000.bin"]
    monkeypatch.setattr("multidds.nmt.prepare.shard_plan.LARGEST", 77)
    shutil.rmtree(tmp_path / "prepared")
    prepare(settings, processes=2)
    shards = content_of(tmp_path / "prepared")
    assert "train-00006.bin" in shards  # two pairs of 300 lines
    assert arrays(settings) == whole
    shutil.rmtree(tmp_path / "prepared")
    prepare(settings, processes=1)
    assert content_of(tmp_path / "prepared") == shards


# ---------------------------------------------------------------------------------------------- vocabularies


def test_the_vocabulary_of_the_many_side_is_the_union_of_its_pieces(tmp_path):
    settings = made(tmp_path)
    prepare(settings)
    ready = Prepared(settings)
    models = {name: load_model(ready.folder, name) for name in ("ab", "cd", "base")}
    pieces = {name: set(m.id_to_piece(list(range(m.get_piece_size())))) for name, m in models.items()}
    assert set(ready.vocabulary["source"]) == pieces["ab"] | pieces["cd"]
    assert set(ready.vocabulary["target"]) == pieces["base"]
    assert ready.vocabulary["source"][:3] == ["<unk>", "<s>", "</s>"]
    assert ready.vocabulary["source"].index("</s>") == END


def test_one_to_many_has_tags_and_many_to_many_one_vocabulary(tmp_path):
    settings = made(tmp_path, ("base-ab", "base-cd"))
    prepare(settings)
    ready = Prepared(settings)
    assert ready.vocabulary["source"][3:5] == [tag_of("ab"), tag_of("cd")]
    assert tag_of("ab") not in ready.vocabulary["target"]
    settings = made(tmp_path, ("base-ab", "cd-base"))
    prepare(settings)
    ready = Prepared(settings)
    assert ready.vocabulary["source"] == ready.vocabulary["target"]
    assert {tag_of("ab"), tag_of("base")} <= set(ready.vocabulary["source"])


def test_a_joint_model_serves_all_languages(tmp_path):
    settings = made(tmp_path, vocabulary={"kind": "joint", "size": 70})
    prepare(settings)
    ready = Prepared(settings)
    assert ready.vocabulary["source"] == ready.vocabulary["target"]
    assert len(ready.vocabulary["source"]) == 70
    assert (ready.folder / "joint.spm.model").exists()


def test_text_that_looks_like_a_tag_is_not_one(tmp_path):
    settings = made(tmp_path, ("base-ab", "base-cd"))
    for lang in ("base", "ab"):
        path = tmp_path / f"base-ab.train.{lang}"
        path.write_text("".join(f"<2ab> {line}\n" for line in path.read_text().splitlines()))
    prepare(settings)
    ready = Prepared(settings)
    encoder = Encoder.load(settings, ready.folder, "base", "source")
    tags = {ready.vocabulary["source"].index(tag_of(language)) for language in ("ab", "cd")}
    assert not tags & set(encoder.encode(["<2ab> abc <2cd>"])[0].tolist())


@pytest.mark.parametrize("kind", ["per-language", "joint"])
def test_a_text_with_fewer_pieces_than_asked_for_gets_those_it_has(tmp_path, kind):
    settings = made(tmp_path, vocabulary={"size": 5000, "kind": kind})
    prepare(settings, processes=1)
    limited = Prepared(settings).manifest["limited"]
    assert set(limited) == set(models_of(settings))
    for name, pieces in limited.items():
        (there := tmp_path / name).mkdir()
        exactly = made(there, vocabulary={"size": pieces, "kind": kind})
        prepare(exactly, processes=1)
        assert name not in Prepared(exactly).manifest["limited"]
        models = [(each.data.folder / model_file(name)).read_bytes() for each in (settings, exactly)]
        assert models[0] == models[1]


def test_a_vocabulary_from_a_part_of_the_text_is_always_the_same(tmp_path):
    settings = made(tmp_path, lines=3000, vocabulary={"sample": 500})
    prepare(settings, processes=2)
    first = content_of(tmp_path / "prepared")
    shutil.rmtree(tmp_path / "prepared")
    prepare(settings, processes=2)
    assert content_of(tmp_path / "prepared") == first


# ---------------------------------------------------------------------------------------------- made once, refused


def test_a_second_call_does_nothing_and_a_changed_file_or_setting_does(tmp_path):
    settings = made(tmp_path)
    assert prepare(settings)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "prepared").iterdir()}
    assert not prepare(settings)
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "prepared").iterdir()} == before
    first = Prepared(settings).fingerprint
    for lang in ("cd", "base"):
        with (tmp_path / f"cd-base.dev.{lang}").open("a") as file:
            file.write("abc\n")
    assert prepare(settings)
    assert Prepared(settings).fingerprint != first
    assert prepare(made(tmp_path, vocabulary={"size": 50}))
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["prepared"]


@pytest.mark.parametrize(
    ("empty", "change", "message"),
    [
        ("", {"dev": "{pair}.none.{lang}"}, "ab-base.none.ab: there is no such file."),
        ("", {"max_length": 1}, "no usable sentence pair for the train set of 'ab-base'"),
        ("dev", {}, "no usable sentence pair for the dev set of 'ab-base'"),
        ("train", {}, "no training text of 'ab'"),
    ],
)
def test_text_that_cannot_be_prepared_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, empty, change, message):
    monkeypatch.chdir(tmp_path)
    settings = made(tmp_path, **change)
    for path in tmp_path.glob(f"ab-base.{empty}.*"):
        path.write_text("")
    with pytest.raises(UserError) as error:
        prepare(settings, processes=1)
    assert message in str(error.value)
    assert not (tmp_path / "prepared").exists()
    assert not (tmp_path / "prepared.partial").exists()


def test_bad_text_is_the_same_line_where_sentencepiece_reads_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = ["src\ttgt", *(f"hello {i} world\tsalut {i} monde" for i in range(100)), "a\tb\tc"]
    Path("t").write_text("\n".join(rows) + "\n")
    table = {"data": {"folder": "p", "format": "tsv", "pairs": ["src-tgt"], "train": "t", "dev": "t"}}
    config = parse_config(table | {"vocabulary": {"size": 60}}, "r")
    with pytest.raises(UserError, match=r"^t:102: has 3 columns"):
        prepare(config, processes=1)


def test_a_folder_of_something_else_is_not_touched(tmp_path):
    settings = made(tmp_path)
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / "thesis.txt").write_text("mine")
    for manifest in (None, "{}"):
        if manifest:
            (tmp_path / "prepared" / "manifest.json").write_text(manifest)
        with pytest.raises(UserError, match="thesis.txt.*'multidds prepare' did not make|json: is damaged .*away"):
            prepare(settings)
        assert (tmp_path / "prepared" / "thesis.txt").read_text() == "mine"


def test_other_settings_are_named(tmp_path):
    prepare(made(tmp_path))
    with pytest.raises(UserError, match=r"other settings \(data.max_length, vocabulary.kind\)"):
        Prepared(made(tmp_path, vocabulary={"kind": "joint"}, max_length=10))


def test_a_link_stays_a_link_and_the_current_folder_is_refused(tmp_path, monkeypatch):
    (tmp_path / "disk").mkdir()
    (tmp_path / "prepared").symlink_to(tmp_path / "disk")
    settings = made(tmp_path)
    assert prepare(settings)
    assert not prepare(settings)
    assert (tmp_path / "prepared").is_symlink()
    assert (tmp_path / "disk" / "manifest.json").exists()
    monkeypatch.chdir(tmp_path / "prepared")
    with pytest.raises(UserError, match="is the current folder"):
        prepare(settings)


# ---------------------------------------------------------------------------------------------- damage


def test_damaged_and_missing_files_are_refused_by_name_and_made_again(tmp_path):
    settings = made(tmp_path)
    prepare(settings)
    path = tmp_path / "prepared" / "train-00000.bin"
    for content in (path.read_bytes()[:-10], None):
        path.unlink()
        if content:
            path.write_bytes(content)
        with pytest.raises(DamagedError, match=r"train-00000.bin: is .* run 'multidds prepare' again\."):
            Prepared(settings).arrays("ab-base", "train", "source")
        notices = []
        assert prepare(settings, processes=1, notice=notices.append)
        assert ["train-00000.bin" in notice for notice in notices] == [True]
        assert not prepare(settings)
    (tmp_path / "prepared" / "manifest.json").write_text("{")
    for use in (prepare, Prepared):
        with pytest.raises(DamagedError, match="manifest.json: is damaged .* move the folder"):
            use(settings)


def test_data_of_another_layout_are_made_again(tmp_path):
    settings = made(tmp_path)
    prepare(settings)
    path = tmp_path / "prepared" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["checksum"]
    write_checksummed(path, {**manifest, "layout": 2})
    with pytest.raises(UserError, match="was prepared by another version"):
        Prepared(settings)
    assert prepare(settings)
    Prepared(settings)


def test_a_damaged_shard_is_one_line_when_it_is_first_read(corpus, tmp_path, monkeypatch):
    config = small_config(corpus, monkeypatch, f"data.folder={tmp_path}/prepared")
    for split in ("train", "dev"):
        path = tmp_path / "prepared" / f"{split}-00000.bin"
        whole = path.read_bytes()
        path.write_bytes(whole[:100] + b"?" + whole[101:])
        with pytest.raises(DamagedError, match=rf"{path.name}: is damaged"):
            train(config, tmp_path / split / "run", Silent())
        path.write_bytes(whole)
    assert train(config, tmp_path / "run", Silent()).finished


def test_a_shard_that_is_cut_while_it_is_open_is_one_line(tmp_path):
    settings = made(tmp_path)
    prepare(settings, processes=1)
    sentences = Sentences(Prepared(settings), "ab-base", "train")
    assert len(sentences.tokens(0)[0])
    os.truncate(tmp_path / "prepared" / "train-00000.bin", 10)
    with pytest.raises(DamagedError, match=r"train-00000.bin: is damaged \(it ends early\)"):
        sentences.tokens(200)


def test_few_files_are_open_however_many_there_are(tmp_path, monkeypatch):
    monkeypatch.setattr("multidds.nmt.prepare.shard_plan.LARGEST", 5)
    settings = made(tmp_path)
    prepare(settings, processes=1)
    assert len(list((tmp_path / "prepared").glob("train-*.bin"))) == 120
    monkeypatch.setattr("multidds.nmt.prepare.shard_files._OPEN", 3)
    ready = Prepared(settings)
    before = len(os.listdir("/proc/self/fd"))
    everything = [ready.stored(name, "train") for name in settings.data.names]
    rows = [[stored.tokens(i)[0].tolist() for i in range(300)] for stored in everything]
    assert len(os.listdir("/proc/self/fd")) <= before + 3
    tokens, offsets = ready.arrays("ab-base", "train", "source")
    assert rows[0] == [tokens[a:b].tolist() for a, b in pairwise(offsets)]


# ---------------------------------------------------------------------------------------------- interruptions


def test_a_second_process_is_refused_and_a_dead_one_forgotten(tmp_path):
    settings = made(tmp_path)
    with locked(tmp_path / "prepared.lock", "x"), pytest.raises(UserError, match="is being prepared by another"):
        prepare(settings)
    (tmp_path / "prepared.lock").touch()  # of a process that was killed
    assert prepare(settings, processes=1)
    assert not (tmp_path / "prepared.lock").exists()


def test_the_leftovers_of_a_call_that_was_killed_at_its_end_are_removed(tmp_path):
    settings = made(tmp_path)
    assert prepare(settings, processes=1)
    (tmp_path / "prepared.partial" / "notes").mkdir(parents=True)
    assert not prepare(settings, processes=1)
    assert not (tmp_path / "prepared.partial").exists()


def calling(tmp_path, table, lines):
    """A process that prepares, in shards of so many lines."""
    (tmp_path / "call.py").write_text(CALL)
    command = [sys.executable, str(tmp_path / "call.py"), json.dumps(table), str(lines)]
    return subprocess.Popen(command, start_new_session=True)


@pytest.mark.slow
def test_a_killed_call_is_resumed_shard_by_shard(tmp_path):
    table = recipe(tmp_path, lines=20_000)
    assert calling(tmp_path, table, 500).wait(120) == 0
    whole = content_of(tmp_path / "prepared")
    (tmp_path / "prepared").rename(tmp_path / "whole")
    process = calling(tmp_path, table, 500)
    notes, data = (tmp_path / "prepared.partial" / name for name in ("notes", "data"))
    while len(list(notes.glob("train-*.json"))) < 5 and process.poll() is None:
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "prepared").exists()
    finished = {path.stem: (data / f"{path.stem}.bin").stat().st_ino for path in notes.glob("train-*.json")}
    assert 5 <= len(finished) < 80
    damaged = data / "train-00001.bin"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    (data / "train-00099.bin.1.partial").write_bytes(b"half")
    assert calling(tmp_path, table, 500).wait(120) == 0
    assert content_of(tmp_path / "prepared") == whole
    kept = {name for name, inode in finished.items() if (tmp_path / "prepared" / f"{name}.bin").stat().st_ino == inode}
    assert kept == finished.keys() - {"train-00001"}
    assert not (tmp_path / "prepared.partial").exists()


def interruptible():
    """A shell in the background ignores SIGINT, and its children would inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_an_interrupted_call_leaves_nothing_half_written(corpus, tmp_path):
    (tmp_path / "data").symlink_to(corpus / "data")
    arguments = ["prepare", ROOT / "recipes" / "tiny.toml", "--set", f"data.folder={tmp_path}/out"]
    for signal_ in (signal.SIGINT, signal.SIGKILL):
        process = subprocess.Popen(
            [sys.executable, "-m", "multidds", *arguments],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=interruptible,
        )
        while not (tmp_path / "out.partial").exists() and process.poll() is None:
            time.sleep(0.005)
        os.killpg(process.pid, signal_)
        process.communicate()
        assert not (tmp_path / "out").exists()
    multidds(*arguments, cwd=tmp_path)
    assert (tmp_path / "out" / "manifest.json").exists()
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.004, 0.03, 0.06, 0.1, 0.2])
def test_ctrl_c_while_workers_start_prints_one_line(corpus, tmp_path, delay):
    (tmp_path / "data").symlink_to(corpus / "data")
    arguments = ["prepare", ROOT / "recipes" / "tiny.toml", "--set", f"data.folder={tmp_path}/out", "--processes", "3"]
    process = subprocess.Popen(
        [sys.executable, "-m", "multidds", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=interruptible,
        text=True,
    )
    while not workers_of(process.pid) and process.poll() is None:
        time.sleep(0.005)
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate()[0] == "multidds: stopped.\n"
    assert process.returncode == 130


@pytest.mark.slow
def test_ctrl_c_twice_ends_a_call_whose_workers_are_busy(tmp_path):
    table = recipe(tmp_path, vocabulary={"size": 40})
    for path in tmp_path.glob("*.train.*"):  # few different lines: sentencepiece takes many minutes
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:3] * 7000))
    sections = [
        f"[{section}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
        for section, keys in table.items()
    ]
    (tmp_path / "r.toml").write_text("".join(sections))
    process = subprocess.Popen(
        [sys.executable, "-m", "multidds", "prepare", "r.toml", "--processes", "2"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=interruptible,
    )
    while len(children := workers_of(process.pid)) < 2 and process.poll() is None:
        time.sleep(0.05)
    time.sleep(3)  # they have begun
    assert process.poll() is None, process.stdout.read()
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    process.communicate()
    while any(Path(f"/proc/{child}").exists() for child in children):
        time.sleep(0.05)


def workers_of(pid):
    """The processes of its pool."""
    workers = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
                if parent == str(pid) and b"spawn_main" in (entry / "cmdline").read_bytes():
                    workers.append(entry.name)
    return workers
