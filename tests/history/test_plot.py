"""The picture of a mixture, read off its parts."""

import io

import pytest
from matplotlib.transforms import Bbox
from updates import updates

from multidds import plot
from multidds.history import save_history

EVEN = {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}


def bands(panel):
    return [band.get_label() for band in panel.collections]


def ends(panel):
    """Returns the labels at the right ends of the bands."""
    return [text.get_text() for text in panel.texts if text.get_text() != "■"]


def test_bands_are_the_shares_and_lines_the_rewards_and_dev_losses():
    shares, rewards, losses = plot(updates(), start=EVEN).axes
    assert shares.get_xlim() == (0, 50)
    assert bands(shares) == ["a", "b", "c"]
    corners = shares.collections[0].get_paths()[0].vertices
    assert corners[corners[:, 0] == 0][:, 1].max() == pytest.approx(1 / 3)  # the first band at step 0
    assert corners[corners[:, 0] == 50][:, 1].max() == pytest.approx(1 / 3 + 0.2)
    assert ends(shares) == ["a  33→53%", "b  33%", "c  33→13%"]  # the largest at the end first
    assert sorted(line.get_ydata()[0] for line in rewards.lines) == pytest.approx([0, 0.1, 0.2])
    assert len(rewards.collections) == 3  # bands of noise
    assert losses.lines[0].get_ydata().tolist() == pytest.approx([2.0, 1.9, 1.8, 1.7, 1.6])
    assert losses.get_xlabel() == "step"


def test_of_many_datasets_the_top_movers_have_bands_and_the_rest_is_one():
    names = [f"d{i:03}" for i in range(1000)]
    labels = bands(plot(updates(names, moving=0.0002)).axes[0])
    assert len(labels) == 9
    assert labels[0] == "d000"
    assert "d999" in labels
    assert labels[-1] == "all others"


def test_any_name_becomes_a_label():
    figure = plot(updates(("_hidden", "a$b$", "x" * 200, "язык")))
    labels = bands(figure.axes[0])
    assert {"hidden", r"a\$b\$", "язык"} <= set(labels)
    assert max(map(len, labels)) == 30
    figure.savefig(io.BytesIO(), format="svg")


def test_the_prior_is_a_column_if_the_training_began_elsewhere():
    moving = updates(prior={"a": 0.2, "b": 0.2, "c": 0.6}, drift=0.3, signal=0.5)
    shares, facts, prior = plot(moving, start=EVEN, panels=["balance"]).axes
    assert ends(shares) == ["a  20→53%", "b  20→33%", "c  60→13%"]
    assert [bar.get_height() for bar in prior.patches] == pytest.approx([0.2, 0.2, 0.6, 0])
    lines = {line.get_label(): line.get_ydata()[0] for line in facts.lines}
    assert lines == {"signal in the evidence": 0.5, "both": 0.3, "the plan": 0, "learning": 0}
    with pytest.raises(ValueError, match="panels.*'rewards'"):
        plot(moving, panels=["rewards"])


def test_files_are_drawn_with_their_passes(tmp_path):
    given = updates()
    for count in (1, 2):
        save_history(given[:count], tmp_path, passes={"a": 0.5 * count, "b": 0.2 * count})
    figure = plot(tmp_path)
    assert figure.axes[-1].get_ylabel() == "passes"
    assert max(line.get_ydata()[-1] for line in figure.axes[-1].lines) == 1.0


@pytest.mark.parametrize("count", [2, 6, 30])
@pytest.mark.parametrize("own", [True, False])
def test_labels_do_not_collide(tmp_path, count, own):
    """With all panels; dev sets that are datasets, or have names of their own and so a legend."""
    names = [f"a dataset with a long name {i}" for i in range(count)]
    losses = {f"goal {i}" if own else name: 2.0 + i for i, name in enumerate(names)}
    prior = dict.fromkeys(names, 0.0) | {names[0]: 1.0}
    given = updates(names, moving=0.005, dev_losses=losses, prior=prior, drift=0.3, signal=0.5)
    for count, passes in ((4, 10.0), (5, 20.0)):
        save_history(given[:count], tmp_path, given[0].mixture, dict.fromkeys(names, passes))
    figure = plot(tmp_path)
    assert len(figure.axes) == 6  # shares, four panels, the prior
    figure.draw_without_rendering()
    texts = [text for axes in figure.axes for text in (axes.xaxis.label, axes.yaxis.label, *axes.texts)]
    texts += [text for axes in figure.axes if axes.get_legend() for text in axes.get_legend().get_texts()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]
    for i, (one, box) in enumerate(boxes):
        for other, beside in boxes[:i]:
            overlap = Bbox.intersection(box, beside)
            assert overlap is None or min(overlap.width, overlap.height) < 0.5, (one, other)


def test_one_moment_is_a_picture_and_none_is_an_error():
    assert plot(updates(count=1)).axes[0].get_xlim() == (0, 10)
    with pytest.raises(ValueError, match="no update"):
        plot([])
    with pytest.raises(ValueError, match="nothing/here"):
        plot("nothing/here")
