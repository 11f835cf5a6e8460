"""Updates as lines for people and as numbers for logs."""

from multidds import Update


def update(mixture, before, **fields):
    required = {"rewards": dict.fromkeys(mixture, 0.1), "dev_losses": {}, "train_losses": {}, "weights": {}}
    required |= {"alignment": None, "seconds": 0.1, "before": before, "prior": before}
    return Update(step=500, mixture=mixture, **required | fields)


def test_an_update_is_one_line():
    before, after = {"python": 0.8, "markdown": 0.16, "sql": 0.04}, {"python": 0.67, "markdown": 0.25, "sql": 0.08}
    moved = update(after, before, signal=0.93, drift=0.131, learned=0.1)
    assert str(moved) == "step 500  python 80→67%  markdown 16→25%  sql 4→8%"
    assert repr(moved) == f"Update({moved}; signal 0.93; learning moved 10% of the draws)"
    assert str(update(after, after)) == "step 500  unchanged: python 67%, markdown 25%, sql 8%"
    assert str(update(after, {})) == "step 500  python 67%, markdown 25%, sql 8%"
    assert str(update(after, after, skipped="the loss is NaN")) == "step 500  no update: the loss is NaN"


def test_of_ten_thousand_datasets_a_line_and_a_log_have_the_top_movers():
    names = [f"d{i:05}" for i in range(10_000)]
    before = dict.fromkeys(names, 1e-4)
    moved = update(before | {names[7]: 3e-4, names[9]: 0.5e-4}, before, dev_losses=dict.fromkeys("xyz", 1.0))
    assert str(moved) == "step 500  d00007 0.01→0.03%  d00009 0.010→0.005%"
    assert len(repr(moved)) < 120
    flat = moved.scalars(passes=dict.fromkeys(names, 1.0))
    assert len(flat) == 3 * 64 + 3 + 3  # mixture, rewards and passes; dev losses; distances
    assert flat["mixture/d00007"] == 3e-4
    assert {"reward/d00009", "passes/d00009", "dev_loss/x", "balance/drift"} <= flat.keys()
