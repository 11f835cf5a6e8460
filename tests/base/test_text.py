from multidds._base.text import changes, percent, shares


def test_per_cents_have_the_digits_that_the_smallest_needs():
    assert percent(0.8, 0.671) == ["80", "67"]
    assert percent(0.012, 0.004) == ["1.2", "0.4"]
    assert percent(1e-4, 1.4e-4) == ["0.01", "0.01"]
    assert percent(0.0, 0.5) == ["0", "50"]


def test_shares_and_changes_are_the_largest_first():
    assert shares({"a": 0.1, "b": 0.6, "c": 0.3}, most=2) == "b 60%, c 30%, 1 more"
    assert changes({"a": 0.1, "b": 0.9}, {"a": 0.3, "b": 0.7}, most=1) == ["b 70→90%"]
