import gzip
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multidds._base.errors import UserError
from multidds.nmt.config import parse_config
from multidds.nmt.prepare.text_files import files_of, read_columns, read_pairs, scan

PAIRS = [("a b", "x y"), ("c d", "z"), ("", "w"), ("e\u2028f\x85g", "v\x0bu")]
TEXT = st.lists(st.sampled_from([b"a", b"bc d", b"", b" ", "é\u2028".encode(), b"\r", b"x\x1f"]), max_size=40)


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


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_half_a_surrogate_pair_is_named_in_every_split(tmp_path, split):
    whole = {"src": "good \U0001f600", "tgt": "x"}
    lines = [json.dumps(whole)] * 3 + [json.dumps({"src": "a", "tgt": "good \ud83d"})]
    path = written(tmp_path, "t.jsonl", "\n".join(lines), compress=False)
    data = config(tmp_path, format="jsonl", **{split: str(path)}).data
    rows = read_pairs(data, data.pairs[0], split)
    assert [next(rows) for _ in range(3)] == [("good \U0001f600", "x")] * 3
    with pytest.raises(UserError, match=r"t.jsonl:4: '\\ud83d' at 'tgt'"):
        next(rows)


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
