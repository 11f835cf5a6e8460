"""Shards: which lines they hold, how they are written and read, and what is left of a call that is killed."""

import contextlib
import gzip
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_runs import Silent, small_config

from multidds.nmt.batches.sentences import Sentences
from multidds.nmt.common.errors import DamagedError
from multidds.nmt.common.files import resumed_folder
from multidds.nmt.config.config import parse_config
from multidds.nmt.prepare import Prepared, prepare
from multidds.nmt.prepare import shard_files as shards
from multidds.nmt.prepare.encode import Encoder
from multidds.nmt.prepare.shard_files import ShardFiles, ShardWriter, stored_pairs
from multidds.nmt.prepare.shard_plan import LARGEST, SHARDS, SMALLEST, cut, lines_per_shard
from multidds.nmt.prepare.text_files import read_columns, read_pairs, scan
from multidds.nmt.training.train import train

TEXT = st.lists(st.sampled_from([b"a", b"bc d", b"", b" ", "é\u2028".encode(), b"\r", b"x\x1f"]), max_size=40)


# ------------------------------------------------------------------------------------------ which lines


@given(st.lists(st.integers(0, 50), max_size=12), st.integers(1, 30))
def test_every_line_is_in_one_shard_and_in_its_order(lines, size):
    found = list(cut(lines, size))
    everything = [(number, line) for shard in found for number, start, stop in shard for line in range(start, stop)]
    assert everything == [(number, line) for number, count in enumerate(lines) for line in range(count)]
    assert all(sum(stop - start for _, start, stop in shard) == size for shard in found[:-1])


def test_shards_are_few_and_neither_large_nor_tiny():
    assert lines_per_shard(1) == lines_per_shard(SMALLEST * SHARDS) == SMALLEST
    for lines in (10**6, 10**7 // 2, SHARDS * LARGEST):
        assert -(-lines // lines_per_shard(lines)) == SHARDS
    assert lines_per_shard(10**9) == LARGEST


@given(TEXT, st.booleans(), st.integers(1, 9), st.integers(1, 5))
def test_a_scan_finds_digest_lines_and_where_they_begin(tmp_path_factory, lines, ends, block, every):
    content = b"\n".join(lines) + (b"\n" if ends else b"")
    path = tmp_path_factory.mktemp("scan") / "t"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("multidds.nmt.prepare.text_files._SCAN_BYTES", block)
        patch.setattr("multidds.nmt.prepare.text_files.MARK_EVERY", every)
        found = scan(path)
        there = [line + b"\n" for line in content.split(b"\n")[:-1]] + [
            last for last in [content.split(b"\n")[-1]] if last
        ]
        assert (found.digest, found.lines) == (hashlib.sha256(content).hexdigest(), len(there))
        for line in range(len(there) + 1):
            mark, byte = found.place(line)
            assert 0 <= line - mark < every or mark == (len(found.marks) - 1) * every
            assert byte == len(b"".join(there[:mark]))


@given(TEXT, TEXT, st.integers(0, 12), st.integers(0, 12), st.booleans())
def test_reading_may_begin_at_any_line(tmp_path_factory, sources, targets, start, count, compress):
    folder = tmp_path_factory.mktemp("read")
    size = min(len(sources), len(targets))
    for lang, lines in (("a", sources[:size]), ("b", targets[:size])):
        content = b"".join(line + b"\n" for line in lines)
        (folder / f"t.{lang}").write_bytes(gzip.compress(content) if compress else content)
    table = {"folder": "x", "pairs": ["a-b"], "train": str(folder / "t.{lang}"), "dev": "x"}
    data = parse_config({"data": table}, "r").data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("multidds.nmt.prepare.text_files.MARK_EVERY", 3)
        patch.setattr("multidds.nmt.prepare.text_files._BLOCK", 4)
        places = [scan(folder / f"t.{lang}").place(start) for lang in "ab"]
        rows = list(read_pairs(data, data.pairs[0], "train"))
        part = list(read_pairs(data, data.pairs[0], "train", start, start + count, places))
        assert part == rows[start : start + count]
        blocks = list(read_columns(data, data.pairs[0], "train", start, start + count, places))
    columns = [[text for block in blocks for text in block[side]] for side in (0, 1)]
    assert columns == [[row[side].strip() for row in part] for side in (0, 1)]


def test_a_bad_byte_is_named_by_the_part_that_has_it_alone(tmp_path):
    lines = [f"line {i}".encode() for i in range(5000)]
    lines[4000] = b"\xff\xfe"
    for lang in "ab":
        (tmp_path / f"t.{lang}").write_bytes(b"\n".join(lines))
    data = parse_config(
        {"data": {"folder": "x", "pairs": ["a-b"], "train": str(tmp_path / "t.{lang}"), "dev": "x"}}, "r"
    ).data
    for start, stop in ((0, 4000), (3990, 4000), (4001, 5000)):
        assert len(list(read_pairs(data, data.pairs[0], "train", start, stop))) == stop - start
    for start in (0, 3999, 4000):
        with pytest.raises(Exception, match=r"t\.a:4001: not valid UTF-8 \(byte 1: invalid start byte\)"):
            list(read_columns(data, data.pairs[0], "train", start))


# ------------------------------------------------------------------------------------------ writing and reading

SENTENCES = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.lists(st.integers(0, 60000), min_size=1, max_size=6),
        st.lists(st.integers(0, 60000), min_size=1, max_size=6),
    ),
    min_size=1,
    max_size=30,
)


