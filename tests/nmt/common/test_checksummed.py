import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import flipped

from multidds._base.errors import DamagedError, UserError
from multidds.nmt.common.checksummed import (
    check_digest,
    checksummed,
    read_checksummed,
    read_own_folder,
    sha256,
    write_checksummed,
)

FACTS = st.dictionaries(st.text(min_size=1, max_size=5), st.integers() | st.text(max_size=9), min_size=1, max_size=4)


@given(FACTS)
def test_a_checksummed_file_is_json_and_reads_back(tmp_path_factory, facts):
    path = tmp_path_factory.mktemp("checksummed") / "a.json"
    write_checksummed(path, facts)
    assert read_checksummed(path, "x") == facts
    assert json.loads(path.read_text(encoding="utf-8")).keys() == {*facts, "checksum"}


@given(FACTS, st.integers(0, 10**6), st.integers(1, 255))
def test_no_byte_of_a_checksummed_file_can_change_unnoticed(tmp_path_factory, facts, place, change):
    path = tmp_path_factory.mktemp("checksummed") / "a.json"
    path.write_bytes(checksummed(facts))
    flipped(path, place, change)
    with pytest.raises(DamagedError, match=r"a\.json: is damaged.*; make it again\.$"):
        read_checksummed(path, "make it again.")


@given(st.integers(0, 10**6))
def test_a_checksummed_file_cannot_lose_its_end_unnoticed(tmp_path_factory, left):
    path = tmp_path_factory.mktemp("checksummed") / "a.json"
    content = checksummed({"a": 1, "checksum of b": "c" * 64})
    path.write_bytes(content[: left % len(content)])
    with pytest.raises(DamagedError, match="a.json: is damaged"):
        read_checksummed(path, "x")


def test_a_digest_is_that_of_the_file(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    digest = sha256(tmp_path / "a")
    assert digest == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    check_digest(tmp_path / "a", digest, "x")
    (tmp_path / "a").write_bytes(b"abd")
    with pytest.raises(DamagedError, match=r"a: is damaged .*; do that\.$"):
        check_digest(tmp_path / "a", digest, "do that.")
    for read in (lambda path: check_digest(path, digest, "do that."), lambda path: read_checksummed(path, "do that.")):
        with pytest.raises(DamagedError, match="b: is missing; do that"):
            read(tmp_path / "b")
    with pytest.raises(UserError, match="b: there is no such file"):
        sha256(tmp_path / "b")


def test_a_folder_of_ours_holds_the_files_of_its_manifest(tmp_path):
    def read():
        return read_own_folder(tmp_path / "a", "m.json", "our command", "x")

    assert read() is None
    (tmp_path / "a" / "empty").mkdir(parents=True)
    assert read() is None
    (tmp_path / "a" / "b").mkdir()
    (tmp_path / "a" / "b" / "c").touch()
    with pytest.raises(UserError, match="a: holds 'b/c', which 'our command' did not make"):
        read()
    write_checksummed(tmp_path / "a" / "m.json", {"files": {"b/c": "0"}})
    assert read() == {"files": {"b/c": "0"}}
    (tmp_path / "a" / "b" / "link").symlink_to(tmp_path)
    with pytest.raises(UserError, match="a: holds 'b/link'"):
        read()
