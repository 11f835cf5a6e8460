"""The table: rewards by hand, and standard errors against noise that is known."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

import multidds
from multidds import batches_of
from multidds.probes.table import table_of, table_of_parts
from multidds.sampling.sources import part_indices


def table(d, t):
    """The table of given gradients d [dev, size] and t [train, size]."""
    return table_of(named("d", d), named("t", t))


def named(letter, rows):
    return {f"{letter}{place}": row for place, row in enumerate(rows)}


def random(rows, seed, size=9):
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def equal(count):
    return torch.full((count,), 1 / count, dtype=torch.float64)


# --------------------------------------------------------------------------------------------------------- rewards


def test_the_rewards_by_hand():
    d = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    t = torch.tensor([[3.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    assert table(d, t).multidds(equal(2)).tolist() == pytest.approx([1 / 5**0.5, 3 / 10**0.5])  # v = (0.5, 1)
    assert table(d, t).multidds_s(equal(2)).tolist() == pytest.approx([0.5, 1 / 2**0.5])
    assert table(d, t).cosines().tolist() == [pytest.approx([1, 0.5**0.5]), pytest.approx([0, 0.5**0.5])]
    assert table(d, t).dev_norms.tolist() == [1, 2]


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 999))
def test_rewards_are_cosines_of_the_gradients(k, n, seed):
    d, t = random(k, seed), random(n, seed + 1)
    w = torch.rand(k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.01
    w /= w.sum()
    cosine = torch.nn.functional.cosine_similarity
    assert torch.allclose(table(d, t).multidds(w), cosine((w @ d)[None], t), atol=1e-12)
    each = torch.stack([cosine(d[j][None], t) for j in range(k)])
    assert torch.allclose(table(d, t).multidds_s(w), w @ each, atol=1e-12)
    joint = table(d, t).joint("all", named("d", w.tolist()))
    assert torch.allclose(joint.cosines()[0], cosine((w @ (d / d.norm(dim=1)[:, None]))[None], t), atol=1e-12)


@pytest.mark.claim("The method", "scaling losses; K = 1")
@given(st.integers(1, 5), st.integers(0, 999))
def test_one_dev_set_makes_both_rewards_equal(n, seed):
    one = table(random(1, seed), random(n, seed + 1))
    assert torch.allclose(one.multidds(equal(1)), one.multidds_s(equal(1)), atol=1e-12)


@pytest.mark.claim("The method", "scaling losses; K = 1")
def test_scaling_one_dev_loss_changes_multidds_but_not_multidds_s():
    d, t, w = random(3, 0), random(4, 1), equal(3)
    scaled = d * torch.tensor([[10.0], [1.0], [1.0]], dtype=torch.float64)
    assert torch.allclose(table(d, t).multidds_s(w), table(scaled, t).multidds_s(w), atol=1e-12)
    assert not torch.allclose(table(d, t).multidds(w), table(scaled, t).multidds(w), atol=1e-2)
    assert torch.allclose(table(d * 7, t * 3).multidds(w), table(d, t).multidds(w), atol=1e-12)


def test_the_cosine_with_a_zero_gradient_is_zero():
    d, t, w = random(2, 0), random(3, 1), equal(2)
    t[1] = 0
    assert table(d, t).multidds(w)[1] == 0
    assert table(d, t).multidds_s(w)[1] == 0
    opposite = torch.stack([d[0], -d[0]])
    assert table(opposite, t).multidds(w).abs().max() < 1e-6
    assert table(0 * d, t).multidds_s(w).tolist() == [0, 0, 0]


# ------------------------------------------------------------------------------------------------- standard errors

SIZE, BATCH, MOST_PARTS = 40, 16, 4  # parameters, examples of a probe batch, parts of a balancer's probe


class World:
    """Three dev sets and four datasets whose examples have gradients with known means and noise."""

    def __init__(self, dev_size, noise, seed):
        self._generator = torch.Generator().manual_seed(seed)
        common = self._normal(1, SIZE)
        self.dev, self.train = self._normal(3, SIZE) + common, self._normal(4, SIZE) + common
        self._dev_size, self._noise = dev_size, noise
        self._examples = [self._of(mean, 10_000) for mean in self.train]
        self._dev_examples = self._new_dev_examples()

    def _normal(self, *shape):
        return torch.randn(*shape, generator=self._generator, dtype=torch.float64)

    def _of(self, mean, count):
        return mean + self._noise * self._normal(count, SIZE)

    def _new_dev_examples(self):
        return [self._of(mean, self._dev_size) for mean in self.dev]

    def probed(self, batches, key):
        """The table of a probe of new dev sets, whose batches are drawn as by `batches_of`."""
        if self._dev_size <= 1000:  # of a large one, other probes see other examples
            self._dev_examples = self._new_dev_examples()
        parts = min(batches, MOST_PARTS)
        sets = [
            {f"{letter}{i}": self._parts_of(examples, batches, parts, key + i) for i, examples in enumerate(given)}
            for letter, given in (("d", self._dev_examples), ("t", self._examples))
        ]
        return table_of_parts(*sets, [1 / parts] * parts)

    def _parts_of(self, examples, batches, parts, key):
        sums = [0.0] * parts
        for j in range(batches):
            indices = part_indices(len(examples), key, (j % parts, parts, j // parts), BATCH)
            sums[j % parts] = sums[j % parts] + examples[indices].mean(0) / batches
        return sums


@pytest.mark.slow
@pytest.mark.claim("The method", "standard errors of cosines are right, for small and large dev sets")
@pytest.mark.parametrize("dev_size", [20, 100, 10_000])
@pytest.mark.parametrize("batches", [2, 4, 8])
def test_standard_errors_are_those_of_known_noise(dev_size, batches):
    """Of 3,600 intervals of two errors; noise shortens cosines, so their mean stands for the truth if it is large."""
    for noise in (0.5, 3.0):
        world = World(dev_size, noise, seed=1)
        tables = [world.probed(batches, 1000 * number) for number in range(300)]
        cosines, errors = (torch.stack(each) for each in zip(*[(t.cosines(), t.errors()) for t in tables], strict=True))
        ratio = errors.mean(0) / cosines.std(0)
        assert ratio.min() > 0.8
        assert ratio.max() < 1.2
        truth = torch.nn.functional.cosine_similarity(world.dev[:, None], world.train, dim=2)
        if noise < 1:
            assert torch.allclose(cosines.mean(0), truth, atol=0.01)
        held = ((cosines - (truth if noise < 1 else cosines.mean(0))).abs() <= 2 * errors).double().mean()
        assert 0.9 <= held <= 0.98


def test_errors_of_differences_leave_out_what_all_datasets_have_in_common():
    """Their mean square is that of the differences of cosines, and of rewards, from the mean of all datasets."""
    world, weights = World(100, 3.0, seed=2), {"d0": 0.5, "d1": 0.3, "d2": 0.2}
    found = [world.probed(4, 1000 * number) for number in range(200)]
    rewards, errors = zip(*[table.mean_cosines(weights) for table in found], strict=True)
    rows = [[list(row.values()) for row in table.differences().values()] for table in found]
    cells = torch.tensor(rows, dtype=torch.float64)  # [table, dev, train, 2]
    for values, estimated in (
        (cells[..., 0], cells[..., 1]),
        (torch.tensor([[*each.values()] for each in rewards]), torch.tensor([[*each.values()] for each in errors])),
    ):
        apart = values - values.mean(-1, keepdim=True)
        true = apart.var(0).mean().item() * 4 / 3  # four datasets: a degree of freedom is lost
        assert true == pytest.approx(estimated.square().mean().item(), rel=0.2)
        assert true < 0.95 * values.var(0).mean().item()  # the noise of dev sets is common


def test_a_probe_of_equal_parts_has_no_noise_and_one_of_one_part_has_no_errors():
    d, t = random(2, 0), random(3, 1)
    halves = [{name: [row / 2, row / 2] for name, row in named(*each).items()} for each in (("d", d), ("t", t))]
    same = table_of_parts(*halves, [0.5, 0.5])
    assert torch.allclose(same.cosines(), table(d, t).cosines())
    assert same.errors().max() < 1e-9
    assert table(d, t).errors().isnan().all()
    assert table(d, t).mean_cosines({"d0": 0.5, "d1": 0.5})[1] == {}


def test_unknown_errors_are_left_out_of_those_of_rewards():
    world, unknown = World(20, 1.0, seed=0).probed(4, 0), frozenset({("train", "t1"), ("dev", "d2")})
    some = type(world)(**vars(world) | {"unknown": unknown})
    assert set(some.mean_cosines({"d0": 0.5, "d1": 0.5, "d2": 0.0})[1]) == {"t0", "t2", "t3"}
    assert some.mean_cosines({"d0": 0.5, "d1": 0.0, "d2": 0.5})[1] == {}
    errors = some.errors().isnan()
    assert errors[2].all()
    assert errors[:, 1].all()
    assert errors.sum() == 6
    assert some.joint("all", {"d0": 0.5, "d1": 0.5, "d2": 0.0}).errors().isnan().tolist() == [
        [False, True, False, False]
    ]


class Linear(nn.Module):
    """A model whose gradients are the means of the examples."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(SIZE, dtype=torch.float64))


