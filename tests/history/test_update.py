"""The lines and numbers that people read of an update."""

from multidds import Update


def update(mixture, before, **more):
    given = {"rewards": dict.fromkeys(mixture, 0.1), "dev_losses": {}, "train_losses": {}, "weights": {}}
    facts = {"alignment": None, "seconds": 0.1, "before": before, "prior": before}
    return Update(step=500, mixture=mixture, **given | facts | more)


def test_an_update_is_one_line_on_a_console_and_one_in_a_debugger():
    found = update(
        {"python": 0.67, "markdown": 0.25, "sql": 0.08}, {"python": 0.8, "markdown": 0.16, "sql": 0.04}, signal=0.93,
        drift=0.131, learned=0.1,
    )  # fmt: skip
    assert str(found) == "step 500  python 80→67%  markdown 16→25%  sql 4→8%"
    assert repr(found) == f"Update({found}; signal 0.93; 0.13 from the prior, 0.10 of it learned)"


def test_an_update_that_moved_nothing_says_so_and_why():
    same = {"a": 0.7, "b": 0.3}
    assert str(update(same, same)) == "step 500  unchanged: a 70%, b 30%"
    assert str(update(same, {})) == "step 500  a 70%, b 30%"
    assert str(update(same, same, skipped="the loss is NaN")) == "step 500  no update: the loss is NaN"


def test_of_ten_thousand_datasets_a_line_and_a_log_have_the_top_movers():
    names = [f"d{i:05}" for i in range(10_000)]
    before = dict.fromkeys(names, 1e-4)
    after = before | {names[7]: 3e-4, names[9]: 0.5e-4}
    found = update(after, before, dev_losses=dict.fromkeys(names, 1.0))
    assert str(found) == "step 500  d00007 0.01→0.03%  d00009 0.010→0.005%"
    assert len(repr(found)) < 120
    flat = found.scalars(passes=dict.fromkeys(names, 1.0))
    assert len(flat) == 4 * 64 + 3
    assert flat["mixture/d00007"] == 3e-4
    assert "reward/d00009" in flat
    assert "passes/d00009" in flat


def test_names_of_dev_sets_are_all_there_whatever_the_datasets_are_called():
    found = update({"a": 0.5, "b": 0.5}, {"a": 0.4, "b": 0.6}, dev_losses={"a": 1.0, "x": 2.0})
    assert {key for key in found.scalars() if key.startswith("dev_loss/")} == {"dev_loss/a", "dev_loss/x"}
