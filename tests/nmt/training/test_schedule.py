import pytest

from multidds.nmt.training.schedule import learning_rate


def test_the_learning_rate_warms_up_and_falls_with_the_root_of_the_step():
    rates = [learning_rate(2e-4, 4000, 1e-7, step) for step in (1, 2000, 4000, 16000)]
    assert rates == pytest.approx([1e-7 + (2e-4 - 1e-7) / 4000, (2e-4 + 1e-7) / 2, 2e-4, 1e-4])
    assert learning_rate(1e-3, 0, 0.0, 4) == pytest.approx(5e-4)
