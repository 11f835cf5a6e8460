"""Histories: in memory, in files of every trainer, written and read."""

import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from updates import updates

from multidds._base.chain import Chain
from multidds.history import Moment, append_update, evenly, moments_of, save_history, shares_of
from multidds.probes import Table


def test_the_package_imports_no_torch():
    code = "import multidds.history, sys; print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "False"]


# --------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("most", [2, 3, 10, 99])
def test_points_are_thinned_to_even_distances_between_both_ends(most):
    for count in (1, most, most + 1, 3 * most + 1):
        kept = evenly(range(count), most)
        assert min(count, most / 2) <= len(kept) <= most
        assert (kept[0], kept[-1]) == (0, count - 1)
        gaps = [b - a for a, b in pairwise(kept)]
        assert len(set(gaps[:-1])) <= 1


def test_points_are_thinned_by_position():
    steps = [*range(100), 150, 200]
    assert evenly(steps, 5, at=lambda step: step) == [0, 64, 150, 200]
    assert evenly([7] * 100, 5, at=lambda step: step) == [7, 7]


def test_a_series_that_grows_stays_evenly_spaced():
    for every in (1, 30):
        kept = []
        for update in range(1000):
            kept = evenly([*kept, every * (update + 1)], 10, at=lambda step: step)
            assert len(kept) <= 10
        cell = 128 * every  # of 999 / 9 = 111 updates or more
        assert [step for step in kept if (step - every) % cell == 0] == [every + i * cell for i in range(8)]
        assert (kept[0], kept[-1]) == (every, 1000 * every)


@pytest.mark.parametrize(("datasets", "most"), [(3, 100), (10_000, 20), (200_000, 2)])
def test_a_history_in_memory_is_bounded(datasets, most):
    history = []
    (first,) = updates(range(datasets), count=1)
    for step in range(1, 2 * most):
        append_update(history, replace(first, step=step))
    assert most / 2 <= len(history) <= most
    assert (history[0].step, history[-1].step) == (1, 2 * most - 1)


@pytest.mark.parametrize(("size", "stays"), [(64, True), (65, False)])
def test_a_large_table_does_not_stay_in_memory(size, stays):
    names = tuple(map(str, range(size)))
    zeros = torch.zeros(size, size)
    table = Table(names, names, zeros, zeros, zeros[0])
    history = []
    shares = dict.fromkeys(names, 1 / size)
    relevance = {name: dict.fromkeys(names, (1.0, 0.1)) for name in names}
    given = updates(names, alignment=table, weights=shares, relevance=relevance)
    append_update(history, given[0])
    assert (history[0].alignment is table) == (history[0].relevance is relevance) == stays


# ---------------------------------------------------------------------------------------------------------- files


def numbers(moments):
    wanted = ("mixture", "reward", "noise", "dev_loss")
    return [(moment.step, {group: moment.groups[group] for group in wanted}, moment.facts) for moment in moments]


