import contextlib
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, multidds
from hypothesis import given
from hypothesis import strategies as st

from multidds.nmt.common.checksummed import write_checksummed
from multidds.nmt.common.errors import DamagedError, UserError
from multidds.nmt.common.files import locked
from multidds.nmt.config.config import parse_config
from multidds.nmt.prepare import Prepared, prepare
from multidds.nmt.prepare.encode import Encoder
from multidds.nmt.prepare.text_files import files_of, read_pairs
from multidds.nmt.prepare.vocabulary import END, load_model, model_file, models_of, tag_of

PAIRS = [("a b", "x y"), ("c d", "z"), ("", "w"), ("e\u2028f\x85g", "v\x0bu")]


def config(folder, **data):
    table = {"data": {"folder": str(folder / "prepared"), "pairs": ["src-tgt"], "train": "", "dev": "", **data}}
    return parse_config(table, "r.toml")


def read(folder, **data):
    settings = config(folder, **data)
    return list(read_pairs(settings.data, settings.data.pairs[0], "train"))


def written(folder, name, text, compress):
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if compress else text.encode())
    return path


# ---------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("compress", [False, True])
def test_every_format_reads_the_same_pairs(tmp_path, compress):
    written(tmp_path, "t.src", "".join(s + "\n" for s, _ in PAIRS), compress)
    written(tmp_path, "t.tgt", "".join(t + "\n" for _, t in PAIRS), compress)
    assert read(tmp_path, train=str(tmp_path / "t.{lang}")) == PAIRS
    path = written(tmp_path, "t.tsv", "id\ttgt\tsrc\n" + "".join(f"1\t{t}\t{s}\n" for s, t in PAIRS), compress)
    assert read(tmp_path, train=str(path), format="tsv") == PAIRS
    path = written(tmp_path, "u.tsv", "".join(f"{s}\t{t}\n" for s, t in PAIRS), compress)
    assert read(tmp_path, train=str(path), format="tsv", header=False) == PAIRS
    assert read(tmp_path, train=str(path), format="tsv", header=False, columns={"src": 1, "tgt": 0}) == [
        (t, s) for s, t in PAIRS
    ]
    path = written(tmp_path, "t.jsonl", "\n".join(json.dumps({"src": s, "tgt": t}) for s, t in PAIRS), compress)
    assert read(tmp_path, train=str(path), format="jsonl") == PAIRS
    nested = "\n".join(json.dumps({"translation": {"az": s, "en": t}}) for s, t in PAIRS)
    path = written(tmp_path, "n.jsonl", nested, compress)
    columns = {"src": "translation.az", "tgt": "translation.en"}
    assert read(tmp_path, train=str(path), format="jsonl", columns=columns) == PAIRS


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        (["aze-eng", "bel-eng"], ["aze", "bel"]),
        (["eng-aze", "eng-bel"], ["aze", "bel"]),
        (["aze-eng", "eng-bel"], ["aze", "bel"]),
        (["aze-eng", "eng-aze"], ["aze", "aze"]),
        (["aze-eng"], ["aze"]),
    ],
)
def test_the_many_side_is_the_one_that_is_not_shared(tmp_path, pairs, expected):
    data = config(tmp_path, pairs=pairs, train="{many}/{lang}").data
    assert [files_of(data, pair, "train")[0].parent.name for pair in data.pairs] == expected


def test_the_ted_release_leaves_out_missing_lines_and_knows_no_quotes(tmp_path):
    rows = [
        "talk_name\ten\taz\tbe",
        'talk_1\t" Hello\tSalam\t__NULL__',
        "talk_1\tWorld\t__NULL__\tSvet",
        "talk_1\tBye\t_ _ NULL _ _\tPa",
        "talk_2\tThanks\tSağ ol\t",
    ]
    path = written(tmp_path, "all_talks_train.tsv", "\n".join(rows) + "\n", False)
    ted = {"train": str(path), "format": "ted", "columns": {"aze": "az", "bel": "be", "eng": "en"}}
    assert read(tmp_path, pairs=["aze-eng"], **ted) == [("Salam", '" Hello'), ("Sağ ol", "Thanks")]
    assert read(tmp_path, pairs=["eng-bel"], **ted) == [("World", "Svet"), ("Bye", "Pa")]


