"""Sums over the elements of gradients."""

import pytest
import torch

from multidds.gradients.vectors import dot


def test_long_float32_sums_stay_exact_to_six_digits():
    a = torch.randn(12_000_000, generator=torch.Generator().manual_seed(0))
    exact = float(a.double() @ a.double())
    assert dot([a], [a]) == pytest.approx(exact, rel=1e-6)
    assert abs(float(torch.dot(a, a)) / exact - 1) > 1e-5  # of one float32 sum
