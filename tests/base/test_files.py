import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from multidds._base.errors import UserError
from multidds._base.files import locked, move_into_place, resumed_folder, whole_file, whole_folder, write_whole

FULL = OSError(errno.ENOSPC, "No space left on device")


def content(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def full_disk(monkeypatch):
    """What has been written does not reach the disk."""

    def fsync(handle):
        raise FULL

    monkeypatch.setattr(os, "fsync", fsync)


def test_a_file_is_text_or_bytes_with_folders_made_for_it(tmp_path):
    write_whole(tmp_path / "a" / "b.txt", "中文\n")
    write_whole(tmp_path / "a" / "c", b"\x00\r\n")
    assert content(tmp_path) == {"a/b.txt": "中文\n".encode(), "a/c": b"\x00\r\n"}


@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt()])
def test_after_an_error_the_old_file_stands_and_nothing_else(tmp_path, error):
    write_whole(tmp_path / "a", "old")

    def fail():
        with whole_file(tmp_path / "a") as partial:
            partial.write_text("half")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert content(tmp_path) == {"a": b"old"}


def test_on_a_full_disk_the_old_content_stands_and_nothing_else(tmp_path, full_disk):
    (tmp_path / "a").write_text("old")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c").write_text("old")
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "a", "new")
    with pytest.raises(OSError, match="No space left"), whole_folder(tmp_path / "b") as partial:
        (partial / "d").write_text("new")
    assert content(tmp_path) == {"a": b"old", "b/c": b"old"}


def test_a_folder_takes_the_place_of_another_with_all_its_files(tmp_path):
    for name in ("old", "new"):
        with whole_folder(tmp_path / "a") as partial:
            (partial / "inner").mkdir()
            (partial / "inner" / name).write_text(name)
            (tmp_path / "a.old").mkdir(exist_ok=True)  # of a process that was killed
    assert content(tmp_path) == {"a/inner/new": b"new"}
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_folder_that_cannot_move_in_leaves_the_old_one_there(tmp_path, monkeypatch):
    with whole_folder(tmp_path / "a") as partial:
        (partial / "old").write_text("old")

    def replace(self, target):
        raise OSError("no")

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(OSError, match="no"), whole_folder(tmp_path / "a") as partial:
        (partial / "new").write_text("new")
    assert content(tmp_path) == {"a/old": b"old"}


def test_what_moves_into_place_is_on_the_disk_before_and_after(tmp_path, monkeypatch):
    synced, real = [], os.fsync

    def fsync(handle):
        synced.append(os.readlink(f"/proc/self/fd/{handle}") if os.path.exists("/proc/self/fd") else "")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    (tmp_path / "a.partial" / "b").mkdir(parents=True)
    (tmp_path / "a.partial" / "b" / "c").write_text("c")
    move_into_place(tmp_path / "a.partial", tmp_path / "a")
    assert len(synced) == 4
    if synced[0]:
        names = [os.path.relpath(path, tmp_path) for path in synced]
        assert sorted(names[:2]) == ["a.partial/b", "a.partial/b/c"]
        assert names[2:] == ["a.partial", "."]


def test_a_lock_keeps_out_a_second_process_and_not_a_third(tmp_path):
    code = "import sys, pathlib, time; from multidds._base.files import locked\n" + (
        "with locked(pathlib.Path(sys.argv[1]), 'held'): print('mine', flush=True); time.sleep(60)"
    )
    path = tmp_path / "a.lock"
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "mine\n"
    with pytest.raises(UserError, match="^held$"), locked(path, "held"):
        pass
    child.kill()
    child.communicate()
    assert path.exists()  # left by a process that is dead
    with locked(path, "held"), pytest.raises(UserError, match="^twice$"), locked(path, "twice"):
        pass
    assert not path.exists()


def test_a_folder_is_resumed_for_the_same_purpose_only(tmp_path):
    for purpose, there in (("a", []), ("a", ["x"]), ("b", [])):
        with contextlib.suppress(KeyboardInterrupt), resumed_folder(tmp_path / "p", purpose) as beside:
            (beside / "data").mkdir(exist_ok=True)
            assert [path.name for path in (beside / "data").iterdir()] == there
            (beside / "data" / "x").touch()
            raise KeyboardInterrupt
    with resumed_folder(tmp_path / "p", "b") as beside:
        assert (beside / "data" / "x").exists()
    assert content(tmp_path) == {"p/x": b""}


LIMITED = """
import resource, shutil, sys
from pathlib import Path
from multidds._base.files import whole_folder
source, target = map(Path, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    with whole_folder(target) as partial:
        shutil.copyfile(source, partial / "vocabulary")
except OSError as error:
    print(error.filename, error.filename2)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no limits of file sizes")
def test_a_copy_to_a_full_disk_names_the_place_that_is_full(tmp_path):
    """The size of files is limited, which fails as a full disk does."""
    (tmp_path / "prepared").write_bytes(b"x" * 100_000)
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "prepared"), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{tmp_path / 'run'} None\n"


def test_a_link_in_the_place_of_a_new_file_is_not_followed(tmp_path):
    (tmp_path / "other").write_text("precious")
    (tmp_path / "report.html.partial").symlink_to(tmp_path / "other")
    write_whole(tmp_path / "report.html", "page")
    assert (tmp_path / "other").read_text() == "precious"
    assert (tmp_path / "report.html").read_text() == "page"
    assert not (tmp_path / "report.html").is_symlink()
