import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from multidds.gradients.sketch import Sketcher

pytestmark = [pytest.mark.claim("The method", "sketches are linear, unbiased and as noisy as the theory says")]


def sketch(sketcher, parts):
    out = sketcher.new(parts[0][1].dtype)
    for name, values in parts:
        sketcher.add(out, name, values)
    return out


def random(size, seed):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.integers(1, 50), st.integers(1, 300), st.integers(0, 99), st.floats(-3, 3))
def test_a_sketch_is_linear(buckets, size, seed, scale):
    sketcher = Sketcher(buckets)
    a, b = random(size, seed), random(size, seed + 1)
    together = sketch(sketcher, [("w", a + scale * b)])
    assert torch.allclose(together, sketch(sketcher, [("w", a)]) + scale * sketch(sketcher, [("w", b)]), atol=1e-9)


@given(st.integers(1, 50), st.integers(1, 300), st.lists(st.integers(0, 300), max_size=4), st.integers(0, 99))
def test_the_sketch_of_a_parameter_is_the_sum_of_those_of_its_shards(buckets, size, cuts, seed):
    sketcher, values = Sketcher(buckets), random(size, seed)
    out = sketcher.new(values.dtype)
    edges = sorted({0, size, *(cut for cut in cuts if cut < size)})
    for start, end in itertools.pairwise(edges):
        sketcher.add(out, "w", values[start:end], start=start)
    assert torch.allclose(out, sketch(sketcher, [("w", values)]), atol=1e-9)


@given(st.integers(2, 40), st.integers(1, 200))
def test_every_coordinate_goes_to_one_bucket_with_a_sign(buckets, size):
    sketcher = Sketcher(buckets)
    for i in {0, size // 2, size - 1}:
        one = torch.zeros(size, dtype=torch.float64)
        one[i] = 1.0
        out = sketch(sketcher, [("w", one)])
        assert out.abs().sum() == 1
        assert out.abs().max() == 1


def test_sketched_inner_products_are_unbiased_and_as_noisy_as_in_theory():
    a, b = random(3000, 0), random(3000, 1)
    parts = [("weight", 0, 2000), ("bias", 2000, 3000)]
    estimates = torch.stack(
        [
            torch.dot(*(sketch(sketcher, [(name, x[i:j]) for name, i, j in parts]) for x in (a, b)))
            for sketcher in (Sketcher(256, seed=seed) for seed in range(600))
        ]
    )
    # The variance of a count sketch: (|a|^2 |b|^2 + <a, b>^2 - 2 sum a^2 b^2) / buckets.
    variance = (a.dot(a) * b.dot(b) + a.dot(b) ** 2 - 2 * (a**2 * b**2).sum()) / 256
    assert abs(estimates.mean() - a.dot(b)) < 4 * (variance / 600) ** 0.5
    assert 0.8 < estimates.var() / variance < 1.25


def test_structure_in_a_gradient_does_not_hurt():
    # Matrices whose columns differ wildly in size, as wide as divides the sketch: folded without rotation every
    # column would meet itself in the same bucket, and the error would be four times as large.
    errors = []
    for seed in range(100):
        columns = (2 * random(64, seed)).exp()
        a, b = (random((128, 64), seed + k) * columns for k in (2000, 3000))
        exact = torch.nn.functional.cosine_similarity(a.reshape(1, -1), b.reshape(1, -1))
        sketched = [sketch(Sketcher(1024, seed), [("w", x)]) for x in (a, b)]
        errors.append(float(torch.nn.functional.cosine_similarity(*(s[None] for s in sketched)) - exact))
    assert torch.tensor(errors).square().mean().sqrt() < 1.3 / 1024**0.5


def test_names_separate_parameters_and_equal_names_agree_across_sketchers():
    values = random(500, 0)
    assert torch.equal(sketch(Sketcher(64), [("a", values)]), sketch(Sketcher(64), [("a", values)]))
    assert not torch.equal(sketch(Sketcher(64), [("a", values)]), sketch(Sketcher(64), [("b", values)]))


def test_a_sketch_of_no_buckets_is_refused():
    with pytest.raises(ValueError, match="a whole number of at least 1, but it is 0"):
        Sketcher(0)
