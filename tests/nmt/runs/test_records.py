import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_runs import lines_of, some_record, write_records
from odd_names import NAMES
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toys import batches, loss, mlp

from multidds import Balancer, Mixture
from multidds._base.errors import DamagedError, UserError
from multidds.history import moments_of
from multidds.nmt.runs import checkpoints
from multidds.nmt.runs.record_files import FILE, Follower, Records, read_records, record_line
from multidds.nmt.runs.records import Started, Stepped, Updated, Validated
from multidds.nmt.runs.tensorboard import scalars

STEP = Stepped(step=3, loss=5.0, lr=0.1, tokens=7, tokens_per_second=99.0)


def written(run, *records, offset=0, step=0):
    writer = Records(run, offset, step)
    for record in records:
        writer.write(record)
    end = writer.flushed()
    writer.close()
    return end


def on_tensorboard(run):
    """{tag: [(step, value), ...]}"""
    board = EventAccumulator(str(run / "tensorboard"))
    board.Reload()
    return {tag: [(event.step, event.value) for event in board.Scalars(tag)] for tag in board.Tags()["scalars"]}


def made_update(names):
    """What a balancer found, and the record of it."""
    balancer = Balancer(Mixture.uniform(names), mlp(), loss, train=batches(names), dev=batches(names, seed=1), every=1)
    update = balancer.step()
    facts = {"skipped": None, "notes": [], "seconds": 0.5, **update.facts()}
    return update, Updated(step=1, **update.groups(), passes=dict.fromkeys(names, 1.0), **facts)


def test_records_are_read_as_they_were_written(tmp_path):
    records = [Started(step=0, mixture={"中\n文 \u2028 \u2029 \x85": 1.0}), STEP, made_update(NAMES)[1]]
    written(tmp_path, *records)
    assert read_records(tmp_path) == records
    assert (tmp_path / FILE).read_bytes().isascii()
    assert moments_of(tmp_path)[0].mixture == records[0].mixture


def test_numbers_that_are_not_finite_are_read_back(tmp_path):
    written(tmp_path, STEP.model_copy(update={"loss": math.nan, "lr": math.inf}))
    (record,) = read_records(tmp_path)
    assert math.isnan(record.loss)
    assert record.lr == math.inf


def test_tensorboard_and_every_log_have_the_same_words_for_an_update(tmp_path):
    update, record = made_update(NAMES)
    expected = update.scalars(passes=record.passes)
    own = {"update/seconds": 0.5}
    assert scalars(record) == {**expected, **own}
    written(tmp_path, record)
    found = on_tensorboard(tmp_path)
    assert found.keys() == {*expected, *own}
    assert found["mixture/my set"] == [(1, pytest.approx(expected["mixture/my set"]))]


def test_a_validation_and_a_probe_do_not_share_a_tag():
    record = some_record("validation", 3, dev_loss={"a/b": 1.0}, clock={"steps": 2.0})
    tags = scalars(Validated(**record))
    assert tags["validation/dev_loss/a/b"] == 1.0
    assert tags["validation/clock/steps"] == 2.0
    assert all(tag.startswith("validation/") for tag in tags)


def test_a_resumed_run_cuts_back_its_records_and_tensorboard(tmp_path):
    end = written(tmp_path, STEP)
    written(tmp_path, STEP.model_copy(update={"step": 6, "loss": 1.0}), offset=end, step=3)
    written(tmp_path, STEP.model_copy(update={"step": 6, "loss": 2.0}), offset=end, step=3)
    assert [(record.step, record.loss) for record in read_records(tmp_path)] == [(3, 5.0), (6, 2.0)]
    assert on_tensorboard(tmp_path)["step/loss"] == [(3, 5.0), (6, 2.0)]


@pytest.mark.parametrize(
    "line",
    [
        b"no JSON",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        json.dumps(some_record("step", 1)).encode(),
        record_line(json.dumps(some_record("step", 1)), before=7)[0].rstrip().encode(),
    ],
)
def test_what_is_not_a_whole_line_is_refused_by_its_number(tmp_path, line):
    whole = lines_of([some_record("step", 1), some_record("step", 2)]).encode().splitlines(keepends=True)
    (tmp_path / FILE).write_bytes(whole[0] + line + b"\n" + whole[1])
    with pytest.raises(DamagedError, match=r"records.jsonl:2: is damaged"):
        read_records(tmp_path)
    assert [record.step for record in Follower(tmp_path).read()[1]] == [1]  # who reads along goes no further