@pytest.mark.parametrize(
    ("files", "data", "message"),
    [
        ({}, {"train": "{lang}"}, "src: there is no such file."),
        ({"src": "a\n", "tgt": "a\nb\n"}, {"train": "{lang}"}, "src: has 1 lines, but"),
        ({"src": b"ok\n\xff\n", "tgt": "a\nb\n"}, {"train": "{lang}"}, "src:2: not valid UTF-8 (byte 1:"),
        ({"src": gzip.compress(b"a\n" * 999)[:-9], "tgt": "a\n" * 999}, {"train": "{lang}"}, "src: damaged gzip file"),
        (
            {"t": "a\tb\n"},
            {"train": "t", "format": "tsv"},
            "t:1: there is no column 'src' for 'src'; the header has 'a', 'b'",
        ),
        ({"t": "src\ttgt\na\n"}, {"train": "t", "format": "tsv"}, "t:2: has 1 columns, but the header has 2"),
        ({"t": "a\n"}, {"train": "t", "format": "tsv", "header": False}, "t:1: has 1 columns, but column 2 is needed"),
        ({"t": "a\tb\n"}, {"train": "t", "format": "tsv", "columns": {"src": 7}}, "there is no column 7 for 'src'"),
        ({"t": "{\n"}, {"train": "t", "format": "jsonl"}, "t:1: not valid JSON"),
        ({"t": '{"src": "a"}\n'}, {"train": "t", "format": "jsonl"}, "t:1: there is no text at 'tgt'"),
        ({"t": '{"src": "a", "tgt": 3}\n'}, {"train": "t", "format": "jsonl"}, "t:1: there is no text at 'tgt'"),
        ({"t": "[" * 100000}, {"train": "t", "format": "jsonl"}, "t:1: not valid JSON"),
        ({"t": "a"}, {"train": "t"}, "aligned files need '{lang}' in their path"),
        ({"t": "a"}, {"train": "{language}"}, "aligned files need '{lang}'"),
        ({"t": "a"}, {"train": "{lang}{0}"}, "may hold {source}, {target}, {pair}, {lang}, {many}"),
    ],
)
def test_bad_text_is_one_line_with_file_and_line_number(tmp_path, monkeypatch, files, data, message):
    monkeypatch.chdir(tmp_path)
    for name, content in files.items():
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as error:
        read(tmp_path, **data)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_bad_text_is_the_same_line_where_sentencepiece_reads_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = ["src\ttgt", *(f"hello {i} world\tsalut {i} monde" for i in range(100)), "a\tb\tc"]
    Path("t").write_text("\n".join(rows) + "\n")
    table = {"data": {"folder": "p", "format": "tsv", "pairs": ["src-tgt"], "train": "t", "dev": "t"}}
    config = parse_config(table | {"vocabulary": {"size": 60}}, "r")
    with pytest.raises(UserError) as error:
        prepare(config, processes=1)
    assert str(error.value) == "t:102: has 3 columns, but the header has 2."


@given(st.binary(max_size=60), st.binary(max_size=60), st.sampled_from(["text", "tsv", "jsonl", "ted"]))
def test_fuzzed_files_end_in_pairs_or_one_clear_line(tmp_path_factory, source, target, kind):
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "t.src").write_bytes(source)
    (folder / "t.tgt").write_bytes(target)
    try:
        for s, t in read(folder, train=str(folder / ("t.{lang}" if kind == "text" else "t.src")), format=kind):
            assert "\n" not in s + t
    except UserError as error:
        assert "\n" not in str(error)


# ---------------------------------------------------------------------------------------------- preparing