def test_a_history_is_the_same_in_the_files_of_every_trainer(tmp_path):
    given = updates(prior={"a": 0.2, "b": 0.2, "c": 0.6}, drift=0.3, signal=0.5)
    flat = [update.scalars() for update in given]
    run = tmp_path / "run"
    run.mkdir()
    lines, chain = [json.dumps({"step": update.step} | update.groups() | update.facts()) for update in given], Chain()
    checked = "".join(map(chain.written, lines))
    (run / "mixture.jsonl").write_text(checked + '{"step": 60, "mix')  # the last line is being written
    (tmp_path / "own.jsonl").write_text("\n".join([*lines, ""]))
    for number in (9, 40):  # of two checkpoints the later one, by number
        checkpoint = tmp_path / "trainer" / f"checkpoint-{number}"
        checkpoint.mkdir(parents=True)
        log = [{"step": 5, "loss": 2.0}]
        log += [{"step": u.step, "epoch": 0.1} | row for u, row in zip(given, flat, strict=True) if u.step <= number]
        (checkpoint / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    version = tmp_path / "lightning" / "version_0"
    version.mkdir(parents=True)
    rows = [["step", "train_loss", *flat[0]], ["3", "2.5", *[""] * len(flat[0])]]
    rows += [[u.step, "", *row.values()] for u, row in zip(given, flat, strict=True)]
    (version / "metrics.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in rows))

    expected = numbers(moments_of(given))
    assert expected[0][2] == {"signal": 0.5, "drift": 0.3, "learned": 0.0, "unlearned": 0.0}
    assert numbers(moments_of(run)) == numbers(moments_of(str(tmp_path / "own.jsonl"))) == expected
    assert numbers(moments_of(tmp_path / "trainer")) == expected[:4]
    assert numbers(moments_of(tmp_path / "lightning")) == expected


def test_a_share_that_a_log_left_out_is_the_one_before_or_the_next():
    moments = [Moment(s, {"mixture": m}) for s, m in ((0, {"a": 0.5}), (1, {"b": 0.2}), (2, {"a": 0.4, "b": 0.3}))]
    assert shares_of(moments, "a") == [0.5, 0.5, 0.4]
    assert shares_of(moments, "b") == [0.2, 0.2, 0.3]


def test_a_saved_history_is_read_back_and_continues_after_a_resume(tmp_path):
    start = {"a": 0.5, "b": 0.5}
    given = updates("ab", prior=start, signal=0.5)
    save_history(given[:2], tmp_path, start=start)  # a folder: mixture.jsonl
    save_history(given[1:4], tmp_path / "mixture.jsonl", start=start)
    save_history(given[2:], tmp_path, passes={"a": 3.0, "b": 4.0})  # resumed at step 25: step 40 comes again
    first, *moments = moments_of(tmp_path)
    assert (first.step, first.mixture, first.prior) == (0, start, start)
    assert numbers(moments) == numbers(moments_of(given))
    assert moments[-1].groups["passes"] == {"a": 3.0, "b": 4.0}
    assert not list(tmp_path.glob(".*"))
    with pytest.raises(ValueError, match=r"mixture\.jsonl.*other datasets"):
        save_history(updates("abc"), tmp_path)


def test_a_history_is_saved_in_a_folder_that_is_made_or_in_a_file_that_is_called_so(tmp_path):
    folder = tmp_path / "runs" / "x.1"
    save_history([], folder)  # before training
    assert folder.is_dir()
    for path in (folder, str(tmp_path / "new" / "own.jsonl")):
        save_history(updates("ab", count=1), path)
        assert len(moments_of(path)) == 1
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["mixture.jsonl", "own.jsonl"]
    (tmp_path / "odd.jsonl").mkdir()
    save_history(updates("ab", count=1), tmp_path / "odd.jsonl")
    assert (tmp_path / "odd.jsonl" / "mixture.jsonl").is_file()
    (tmp_path / "x").touch()
    with pytest.raises(ValueError, match=r"x is a file.*\.jsonl"):
        save_history([], tmp_path / "x")


@pytest.mark.parametrize("odd", ["\u2028", "\u2029", "\x85", "\ud800", "\n", "\x0b", "中文"])
def test_any_name_of_a_dataset_is_read_back(tmp_path, odd):
    names = (f"a{odd}", f"{odd}b")
    given = updates(names)
    for _ in range(2):
        save_history(given, tmp_path)
        assert numbers(moments_of(tmp_path)) == numbers(moments_of(given))
    assert (tmp_path / "mixture.jsonl").read_bytes().isascii()


def test_every_group_of_an_update_is_read_back_and_stays_in_the_file(tmp_path):
    more = {"worth": {"a": (0.5, 0.1), "b": (-0.2, float("nan"))}, "held": {"a": 16.0}}
    more |= {"proposed": {"a": 0.4, "b": 0.6}}
    more |= {"train_losses": {"a": 1.0, "b": 2.0}, "weights": {"x": 1.0}}
    given = updates("ab", **more)
    for _ in range(2):  # the second time beside what is there
        save_history(given, tmp_path, passes={"a": 3.0, "b": 4.0})
    groups = {**given[0].groups(), "worth_error": {"a": 0.1}}
    first, *_, last = moments_of(tmp_path)
    assert first.groups == groups
    assert last.groups.keys() == {*groups, "passes"}


def test_a_file_keeps_updates_that_the_memory_dropped(tmp_path):
    given = updates("ab", count=6)
    for count in range(1, 7):
        kept = given[:count] if count < 4 else [given[0], *given[count - 2 : count]]
        save_history(kept, tmp_path, start={"a": 0.5, "b": 0.5})
    assert [moment.step for moment in moments_of(tmp_path)] == [0, 10, 20, 30, 40, 50, 60]
    save_history([replace(update, mixture={"a": 0.9, "b": 0.1}) for update in given[3:5]], tmp_path)  # not exactly
    assert [moment.step for moment in moments_of(tmp_path)] == [0, 10, 20, 30, 40, 50]
    assert moments_of(tmp_path)[-1].mixture["a"] == 0.9


class Saved:
    """A balancer as `save_history` sees it."""

    def __init__(self, history):
        self.history, self.start = history, {"a": 0.9, "b": 0.1}


def test_a_balancer_saves_its_start_and_its_tables(tmp_path):
    products, norms = torch.tensor([[1.0, -1.0]]), torch.tensor([2.0, 1.0])
    table = Table(("a", "b"), ("x",), products, torch.eye(1), norms)
    save_history(Saved(updates("ab", count=1, alignment=table)), tmp_path / "other.jsonl")
    first, second = moments_of(tmp_path / "other.jsonl")
    assert first.mixture == {"a": 0.9, "b": 0.1}
    assert second.relevance == {"x": {"a": (0.5, None), "b": (-1.0, None)}}


def test_a_file_of_ten_thousand_datasets_stays_small(tmp_path):
    names = [f"d{i:05}" for i in range(10_000)]
    start = dict.fromkeys(names, 1e-4)
    given = updates(names, count=60, moving=1e-6, prior=start)
    for part in (given[:59], given[59:]):
        save_history(part, tmp_path, start=start)
    moments = moments_of(tmp_path)
    assert 25 <= len(moments) <= 50
    assert [moments[0].step, moments[-1].step] == [0, 600]
    assert len(moments[-1].mixture) == 10_000
    assert len(moments[-1].groups["reward"]) == 64
    assert {names[0], names[-1]} <= moments[-1].groups["reward"].keys()
    assert (tmp_path / "mixture.jsonl").stat().st_size < 15_000_000


def test_damaged_files_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"mixture\.jsonl, trainer_state\.json"):
        moments_of(tmp_path)
    (tmp_path / "mixture.jsonl").write_text('{"step": 0, "mixture": {"a": 1.0}}\n[1]\n')
    with pytest.raises(ValueError, match=r"mixture\.jsonl:2.*'\[1\]'"):
        moments_of(tmp_path)
    lines = [json.dumps({"step": step, "mixture": {"a": 0.5, "b": 0.5}}) for step in range(3)]
    written = "".join(map(Chain().written, lines))
    path = tmp_path / "mixture.jsonl"
    for damaged, place in (
        (written.replace("0.5", "0.6", 1), 1),
        (written.partition("\n")[2], 1),  # a line is missing
        (written + lines[0] + "\n", 4),  # a line has no checksum
    ):
        path.write_text(damaged)
        with pytest.raises(ValueError, match=rf"mixture\.jsonl:{place}.*checksum"):
            moments_of(tmp_path)
