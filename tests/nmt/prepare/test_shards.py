import contextlib
import hashlib
import os
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multidds.nmt.prepare.shard_files import ShardFiles, ShardWriter, stored_pairs
from multidds.nmt.prepare.shard_plan import LARGEST, SHARDS, SMALLEST, cut, lines_per_shard

SENTENCES = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.lists(st.integers(0, 60000), min_size=1, max_size=6),
        st.lists(st.integers(0, 60000), min_size=1, max_size=6),
    ),
    min_size=1,
    max_size=30,
)


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