def parallel(folder, pairs=("ab-base", "cd-base"), lines=300, seed=0):
    """Small aligned files, with a few pairs to drop."""
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(list("abcdefg"), 4)) for _ in range(60)]
    for pair in pairs:
        for split, count in (("train", lines), ("dev", 20), ("test", 15)):
            texts = [" ".join(rng.choice(words, rng.integers(2, 7))) for _ in range(count)]
            for lang in pair.split("-"):
                (folder / f"{pair}.{split}.{lang}").write_text("".join(t + "\n" for t in texts), encoding="utf-8")
    data = {split: str(folder / ("{pair}." + split + ".{lang}")) for split in ("train", "dev", "test")}
    return {"folder": str(folder / "prepared"), "pairs": list(pairs), **data}


def made(folder, vocabulary=None, **data):
    table = {"data": {**parallel(folder), **data}, "vocabulary": {"size": 60, **(vocabulary or {})}}
    return parse_config(table, "r.toml")


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
    for i in (0, 3, 100, 297):
        pieces = [vocabulary[t] for t in tokens[offsets[i] : offsets[i + 1]]]
        assert "".join(pieces).replace("▁", " ").strip() == kept[i]
    assert counted["source tokens"] == len(tokens)
    assert ready.test_lines("ab-base", "target") == (tmp_path / "ab-base.test.base").read_text().splitlines()


def arrays(settings):
    ready = Prepared(settings)
    return {
        (pair, split, side): [array.tolist() for array in ready.arrays(pair, split, side)]
        for pair in settings.data.names
        for split in ("train", "dev")
        for side in ("source", "target")
    }


@pytest.mark.parametrize("kind", ["text", "tsv"])
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
    shards = {path.name: path.read_bytes() for path in (tmp_path / "prepared").iterdir()}
    assert "train-00006.bin" in shards  # two pairs of 300 lines
    assert arrays(settings) == whole
    shutil.rmtree(tmp_path / "prepared")
    prepare(settings, processes=1)
    assert {path.name: path.read_bytes() for path in (tmp_path / "prepared").iterdir()} == shards


def test_a_second_call_does_nothing_and_a_changed_file_or_setting_does(tmp_path):
    settings = made(tmp_path)
    assert prepare(settings)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "prepared").iterdir()}
    assert not prepare(settings)
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "prepared").iterdir()} == before
    first = Prepared(settings).fingerprint
    with (tmp_path / "cd-base.dev.cd").open("a") as a, (tmp_path / "cd-base.dev.base").open("a") as b:
        a.write("abc\n")
        b.write("abc\n")
    assert prepare(settings)
    assert Prepared(settings).fingerprint != first
    assert prepare(made(tmp_path, {"size": 50}))
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["prepared"]


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
    data = parallel(tmp_path, ["base-ab", "base-cd"])
    settings = parse_config({"data": data, "vocabulary": {"size": 60}}, "r.toml")
    prepare(settings)
    ready = Prepared(settings)
    assert ready.vocabulary["source"][3:5] == [tag_of("ab"), tag_of("cd")]
    assert tag_of("ab") not in ready.vocabulary["target"]
    both = parallel(tmp_path, ["base-ab", "cd-base"])
    settings = parse_config({"data": both, "vocabulary": {"size": 60}}, "r.toml")
    prepare(settings)
    ready = Prepared(settings)
    assert ready.vocabulary["source"] == ready.vocabulary["target"]
    assert {tag_of("ab"), tag_of("base")} <= set(ready.vocabulary["source"])


def test_a_joint_model_serves_all_languages(tmp_path):
    settings = made(tmp_path, {"kind": "joint", "size": 70})
    prepare(settings)
    ready = Prepared(settings)
    assert ready.vocabulary["source"] == ready.vocabulary["target"]
    assert len(ready.vocabulary["source"]) == 70
    assert (ready.folder / "joint.spm.model").exists()