@pytest.mark.parametrize(
    "record",
    [{"kind": "start"}, {"kind": "other", "step": 1}, some_record("step", 1, unknown=1), some_record("step", "x")],
)
def test_what_is_not_a_record_is_refused_by_its_line(tmp_path, record):
    write_records(tmp_path, [some_record("step", 1), record])
    with pytest.raises(UserError, match=r"records.jsonl:2: is not a record\.$"):
        read_records(tmp_path)


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_no_byte_of_the_records_can_change_unnoticed(tmp_path_factory, place, change):
    run = tmp_path_factory.mktemp("run")
    write_records(run, [some_record("step", step) for step in range(5)])
    content = bytearray((run / FILE).read_bytes())
    content[place % len(content)] ^= change
    (run / FILE).write_bytes(content)
    with pytest.raises(DamagedError, match="records.jsonl:?.* is damaged"):
        read_records(run)


@pytest.mark.parametrize("lines", [[0, 1, 3, 4], [0, 2, 1, 3, 4], [0, 1, 1, 2, 3, 4], [1, 2, 3, 4]])
def test_a_line_that_is_missing_moved_or_doubled_is_noticed(tmp_path, lines):
    whole = lines_of([some_record("step", step) for step in range(5)]).splitlines(keepends=True)
    (tmp_path / FILE).write_text("".join(whole[i] for i in lines))
    with pytest.raises(DamagedError, match="a line before it is missing"):
        read_records(tmp_path)


def test_records_that_end_before_their_checkpoint_are_damaged(tmp_path):
    end = written(tmp_path, STEP, STEP)
    path = tmp_path / "checkpoints" / "step-00000003.safetensors"
    checkpoints.write(path, {"x": torch.zeros(3)}, {"records": end})
    assert len(read_records(tmp_path)) == 2
    content = (tmp_path / FILE).read_bytes()
    for left in (content[: end // 2], content[:-1], b""):
        (tmp_path / FILE).write_bytes(left)
        message = rf"records.jsonl: is damaged \(of the {end} bytes that a checkpoint counts on, {len(left)} are there"
        with pytest.raises(DamagedError, match=message):
            read_records(tmp_path)
        with pytest.raises(DamagedError, match=message):
            Records(tmp_path, end, 3)
    assert (tmp_path / FILE).read_bytes() == b""  # what is there was not touched


def test_lost_records_are_noticed_although_the_checkpoint_is_damaged_too(tmp_path):
    end = written(tmp_path, STEP, STEP)
    path = tmp_path / "checkpoints" / "step-00000003.safetensors"
    checkpoints.write(path, {"x": torch.zeros(3)}, {"records": end})
    path.write_bytes(path.read_bytes()[:50])
    content = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(content[: content.index(b"\n") + 1])
    with pytest.raises(DamagedError, match=r"records.jsonl: may have lost .*step-00000003.safetensors: is damaged"):
        read_records(tmp_path)
    write_records(tmp_path, [some_record("validation", 3, finished="3 steps")])
    assert len(read_records(tmp_path)) == 1  # the end of the run is there, so nothing is missing


@given(st.integers(0, 400), st.integers(0, 400))
def test_a_half_written_line_waits_until_it_is_whole(tmp_path_factory, first, second):
    run = tmp_path_factory.mktemp("run")
    content = lines_of([some_record("step", step) for step in range(5)]).encode()
    follower, found = Follower(run), []
    for end in (*sorted((first, second)), len(content)):
        (run / FILE).write_bytes(content[:end])
        assert [record.step for record in read_records(run)] == list(range(content[:end].count(b"\n")))
        again, new = follower.read()
        assert not again
        found += [record.step for record in new]
    assert found == list(range(5))


def test_records_that_were_cut_back_are_read_again(tmp_path):
    follower = Follower(tmp_path)
    assert follower.read() == (False, [])
    end = written(tmp_path, STEP)
    written(tmp_path, STEP, offset=end)
    assert follower.read() == (False, [STEP, STEP])
    written(tmp_path, offset=end)
    assert follower.read() == (True, [STEP])
    assert follower.read() == (False, [])


def test_records_cut_back_and_grown_between_two_looks_are_read_again(tmp_path):
    follower, other = Follower(tmp_path), STEP.model_copy(update={"tokens_per_second": 12.5})
    end = written(tmp_path, STEP)
    written(tmp_path, STEP, offset=end)
    follower.read()
    written(tmp_path, other, other, offset=end)
    assert follower.read() == (True, [STEP, other, other])
    assert follower.read() == (False, [])


def test_a_folder_without_records_is_not_a_run(tmp_path):
    with pytest.raises(UserError, match=r"is not a run \(there is no records.jsonl\)\.$"):
        read_records(tmp_path)
