import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_runs import lines_of, some_record, write_records
from odd_names import NAMES
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toys import batches, loss, mlp

from multidds import Balancer, Mixture, Update
from multidds._base.errors import DamagedError, UserError
from multidds.history import PLAIN, evaluations_of, moments_of
from multidds.nmt.runs import checkpoints
from multidds.nmt.runs.record_files import FILE, Follower, Records, read_lines, read_records
from multidds.nmt.runs.records import Started, Stepped, Validated
from multidds.nmt.runs.tensorboard import scalars

STEP = Stepped(step=3, loss=5.0, lr=0.1, tokens=7, tokens_per_second=99.0)


def written(run, *records, sizes=None, step=0):
    writer = Records(run, sizes or {}, step)
    for record in records:
        if isinstance(record, Update):
            writer.write_update(record, dict.fromkeys(record.mixture, 1.0))
        else:
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
    """What a balancer found."""
    balancer = Balancer(Mixture.uniform(names), mlp(), loss, train=batches(names), dev=batches(names, seed=1), every=1)
    return balancer.step()


def test_records_are_read_as_they_were_written(tmp_path):
    writer, names = Records(tmp_path, {}, 0), dict.fromkeys(NAMES, 1 / len(NAMES))
    writer.start(names, run=None)
    update = made_update(NAMES)
    writer.write_update(update, passes=dict.fromkeys(NAMES, 2.0))
    validated = Validated(**some_record("validation", 3, dev_loss=dict.fromkeys(NAMES, 1.5)))
    for record in (STEP, validated):
        writer.write(record)
    writer.close()
    assert read_records(tmp_path) == [Started(step=0), STEP, validated]
    assert all((tmp_path / name).read_bytes().isascii() for name in (FILE, PLAIN))
    start, moment = moments_of(tmp_path)
    assert (start.step, start.mixture) == (0, names)
    assert (moment.step, moment.mixture, moment.groups["reward"]) == (1, update.mixture, update.rewards)
    assert moment.groups["passes"] == dict.fromkeys(NAMES, 2.0)
    assert evaluations_of(tmp_path) == {name: [(3, 1.5)] for name in NAMES}


def test_numbers_that_are_not_finite_are_read_back(tmp_path):
    written(tmp_path, STEP.model_copy(update={"loss": math.nan, "lr": math.inf}))
    (record,) = read_records(tmp_path)
    assert math.isnan(record.loss)
    assert record.lr == math.inf


def test_tensorboard_and_every_log_have_the_same_words_for_an_update(tmp_path):
    update = made_update(NAMES)
    expected = update.scalars(passes=dict.fromkeys(NAMES, 1.0))
    written(tmp_path, update)
    found = on_tensorboard(tmp_path)
    assert found.keys() == expected.keys()
    assert found["mixture/my set"] == [(1, pytest.approx(expected["mixture/my set"]))]


def test_a_validation_and_a_probe_do_not_share_a_tag():
    record = some_record("validation", 3, dev_loss={"a/b": 1.0}, clock={"steps": 2.0})
    tags = scalars(Validated(**record))
    assert tags["validation/dev_loss/a/b"] == 1.0
    assert tags["validation/clock/steps"] == 2.0
    assert all(tag.startswith("validation/") for tag in tags)


def test_a_resumed_run_cuts_back_its_records_and_tensorboard(tmp_path):
    end = written(tmp_path, STEP)
    update = made_update(NAMES)
    for value in (1.0, 2.0):
        late = replace(update, step=6, rewards=dict.fromkeys(NAMES, value))
        written(tmp_path, late, STEP.model_copy(update={"step": 6, "loss": value}), sizes=end, step=3)
    (moment,) = moments_of(tmp_path)
    assert (moment.step, moment.groups["reward"]) == (6, dict.fromkeys(NAMES, 2.0))
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
        lines_of([some_record("step", 7), some_record("step", 1)]).splitlines()[1].encode(),
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
    size = end[FILE]
    for left in (content[: size // 2], content[:-1], b""):
        (tmp_path / FILE).write_bytes(left)
        message = rf"records.jsonl: is damaged \(of the {size} bytes that a checkpoint counts on, {len(left)} are there"
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
    written(tmp_path, STEP, sizes=end)
    assert follower.read() == (False, [STEP, STEP])
    written(tmp_path, sizes=end)
    assert follower.read() == (True, [STEP])
    assert follower.read() == (False, [])


def test_records_cut_back_and_grown_between_two_looks_are_read_again(tmp_path):
    follower, other = Follower(tmp_path), STEP.model_copy(update={"tokens_per_second": 12.5})
    end = written(tmp_path, STEP)
    written(tmp_path, STEP, sizes=end)
    follower.read()
    written(tmp_path, other, other, sizes=end)
    assert follower.read() == (True, [STEP, other, other])
    assert follower.read() == (False, [])


@pytest.mark.parametrize("damage", ["a number", "a line", "the end"])
def test_damage_of_the_updates_is_noticed_by_every_reader(tmp_path, damage):
    update = made_update(NAMES)
    end = written(tmp_path, update, replace(update, step=2), replace(update, step=3))
    checkpoints.write(tmp_path / "checkpoints" / "step-00000003.safetensors", {"x": torch.zeros(3)}, {"records": end})
    assert len(read_lines(tmp_path, PLAIN)) == len(moments_of(tmp_path)) == 3
    path = tmp_path / PLAIN
    content, (first, second, third) = path.read_bytes(), path.read_bytes().splitlines(keepends=True)
    path.write_bytes(
        {"a number": content.replace(b"0.", b"1.", 1), "a line": first + third, "the end": first + second}[damage]
    )
    with pytest.raises(DamagedError, match=r"mixture\.jsonl.*is damaged"):
        read_lines(tmp_path, PLAIN)
    with pytest.raises(DamagedError, match=r"mixture\.jsonl.*is damaged"):
        Records(tmp_path, end, 3)
    if damage != "the end":  # which only a checkpoint can say
        with pytest.raises(ValueError, match=r"mixture\.jsonl:\d: is damaged"):
            moments_of(tmp_path)


def test_a_folder_without_records_is_not_a_run(tmp_path):
    with pytest.raises(UserError, match=r"is not a run \(there is no records.jsonl\)\.$"):
        read_records(tmp_path)