def linear_loss(model, batch):
    return batch[0].mean(0) @ model.w


@pytest.mark.parametrize("dev_size", [20, 500])
def test_from_end_to_end_errors_are_those_of_known_noise(dev_size):
    """By `relevance` of a linear model on sets made anew for each of 40 probes."""
    generator = torch.Generator().manual_seed(0)
    dev, train = (torch.randn(2, SIZE, generator=generator, dtype=torch.float64) + 1 for _ in range(2))

    def source(mean, size):
        noise = 2 * torch.randn(size, SIZE, generator=generator, dtype=torch.float64)
        return batches_of(TensorDataset(mean + noise), BATCH)

    tables = [
        multidds.relevance(
            Linear(),
            linear_loss,
            {name: source(mean, 500) for name, mean in named("t", train).items()},
            {name: source(mean, dev_size) for name, mean in named("d", dev).items()},
            batches=4,
            seed=seed,
        )
        for seed in range(40)
    ]
    cosines, errors = (torch.stack(each) for each in zip(*[(t.cosines(), t.errors()) for t in tables], strict=True))
    assert errors.square().mean().sqrt().item() == pytest.approx(cosines.var(0).mean().sqrt().item(), rel=0.2)


# --------------------------------------------------------------------------------- the worth of one more pass


def test_the_worth_of_one_more_pass_is_that_of_known_gradients():
    """Seen examples point along a fifth of the dev gradient; noise must not pass for its length."""
    generator = torch.Generator().manual_seed(3)
    mean = torch.randn(SIZE, generator=generator, dtype=torch.float64)

    def parts(of):
        return [of / 4 + 0.1 * torch.randn(SIZE, generator=generator, dtype=torch.float64) for _ in range(4)]

    found = []
    for _ in range(300):
        found.append(table_of_parts({"a": parts(mean), "x": parts(mean)}, {"a": parts(0.2 * mean)}, [0.25] * 4).worth())
    worths, errors = (torch.tensor(each) for each in zip(*[each["a"] for each in found], strict=True))
    assert set(found[0]) == {"a"}  # which has a dev set of its name
    assert worths.mean().item() == pytest.approx(0.2, abs=0.03)
    assert errors.mean().item() == pytest.approx(worths.std().item(), rel=0.2)
    assert ((worths - 0.2).abs() < 2 * errors).double().mean() > 0.9
    one_part = table_of({"a": mean}, {"a": mean})
    assert (one_part.worth(), one_part.worth_terms()) == ({}, {})
    assert math.isnan(one_part["a"]["a"][1])