@given(SENTENCES, st.integers(1, 9), st.sampled_from([("<u2", "<u2"), ("<u2", "<u4"), ("<u4", "<u2")]))
def test_what_is_written_to_shards_is_read_back(tmp_path_factory, sentences, size, types):
    folder = tmp_path_factory.mktemp("shards")
    sentences = sorted(sentences, key=lambda one: one[0])  # the order of the language pairs
    listed, digests = [], {}
    for number, first in enumerate(range(0, len(sentences), size)):
        some = sentences[first : first + size]
        with ShardWriter(folder / f"{number}.bin", types) as writer:
            for pair in range(3):
                rows = [row for row in some if row[0] == pair]
                source, target = (np.array([t for row in rows for t in row[side]], np.int64) for side in (1, 2))
                writer.add(source, target, np.array([[len(s), len(t)] for _, s, t in rows], np.int64).reshape(-1, 2))
        spans = [[pair, sum(row[0] == pair for row in some)] for pair in range(3)]
        listed.append({"file": f"{number}.bin", "tokens": writer.tokens, "spans": spans})
        digests[f"{number}.bin"] = writer.digest
        assert writer.digest == hashlib.sha256((folder / f"{number}.bin").read_bytes()).hexdigest()
    assert {path.name for path in folder.iterdir()} == digests.keys()
    stored = stored_pairs(ShardFiles(folder, digests, "x"), listed, ["a", "b", "c"], types)
    for pair, name in enumerate("abc"):
        rows = [(source, target) for number, source, target in sentences if number == pair]
        found = stored[name]
        assert len(found) == len(rows)
        assert [tuple(side.tolist() for side in found.tokens(i)) for i in range(len(rows))] == rows
        assert [found.sizes(i) for i in range(len(rows))] == [(len(s), len(t)) for s, t in rows]
        assert found.all_sizes().tolist() == [[len(s), len(t)] for s, t in rows]
        for side in (0, 1):
            tokens, offsets = found.array(side) if rows else (np.zeros(0), np.zeros(1, int))
            assert [tokens[a:b].tolist() for a, b in pairwise(offsets)] == [row[side] for row in rows]
        for i in (-1, len(rows)):
            with pytest.raises(IndexError, match=f"there are {len(rows)} sentence pairs, and no pair {i}"):
                found.tokens(i)


