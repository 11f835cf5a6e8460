"""Histories from everywhere they are written, and the picture of them: read off its parts, not off its pixels."""

import io
import json
import math

import pytest
from made_runs import lines_of, write_records
from toys import batches, loss, mlp

from multidds import Anchored, Balancer, Mixture, Update, plot
from multidds.history import Moment, moments_of


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


def test_the_bands_are_the_shares_and_the_lines_what_else_is_known():
    figure = plot(updates(), start={"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})
    shares, rewards, losses = figure.axes
    assert shares.get_xlim() == (0, 50)
    assert set(heights(shares)) == {"a", "b", "c"}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "a",
        "b",
        "c",
    ]  # the largest at the end first
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
    with pytest.raises(ValueError, match="is no history of a mixture: there is none of records.jsonl, trainer_state"):
        moments_of(tmp_path)
    with pytest.raises(ValueError, match="nothing/here: is no history"):
        plot("nothing/here")


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
