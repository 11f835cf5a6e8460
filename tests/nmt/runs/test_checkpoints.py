import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_runs import flipped
from safetensors.torch import load_file

from multidds._base.errors import DamagedError, UserError
from multidds.nmt.runs import checkpoints

STATE = {"records": {"records.jsonl": 0}, "checksum": "0" * 64, 'odd "checksum":"': "0" * 64}
TENSORS = {
    "checksum": torch.arange(5.0),
    "b": torch.arange(6).reshape(2, 3).t(),
    "scalar": torch.tensor(3.5),
    "empty": torch.zeros(0, 2),
    "flags": torch.tensor([True, False]),
}


def same(found):
    tensors, state = found
    names = tensors.keys() == TENSORS.keys()
    return names and state == STATE and all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "a.safetensors"
    checkpoints.write(path, TENSORS, STATE)
    assert same(checkpoints.read(path))
    arrays, _ = checkpoints.read(path, "numpy")
    assert {name: array.shape for name, array in arrays.items()} == {name: t.shape for name, t in TENSORS.items()}
    return path.read_bytes()


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_no_byte_of_a_checkpoint_can_change_unnoticed(checkpoint, tmp_path_factory, place, change):
    path = tmp_path_factory.mktemp("damaged") / "a.safetensors"
    path.write_bytes(checkpoint)
    flipped(path, place, change)
    for use in (checkpoints.check, checkpoints.read):
        with pytest.raises(DamagedError, match="a.safetensors: is damaged"):
            use(path)


def test_white_space_at_the_end_of_the_header_counts_too(checkpoint, tmp_path):
    (tmp_path / "a.safetensors").write_bytes(checkpoint.replace(b"}} ", b"}}\n"))
    with pytest.raises(DamagedError, match="a.safetensors: is damaged"):
        checkpoints.check(tmp_path / "a.safetensors")


@given(st.integers(0, 10**6), st.binary(max_size=9))
def test_a_checkpoint_of_another_length_is_damaged(checkpoint, tmp_path_factory, left, more):
    path = tmp_path_factory.mktemp("damaged") / "a.safetensors"
    for content in (checkpoint[: left % len(checkpoint)], checkpoint + more + b"x", more + checkpoint + b"x"):
        path.write_bytes(content)
        with pytest.raises(DamagedError, match="is damaged"):
            checkpoints.read(path)


def test_the_newest_whole_checkpoint_is_found(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    assert checkpoints.newest(tmp_path) is None
    for step in (3, 20, 100):
        checkpoints.write(tmp_path / "checkpoints" / f"step-{step}.safetensors", TENSORS, {"step": step})
    newest = checkpoints.listed(tmp_path)
    assert [checkpoints.step_of(path) for path in newest] == [3, 20, 100]
    flipped(newest[-1], -1)
    found = checkpoints.newest(tmp_path)
    assert found.state == {"step": 20}
    assert ["step-100.safetensors: is damaged" in line for line in found.passed_over] == [True]
    checkpoints.prune(tmp_path, keep=1, step=20)
    assert [checkpoints.step_of(path) for path in checkpoints.listed(tmp_path)] == [20]
    flipped(newest[1], -1)
    with pytest.raises(DamagedError, match="step-20.safetensors: is damaged .* No older checkpoint"):
        checkpoints.newest(tmp_path)


def test_a_checkpoint_needs_the_folder_of_its_run(tmp_path):
    for path in (tmp_path / "run" / "best.safetensors", tmp_path / "run" / "checkpoints" / "step-1.safetensors"):
        with pytest.raises(UserError, match="run: the folder is gone"):
            checkpoints.write(path, {"a": torch.zeros(1)}, {})
    assert not (tmp_path / "run").exists()


def test_equal_contents_are_equal_bytes_that_the_library_can_read(tmp_path):
    paths = [tmp_path / f"{i}.safetensors" for i in range(6)]
    for i, path in enumerate(paths):
        names = list(TENSORS)[i % 5 :] + list(TENSORS)[: i % 5]
        checkpoints.write(path, {name: TENSORS[name] for name in names}, STATE)
    assert len({path.read_bytes() for path in paths}) == 1
    tensors = load_file(paths[0])
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