def test_a_shard_that_fails_leaves_nothing(tmp_path):
    with contextlib.suppress(KeyboardInterrupt), ShardWriter(tmp_path / "a.bin", ("<u2", "<u2")) as writer:
        writer.add(np.arange(3), np.arange(2), np.array([[3, 2]]))
        assert len(list(tmp_path.iterdir())) == 1
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_a_reader_without_pread_reads_the_same(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"0123456789")
    files = ShardFiles(tmp_path, {"a": hashlib.sha256(b"0123456789").hexdigest()}, "x")
    assert (files.read("a", 3, 4), files.read("a", 2, 0)) == (b"456", b"01")
    monkeypatch.delattr(os, "pread")
    assert (files.read("a", 3, 4), files.read("a", 2, 0)) == (b"456", b"01")


# ------------------------------------------------------------------------------------------ preparing


def corpus_of(folder, lines=300, pairs=("ab-base", "cd-base"), **vocabulary):
    """Aligned files and their config."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefg"), 4)) for _ in range(60)]
    for pair in pairs:
        for split, count in (("train", lines), ("dev", 20)):
            for lang in pair.split("-"):
                ids = rng.integers(0, 60, (count, 6)).tolist()
                text = "".join(" ".join([words[i] for i in line]) + "\n" for line in ids)
                (folder / f"{pair}.{split}.{lang}").write_text(text)
    data = {split: str(folder / ("{pair}." + split + ".{lang}")) for split in ("train", "dev")}
    table = {"data": {"folder": str(folder / "prepared"), "pairs": list(pairs), **data}}
    return {**table, "vocabulary": {"size": 60, **vocabulary}}


def content_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["joint", "per-language"])
def test_tokens_are_those_of_every_line_encoded_by_itself(tmp_path, kind, monkeypatch):
    settings = parse_config(corpus_of(tmp_path, kind=kind), "r")
    odd = ["", " ab ", "\x1f", "a\u2028b", "\x85é", "abcd " * 200, "b\r", "ﬁ", "日本"]
    for lang in ("ab", "base"):
        path = tmp_path / f"ab-base.train.{lang}"
        with path.open("a", encoding="utf-8", newline="\n") as file:
            file.write("".join(text + "\n" for text in odd))
    monkeypatch.setattr("multidds.nmt.prepare.shard_plan.LARGEST", 70)
    prepare(settings, processes=1)
    ready = Prepared(settings)
    for pair in settings.data.pairs:
        sides = ((pair.source, "source"), (pair.target, "target"))
        encoders = [Encoder.load(settings, ready.folder, lang, side) for lang, side in sides]
        rows = []
        for texts in read_pairs(settings.data, pair, "train"):
            row = []
            for encoder, text in zip(encoders, texts, strict=True):
                row.append([int(encoder.numbers[piece]) for piece in encoder.model.encode(text.strip())])
            if all(0 < len(tokens) <= settings.data.max_length for tokens in row):
                rows.append(tuple(row))
        stored = ready.stored(pair.name, "train")
        assert [tuple(side.tolist() for side in stored.tokens(i)) for i in range(len(stored))] == rows
        longer = sum(max(map(len, row)) for row in rows)
        assert ready.longer_tokens(pair.name, "train") == longer
        assert ready.manifest["pairs"][pair.name]["train"]["longest"] == [
            max(map(len, side)) for side in zip(*rows, strict=True)
        ]


def test_lengths_in_all_are_counted_with_tags_and_ends(tmp_path):
    settings = parse_config(corpus_of(tmp_path, pairs=("base-ab", "base-cd")), "r")
    prepare(settings, processes=1)
    ready = Prepared(settings)
    for name in settings.data.names:
        sentences = Sentences(ready, name, "train")
        assert sentences.tag is not None
        assert sentences.all_tokens == sentences.lengths.sum()
        assert [sentences.sizes(i) for i in range(9)] == [
            (len(source) + 1, len(target) + 1) for source, target in map(sentences.tokens, range(9))
        ]


CALL = """
import json, sys
from multidds.nmt.prepare import shard_plan as sharding
from multidds.nmt.config.config import parse_config
from multidds.nmt.prepare import prepare