def test_text_that_looks_like_a_tag_is_not_one(tmp_path):
    data = parallel(tmp_path, ["base-ab", "base-cd"])
    for lang in ("base", "ab"):
        path = tmp_path / f"base-ab.train.{lang}"
        path.write_text("".join(f"<2ab> {line}\n" for line in path.read_text().splitlines()))
    settings = parse_config({"data": data, "vocabulary": {"size": 60}}, "r.toml")
    prepare(settings)
    ready = Prepared(settings)
    encoder = Encoder.load(settings, ready.folder, "base", "source")
    tags = {ready.vocabulary["source"].index(tag_of(language)) for language in ("ab", "cd")}
    assert not tags & set(encoder.encode(["<2ab> abc <2cd>"])[0].tolist())


@pytest.mark.parametrize(
    ("change", "vocabulary", "message"),
    [
        ({}, {"size": 16, "coverage": 1.0}, None),
        ({"dev": "{pair}.none.{lang}"}, {}, "ab-base.none.ab: there is no such file."),
        ({"max_length": 1}, {}, "no usable sentence pair for the"),
    ],
)
def test_what_cannot_be_prepared_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, change, vocabulary, message):
    monkeypatch.chdir(tmp_path)
    settings = made(tmp_path, vocabulary, **change)
    if message is None:
        return
    with pytest.raises(UserError) as error:
        prepare(settings, processes=1)
    assert message in str(error.value)
    assert not (tmp_path / "prepared").exists()
    assert not (tmp_path / "prepared.partial").exists()


@pytest.mark.parametrize("kind", ["per-language", "joint"])
def test_a_text_with_fewer_pieces_than_asked_for_gets_those_it_has(tmp_path, kind):
    settings = made(tmp_path, {"size": 5000, "kind": kind})
    prepare(settings, processes=1)
    limited = Prepared(settings).manifest["limited"]
    assert set(limited) == set(models_of(settings))
    for name, pieces in limited.items():
        (there := tmp_path / name).mkdir()
        exactly = made(there, {"size": pieces, "kind": kind})
        prepare(exactly, processes=1)
        assert name not in Prepared(exactly).manifest["limited"]
        models = [(each.data.folder / model_file(name)).read_bytes() for each in (settings, exactly)]
        assert models[0] == models[1]


def test_an_empty_dev_set_is_refused(tmp_path):
    settings = made(tmp_path)
    for lang in ("ab", "base"):
        (tmp_path / f"ab-base.dev.{lang}").write_text("")
    with pytest.raises(UserError, match="no usable sentence pair for the dev set of 'ab-base'"):
        prepare(settings, processes=1)


def test_a_folder_of_something_else_is_not_touched(tmp_path):
    settings = made(tmp_path)
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / "thesis.txt").write_text("mine")
    for manifest in (None, "{}", '{"layout": 2, "fingerprint": "x", "files": {}}'):
        if manifest:
            (tmp_path / "prepared" / "manifest.json").write_text(manifest)
        with pytest.raises(UserError, match="'multidds prepare' did not make; choose another|json: is damaged .*away"):
            prepare(settings)
        assert (tmp_path / "prepared" / "thesis.txt").read_text() == "mine"


def test_a_missing_array_is_made_again_and_other_settings_are_named(tmp_path):
    settings = made(tmp_path)
    prepare(settings)
    (tmp_path / "prepared" / "train-00000.bin").unlink()
    assert prepare(settings)
    assert Prepared(settings).arrays("ab-base", "train", "source")
    with pytest.raises(UserError, match=r"was prepared with other settings \(data.max_length, vocabulary.kind\)"):
        Prepared(made(tmp_path, {"kind": "joint"}, max_length=10))


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


def test_an_empty_training_file_is_named(tmp_path):
    settings = made(tmp_path)
    for lang in ("ab", "base"):
        (tmp_path / f"ab-base.train.{lang}").write_text("")
    with pytest.raises(UserError, match="ab-base.train.ab, .*: no training text of 'ab'"):
        prepare(settings, processes=1)


