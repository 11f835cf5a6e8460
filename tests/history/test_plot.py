"""Histories from everywhere they are written, and the picture of them: read off its parts, not off "
"its pixels."""

import io
import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest
from made_runs import lines_of, write_records
from toys import batches, loss, mlp

from multidds import Anchored, Balancer, Mixture, Replay, Update, plot, save_history
from multidds.history.history import Moment, kept_updates, moments_of, thinned
from multidds.history.plot import _drawn, shares_of


def updates(names="abc", count=5, moving=0.05):
    """The first dataset gains what the last one loses."""
    for i in range(count):
        even = 1 / len(names)
        shares = dict.fromkeys(names, even) | {names[0]: even + moving * i, names[-1]: even - moving * i}
        rewards = {name: 0.1 * j for j, name in enumerate(names)}
        yield Update(
            step=10 * (i + 1), mixture=shares, rewards=rewards, dev_losses={"x": 2.0 - 0.1 * i}, train_losses={},
            weights={}, alignment=None, seconds=0.1, noise=dict.fromkeys(names, 0.02),
        )  # fmt: skip


def heights(panel):
    """{label: [height of its band at every corner]} of a stacked area."""
    return {band.get_label(): band.get_paths()[0].get_extents().height for band in panel.collections}


def ends(panel):
    """What stands at the right ends of the bands."""
    return [text.get_text() for text in panel.texts if text.get_text() != "■"]