if __name__ == "__main__":
    sharding.LARGEST = int(sys.argv[2])
    prepare(parse_config(json.loads(sys.argv[1]), "r"), processes=1)
"""


def calling(tmp_path, table, lines):
    """A process that prepares, in shards of so many lines."""
    (tmp_path / "call.py").write_text(CALL)
    command = [sys.executable, str(tmp_path / "call.py"), json.dumps(table), str(lines)]
    return subprocess.Popen(command, start_new_session=True)


@pytest.mark.slow
def test_a_killed_call_is_gone_on_with_shard_by_shard(tmp_path):
    table = corpus_of(tmp_path, lines=20_000)
    assert calling(tmp_path, table, 500).wait(120) == 0
    whole = content_of(tmp_path / "prepared")
    (tmp_path / "prepared").rename(tmp_path / "whole")
    process = calling(tmp_path, table, 500)
    notes, data = (tmp_path / "prepared.partial" / name for name in ("notes", "data"))
    deadline = time.time() + 60
    while len(list(notes.glob("train-*.json"))) < 5 and time.time() < deadline:
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


def test_what_was_begun_for_another_purpose_is_not_gone_on_with(tmp_path):
    for purpose, there in (("a", []), ("a", ["x"]), ("b", [])):
        with contextlib.suppress(KeyboardInterrupt), resumed_folder(tmp_path / "p", purpose) as beside:
            (beside / "data").mkdir(exist_ok=True)
            assert [path.name for path in (beside / "data").iterdir()] == there
            (beside / "data" / "x").touch()
            raise KeyboardInterrupt
    with resumed_folder(tmp_path / "p", "b") as beside:
        assert (beside / "data" / "x").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["p"]
    assert [path.name for path in (tmp_path / "p").iterdir()] == ["x"]


def test_what_a_call_that_was_killed_at_its_end_has_left_is_removed(tmp_path):
    settings = parse_config(corpus_of(tmp_path), "r")
    assert prepare(settings, processes=1)
    (tmp_path / "prepared.partial" / "notes").mkdir(parents=True)
    assert not prepare(settings, processes=1)
    assert not (tmp_path / "prepared.partial").exists()


def test_a_vocabulary_from_a_part_of_the_text_is_always_the_same(tmp_path):
    settings = parse_config(corpus_of(tmp_path, lines=3000, sample=500), "r")
    prepare(settings, processes=2)
    first = content_of(tmp_path / "prepared")
    (tmp_path / "prepared").rename(tmp_path / "first")
    prepare(settings, processes=2)
    assert content_of(tmp_path / "prepared") == first


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(tmp_path):
    code = "import resource; print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    peaks = []
    for lines in (20_000, 400_000):
        folder = tmp_path / str(lines)
        folder.mkdir()
        (folder / "call.py").write_text(CALL + "    " + code)
        table = json.dumps(corpus_of(folder, lines=lines, pairs=("ab-base",), sample=2000))
        command = [sys.executable, str(folder / "call.py"), table, str(1 << 17)]
        peaks.append(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    assert peaks[1] - peaks[0] < 20_000  # KB; the lines of 400,000 pairs are 60 MB of strings


# ------------------------------------------------------------------------------------------ damage


def test_a_damaged_shard_is_one_line_when_it_is_first_read(corpus, tmp_path, monkeypatch):
    config = small_config(corpus, monkeypatch, f"data.folder={tmp_path}/prepared")
    for split in ("train", "dev"):
        path = tmp_path / "prepared" / f"{split}-00000.bin"
        whole = path.read_bytes()
        for content in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:100] + b"?" + whole[101:], whole[:-50], None):
            path.unlink()
            if content is not None:
                path.write_bytes(content)
            what = r"damaged \(its checksum does not fit\)" if content is not None else "missing"
            match = rf"^.*{path.name}: is {what}; run 'multidds prepare' again\.$"
            with pytest.raises(DamagedError, match=match):
                train(config, tmp_path / split / "run", Silent())
            path.write_bytes(whole)
    assert train(config, tmp_path / "run", Silent()).finished


def test_a_shard_that_is_cut_while_it_is_open_is_one_line(tmp_path):
    settings = parse_config(corpus_of(tmp_path), "r")
    prepare(settings, processes=1)
    sentences = Sentences(Prepared(settings), "ab-base", "train")
    assert len(sentences.tokens(0)[0])
    os.truncate(tmp_path / "prepared" / "train-00000.bin", 10)
    with pytest.raises(
        DamagedError, match=r"train-00000.bin: is damaged \(it ends early\); run 'multidds prepare' again"
    ):
        sentences.tokens(200)


# ------------------------------------------------------------------------------------------ many


def test_few_files_are_open_however_many_there_are(tmp_path, monkeypatch):
    monkeypatch.setattr("multidds.nmt.prepare.shard_plan.LARGEST", 5)
    settings = parse_config(corpus_of(tmp_path), "r")
    prepare(settings, processes=1)
    assert len(list((tmp_path / "prepared").glob("train-*.bin"))) == 120
    monkeypatch.setattr(shards, "_OPEN", 3)
    ready = Prepared(settings)
    before = len(os.listdir("/proc/self/fd"))
    everything = [ready.stored(name, "train") for name in settings.data.names]
    rows = [[stored.tokens(i)[0].tolist() for i in range(300)] for stored in everything]
    assert len(os.listdir("/proc/self/fd")) <= before + 3
    tokens, offsets = ready.arrays("ab-base", "train", "source")
    assert rows[0] == [tokens[a:b].tolist() for a, b in pairwise(offsets)]


MANY = """
if __name__ == "__main__":
    import json, os
    from pathlib import Path
    from multidds import Mixture
    from multidds.nmt.batches.batch import Sentences, Stream
    from multidds.nmt.config.config import parse_config
    from multidds.nmt.prepare import Prepared, prepare

    pairs = [f"l{i:05}-base" for i in range(10_000)]
    columns = {f"l{i:05}": "text" for i in range(10_000)} | {"base": "text"}
    data = {"folder": "prepared", "pairs": pairs, "columns": columns, "format": "jsonl", "train": "t", "dev": "t"}
    vocabulary = {"kind": "joint", "size": 17, "sample": 300, "temperature": 1}
    config = parse_config({"data": data, "vocabulary": vocabulary}, "r")
    prepare(config, processes=1)
    ready = Prepared(config)
    sets = {s: {name: Sentences(ready, name, s) for name in pairs} for s in ("train", "dev")}
    mixture = Mixture.proportional({name: len(one) for name, one in sets["train"].items()})
    stream = Stream(sets["train"], mixture, tokens=2000, accumulate=1, pool=5, mixing="example", seed=1)
    seen = sum(stream.next(5)[1] for _ in range(5))
    read = sum(len(one.tokens(1)[0]) for one in sets["dev"].values())
    print(json.dumps([seen, read, len(os.listdir("/proc/self/fd")), len(list(Path("prepared").iterdir()))]))
"""


@pytest.mark.slow
def test_ten_thousand_pairs_need_few_files(tmp_path):
    (tmp_path / "many.py").write_text(MANY)
    lines = ["abc de fgh", "bca ed", "hgf abc bca de"]
    (tmp_path / "t").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))

    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    done = subprocess.run(
        [sys.executable, "many.py"], cwd=tmp_path, capture_output=True, text=True, preexec_fn=limit, timeout=600
    )
    assert done.returncode == 0, done.stderr
    seen, read, opened, files = json.loads(done.stdout)
    assert seen > 5
    assert read > 10_000
    assert opened < 40
    assert files < 20