def test_damaged_arrays_are_refused_by_name(tmp_path):
    settings = made(tmp_path)
    prepare(settings)
    path = tmp_path / "prepared" / "train-00000.bin"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DamagedError, match=r"train-00000.bin: is damaged .* run 'multidds prepare' again\."):
        Prepared(settings).arrays("ab-base", "train", "source")
    notices = []
    assert prepare(settings, processes=1, notice=notices.append)
    assert [notice.endswith("run 'multidds prepare' again. Doing so now.") for notice in notices] == [True]
    assert not prepare(settings)
    (tmp_path / "prepared" / "manifest.json").write_text("{")
    for use in (prepare, Prepared):
        with pytest.raises(DamagedError, match="manifest.json: is damaged or of another version .* move the folder"):
            use(settings)


def test_what_an_older_version_has_prepared_is_made_again(tmp_path):
    settings = made(tmp_path)
    prepare(settings)
    path = tmp_path / "prepared" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["checksum"]
    write_checksummed(path, {**manifest, "layout": 2})
    with pytest.raises(UserError, match="was prepared by another version; run 'multidds prepare' again"):
        Prepared(settings)
    assert prepare(settings)
    Prepared(settings)
    path.write_text(json.dumps(manifest))  # of this version, without its checksum
    with pytest.raises(DamagedError, match="manifest.json: is damaged"):
        prepare(settings)


def test_a_second_process_is_refused_and_a_dead_one_forgotten(tmp_path):
    settings = made(tmp_path)
    with locked(tmp_path / "prepared.lock", "x"), pytest.raises(UserError, match="is being prepared by another"):
        prepare(settings)
    (tmp_path / "prepared.lock").touch()  # of a process that was killed
    assert prepare(settings, processes=1)
    assert not (tmp_path / "prepared.lock").exists()


def test_an_interrupted_call_leaves_nothing_half_written(corpus, tmp_path):
    recipe = ROOT / "recipes" / "tiny.toml"
    (tmp_path / "data").symlink_to(corpus / "data")
    command = [sys.executable, "-m", "multidds", "prepare", recipe, "--set", f"data.folder={tmp_path}/out"]
    for signal_ in (signal.SIGINT, signal.SIGKILL):
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            # A shell in the background ignores SIGINT, and its children would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        deadline = time.time() + 30
        while not (tmp_path / "out.partial").exists() and process.poll() is None and time.time() < deadline:
            time.sleep(0.005)
        os.killpg(process.pid, signal_)
        process.communicate()
        assert not (tmp_path / "out").exists()
    multidds(*command[3:], cwd=tmp_path)
    assert (tmp_path / "out" / "manifest.json").exists()
    assert not (tmp_path / "out.partial").exists()


def test_ctrl_c_twice_ends_a_call_whose_workers_are_busy(tmp_path):
    data = parallel(tmp_path)
    for path in tmp_path.glob("*.train.*"):  # few different lines: sentencepiece takes many minutes
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:3] * 7000))
    recipe = {"data": data, "vocabulary": {"size": 40}}
    lines = [f"[{section}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in keys.items())
             for section, keys in recipe.items()]  # fmt: skip
    (tmp_path / "r.toml").write_text("".join(lines))
    process = subprocess.Popen(
        [sys.executable, "-m", "multidds", "prepare", "r.toml", "--processes", "2"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while len(children := workers_of(process.pid)) < 2 and process.poll() is None:
        time.sleep(0.05)
    time.sleep(3)  # they have begun
    assert process.poll() is None, process.stdout.read()
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    process.communicate(timeout=120)
    while any(Path(f"/proc/{child}").exists() for child in children):
        time.sleep(0.05)


def workers_of(pid):
    """The processes of its pool."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
                if parent == str(pid) and b"spawn_main" in (entry / "cmdline").read_bytes():
                    found.append(entry.name)
    return found