def test_the_bands_are_the_shares_and_the_lines_what_else_is_known():
    figure = plot(updates(), start={"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})
    shares, rewards, losses = figure.axes
    assert shares.get_xlim() == (0, 50)
    assert set(heights(shares)) == {"a", "b", "c"}
    assert ends(shares) == ["a  33→53%", "b  33%", "c  33→13%"]  # the largest at the end first
    lines = {line.get_color(): line.get_ydata().tolist() for line in rewards.lines}
    assert sorted(values[0] for values in lines.values()) == pytest.approx([0, 0.1, 0.2])
    assert len(rewards.collections) == 3  # bands of noise
    assert losses.lines[0].get_ydata().tolist() == pytest.approx([2.0, 1.9, 1.8, 1.7, 1.6])
    assert losses.get_xlabel() == "step"


def test_of_many_datasets_those_that_moved_are_seen_and_the_rest_is_one():
    names = [f"d{i:03}" for i in range(1000)]
    labels = list(heights(plot(updates(names, moving=0.0002)).axes[0]))
    assert len(labels) == 9
    assert labels[0] == "d000"
    assert "d999" in labels
    assert labels[-1] == "all others"


def test_names_are_text_whatever_they_are():
    names = ("_hidden", "a$b$", "x" * 200, "язык")
    labels = list(heights(plot(updates(names)).axes[0]))
    assert {"hidden", r"a\$b\$", "язык"} <= set(labels)
    assert max(map(len, labels)) == 30
    plot(updates(names)).savefig(io.BytesIO(), format="svg")


def test_a_balancer_draws_itself_from_the_start_on():
    names = ("a", "b")
    balancer = Balancer(
        Mixture({"a": 0.9, "b": 0.1}), mlp(), loss, train=batches(names, 4), dev=batches(("x",), 4, seed=1), every=2,
        scorer=Anchored(strength=2.0), batches=2,
    )  # fmt: skip
    for _ in range(8):
        balancer.step()
    shares = balancer.plot().axes[0]
    assert shares.get_xlim() == (0, 8)
    corners = shares.collections[0].get_paths()[0].vertices
    assert corners[corners[:, 0] == 0][:, 1].max() == pytest.approx(0.9)  # the first band at step 0


def test_the_prior_is_a_column_where_the_training_began_elsewhere():
    moving = [replace(u, prior={"a": 0.2, "b": 0.2, "c": 0.6}, drift=0.3, signal=0.5) for u in updates()]
    figure = plot(moving, start={"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, panels=["balance"])
    shares, facts, prior = figure.axes
    assert ends(shares) == ["a  20→53%", "b  20→33%", "c  60→13%"]
    assert [bar.get_height() for bar in prior.patches] == pytest.approx([0.2, 0.2, 0.6, 0])
    assert {line.get_label(): line.get_ydata()[0] for line in facts.lines} == {
        "signal: what is not noise": 0.5,
        "from the prior": 0.3,
        "without rewards": 0,
        "by rewards": 0,
    }
    with pytest.raises(ValueError, match="plot: panels must be among balance, reward, .* but one is 'rewards'"):
        plot(moving, panels=["rewards"])


def test_a_share_that_a_log_left_out_is_the_one_before():
    moments = [Moment(s, {"mixture": m}) for s, m in ((0, {"a": 0.5}), (1, {"b": 0.2}), (2, {"a": 0.4, "b": 0.3}))]
    assert shares_of(moments, "a") == [0.5, 0.5, 0.4]
    assert shares_of(moments, "b") == [0.2, 0.2, 0.3]
    assert heights(plot_of(moments)).keys() == {"a", "b", "all others"}


def plot_of(moments):
    return _drawn(moments, ["a", "b"], [], "#000000").axes[0]


def test_one_moment_is_a_picture_too_and_none_is_an_error():
    assert plot(updates(count=1)).axes[0].get_xlim() == (0, 10)
    with pytest.raises(ValueError, match="there is no update to draw yet"):
        plot([])


# ------------------------------------------------------------------------------------------------------ histories


def test_a_history_is_the_same_wherever_it_was_written(tmp_path):
    given = list(updates())
    expected = [Moment(u.step, {g: v for g, v in u.groups().items() if v}) for u in given]
    flat = [u.scalars() for u in given]

    run = tmp_path / "run"
    run.mkdir()
    lines = [{"kind": "step", "step": 1, "loss": 2.0}]
    lines += [{"kind": "update", "step": u.step} | u.groups() for u in given]
    (run / "records.jsonl").write_text(lines_of(lines) + '{"kind": "up')

    for number, known in ((9, flat), (40, flat)):  # of two checkpoints the later one, by number
        checkpoint = tmp_path / "trainer" / f"checkpoint-{number}"
        checkpoint.mkdir(parents=True)
        log = [{"step": 5, "loss": 2.0}]
        log += [{"step": u.step, "epoch": 0.1} | one for u, one in zip(given, known, strict=True) if u.step <= number]
        (checkpoint / "trainer_state.json").write_text(json.dumps({"log_history": log}))

    version = tmp_path / "lightning" / "version_0"
    version.mkdir(parents=True)
    columns = list(flat[0])
    rows = [[str(u.step), "", *(str(one[key]) for key in columns)] for u, one in zip(given, flat, strict=True)]
    rows.insert(1, ["3", "2.5", *[""] * len(columns)])
    text = "\n".join(",".join(row) for row in [["step", "train_loss", *columns], *rows])
    (version / "metrics.csv").write_text(text + "\n")

    assert _known(moments_of(run)) == _known(moments_of(str(run / "records.jsonl"))) == _known(expected)
    assert _known(moments_of(tmp_path / "trainer")) == _known(expected)[:4]
    assert _known(moments_of(tmp_path / "lightning")) == _known(expected)
    assert len(plot(run).axes) == 3


def _known(moments):
    wanted = ("mixture", "reward", "noise", "dev_loss")
    return [(moment.step, {group: moment.groups[group] for group in wanted}) for moment in moments]


def test_what_is_no_history_is_said(tmp_path):
    with pytest.raises(
        ValueError, match="is no history of a mixture: there is none of records.jsonl, mixture.jsonl, tr"
    ):
        moments_of(tmp_path)
    with pytest.raises(ValueError, match="nothing/here: is no history"):
        plot("nothing/here")


def saved_updates(count=5, names="ab"):
    first, last = names[0], names[-1]
    for i in range(count):
        shares = dict.fromkeys(names, 1 / len(names)) | {
            first: 1 / len(names) + i / 1e6,
            last: 1 / len(names) - i / 1e6,
        }
        yield Update(
            step=10 * (i + 1), mixture=shares, rewards=dict.fromkeys(names, 0.1), dev_losses={"x": 2.0}, weights={},
            train_losses={}, alignment=None, seconds=0.1, prior=dict.fromkeys(names, 1 / len(names)), signal=0.5,
        )  # fmt: skip


def test_a_saved_history_is_read_back_and_goes_on_after_a_resume(tmp_path):
    given, start = list(saved_updates()), {"a": 0.5, "b": 0.5}
    save_history(given[:2], tmp_path, start=start)  # a folder: mixture.jsonl
    save_history(given[1:4], tmp_path / "mixture.jsonl", start=start)
    save_history(given[2:], tmp_path, passes={"a": 3.0, "b": 4.0})  # resumed at step 25: what came after is forgotten
    first, *found = moments_of(tmp_path)
    assert (first.step, first.mixture, first.prior) == (0, start, start)
    assert [(moment.step, moment.mixture) for moment in found] == [(u.step, u.mixture) for u in given]
    assert found[-1].groups["passes"] == {"a": 3.0, "b": 4.0}
    assert found[0].facts == {"signal": 0.5, "drift": 0.0, "learned": 0.0, "unlearned": 0.0}
    assert found[0].groups["reward"] == {"a": 0.1, "b": 0.1}
    assert not list(tmp_path.glob(".*"))
    Replay(Mixture(start), [(moment.step, moment.mixture) for moment in moments_of(tmp_path)])
    with pytest.raises(ValueError, match="mixture.jsonl is the history of other datasets; choose another file"):
        save_history(saved_updates(names="abc"), tmp_path)


def test_a_file_keeps_what_memory_has_forgotten(tmp_path):
    given = list(saved_updates(count=6))
    for count in range(1, 7):
        kept = given[:count] if count < 4 else [given[0], *given[count - 2 : count]]  # as a balancer thins its history
        save_history(kept, tmp_path, start={"a": 0.5, "b": 0.5})
    assert [moment.step for moment in moments_of(tmp_path)] == [0, 10, 20, 30, 40, 50, 60]
    other = [replace(u, mixture={"a": 0.9, "b": 0.1}) for u in given[3:5]]  # resumed at 30, and not exactly
    save_history(other, tmp_path)
    assert [moment.step for moment in moments_of(tmp_path)] == [0, 10, 20, 30, 40, 50]
    assert moments_of(tmp_path)[-1].mixture["a"] == 0.9


def test_a_balancer_saves_its_history_with_the_alignment(tmp_path):
    names = ("a", "b")
    balancer = Balancer(
        Mixture({"a": 0.9, "b": 0.1}), mlp(), loss, train=batches(names, 4), dev=batches(("x",), 4, seed=1), every=2,
        sketch="exact",
    )  # fmt: skip
    for _ in range(4):
        balancer.step()
        save_history(balancer, tmp_path / "other.jsonl")
    moments = moments_of(tmp_path / "other.jsonl")
    assert [moment.step for moment in moments] == [0, 2, 4]
    assert moments[0].mixture == {"a": 0.9, "b": 0.1}
    cosines = balancer.history[-1].alignment.cosines()[0].tolist()
    assert moments[-1].cosines["x"] == pytest.approx(dict(zip(names, cosines, strict=True)), abs=1e-5)


def test_a_saved_history_of_ten_thousand_datasets_stays_small(tmp_path):
    names = [f"d{i:05}" for i in range(10_000)]
    for update in saved_updates(count=60, names=names):
        save_history([update], tmp_path, start=dict.fromkeys(names, 1e-4))
    moments = moments_of(tmp_path)
    assert len(moments) == 50
    assert [moments[0].step, moments[-1].step] == [0, 600]
    assert len(moments[-1].mixture) == 10_000
    assert len(moments[-1].groups["reward"]) == 64
    assert {names[0], names[-1]} <= moments[-1].groups["reward"].keys()
    assert (tmp_path / "mixture.jsonl").stat().st_size < 15_000_000
    assert [kept_updates(n) for n in (8, 10_000, 1_000_000)] == [100, 20, 2]


def test_thinning_keeps_the_ends_and_even_distances():
    moments = [Moment(step, {"mixture": {"a": 1.0}}) for step in [*range(100), 150, 200]]
    steps = [moment.step for moment in thinned(moments, 5)]
    assert [steps[0], steps[-1], len(steps)] == [0, 200, 5]
    assert max(b - a for a, b in pairwise(steps)) <= 100
    assert thinned(moments[:3], 5) == moments[:3]


def test_a_line_that_is_no_history_is_named(tmp_path):
    (tmp_path / "mixture.jsonl").write_text('{"step": 0, "mixture": {"a": 1.0}}\n[1]\n')
    with pytest.raises(ValueError, match=r"mixture.jsonl:2: is no line of a history: '\[1\]'"):
        moments_of(tmp_path)


def test_damaged_records_are_not_drawn(tmp_path):
    write_records(tmp_path, [{"kind": "start", "step": 0, "mixture": {"a": 0.5, "b": 0.5}}] * 3)
    path = tmp_path / "records.jsonl"
    path.write_text(path.read_text().replace("0.5", "0.6", 1))
    with pytest.raises(ValueError, match=r"records.jsonl:1: is damaged \(its checksum does not fit\)"):
        moments_of(tmp_path)


def test_passes_of_a_run_are_drawn(tmp_path):
    lines = [{"kind": "start", "step": 0, "mixture": {"a": 0.5, "b": 0.5}}]
    lines += [
        {
            "kind": "update",
            "step": s,
            "mixture": {"a": 0.5, "b": 0.5},
            "reward": {},
            "passes": {"a": s / 10, "b": s / 50},
        }
        for s in (10, 20)
    ]
    write_records(tmp_path, lines)
    figure = plot(tmp_path)
    assert [panel.get_ylabel() for panel in figure.axes] == ["share of the draws", "passes over each dataset"]
    assert math.isclose(max(line.get_ydata()[-1] for line in figure.axes[1].lines), 2.0)
