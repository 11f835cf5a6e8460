"""The probe: what it answers is what gradients taken one by one say; errors, notes, weights and state."""

import math

import pytest
import torch
from assertions import assert_equal, assert_order_invariant
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
from toy_balancers import DEV, MANY, MANY_DEV, NAMES, asked, many_sources, probe_of, table_of
from toys import Places, batch, batches, dataset, loss, mlp

from multidds import batches_of, reference
from multidds.probes import NotFiniteError, Probe, Round
from multidds.probes.rotation import rotated
from multidds.rules import Cosine, StabilizedCosine


def gradients(model, sets, compute=loss):
    """The gradients of sets, by autograd. # [set, parameters]"""
    return torch.stack([reference.gradient(model, compute, each) for each in sets.values()])


# -------------------------------------------------------------------------------------------------- what rules ask for


@pytest.mark.parametrize(("count", "parts"), [(1, 1), (3, 1), (3, 2), (4, 4)])
def test_the_table_is_that_of_the_gradients(count, parts):
    model, train, dev = mlp(), batches(NAMES, count), batches(DEV, count, seed=1)
    table = table_of(model, train, dev, parts=parts, batches=count)
    t, d = gradients(model, train), gradients(model, dev)
    assert (table.train_names, table.dev_names) == (NAMES, DEV)
    assert torch.allclose(table.dev_train, d @ t.T, atol=1e-9)
    assert torch.allclose(table.dev_dev, d @ d.T, atol=1e-9)
    assert torch.allclose(table.train_norms, t.norm(dim=1), atol=1e-9)
    for role, sets in (("train", train), ("dev", dev)):
        losses = {name: sum(loss(model, b).item() for b in each) / count for name, each in sets.items()}
        assert getattr(table, f"{role}_losses") == pytest.approx(losses)


def test_the_parts_of_a_table_are_those_of_the_batches():
    """With two parts: what the even and the odd batches add to the gradients, less half of these."""
    model, train, dev = mlp(), batches(NAMES, 4), batches(DEV, 4, seed=1)
    table = table_of(model, train, dev, parts=2, batches=4)
    t, d = gradients(model, train), gradients(model, dev)
    for part in (0, 1):
        t_moves = gradients(model, {name: each[part::2] for name, each in train.items()}) / 2 - t / 2
        d_moves = gradients(model, {name: each[part::2] for name, each in dev.items()}) / 2 - d / 2
        assert torch.allclose(table.by_train[part], d @ t_moves.T, atol=1e-9)
        assert torch.allclose(table.by_dev[part], d_moves @ t.T, atol=1e-9)
        assert torch.allclose(table.by_both[part], d_moves @ t_moves.T, atol=1e-9)
        assert torch.allclose(table.own_train[part], (t_moves * t).sum(1), atol=1e-9)
        assert torch.allclose(table.own_dev[part], d_moves @ d.T, atol=1e-9)


@pytest.mark.claim("The method", "inner products are the first-order change of the dev loss")
def test_inner_products_are_the_first_order_change_of_the_dev_loss():
    """d_k . t_i is the rate at which the dev loss falls along -t_i: a central difference, no gradients involved."""
    model, train, dev = mlp(), batches(NAMES), batches(DEV, seed=1)
    table = table_of(model, train, dev)
    h = 1e-5
    for column, i in enumerate(NAMES):
        t = reference.gradient(model, loss, train[i])
        for row, k in enumerate(DEV):
            ahead, behind = (loss(reference.stepped(model, t, step), dev[k][0]).item() for step in (h, -h))
            assert (behind - ahead) / (2 * h) == pytest.approx(float(table.dev_train[row, column]), abs=1e-8)


@pytest.mark.parametrize(("dev_sets", "limit"), [(2, 0.01), (80, 0.025)])
def test_sketches_agree_with_exact_cosines(dev_sets, limit):
    """Five errors in theory: large sketches of few sets, small ones of many."""
    model, dev = mlp(width=40_000), batches([f"k{i:02}" for i in range(dev_sets)], seed=1)
    train = {"a": [batch(1)], "same": dev["k00"]}
    found, limit = table_of(model, train, dev).cosines(), torch.tensor(limit, dtype=torch.float64)
    t, d = gradients(model, train), gradients(model, dev)
    exact = (d @ t.T) / (d.norm(dim=1)[:, None] * t.norm(dim=1))
    assert ((found - exact).abs() <= limit * (1 - exact**2).clamp(min=1e-6)).all()
    assert (found - exact).abs().max() > 1e-6
    assert found[0, 1] == pytest.approx(1.0)


def test_a_rule_of_ones_own_may_ask_for_gradients_here_and_a_step_ahead():
    model, train, dev = mlp(), batches(NAMES), batches(DEV, seed=1)
    t = reference.gradient(model, loss, train["b"])

    def question(probe, round_):
        found = probe.gradient("train", "b", round_)
        with probe.ahead(found, 0.3):
            moved = probe.gradient("dev", "y", round_)
        return flat(found), flat(moved)

    here, ahead = asked(probe_of(model, train, dev), question)
    assert torch.allclose(here, t, atol=1e-12)
    expected = reference.gradient(reference.stepped(model, t, 0.3), loss, dev["y"])
    assert torch.allclose(ahead, expected, atol=1e-12)


def flat(gradient):
    return torch.cat([g.reshape(-1) for g in gradient])


@pytest.mark.claim("The method", "the order of datasets does not matter")
@pytest.mark.parametrize(
    "question", [Probe.table, StabilizedCosine(), Cosine(ahead=0.1)], ids=["table", "one", "ahead"]
)
def test_the_order_of_datasets_and_dev_sets_does_not_matter(question):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3)).double()
    places = {name: place for place, name in enumerate((*NAMES, *DEV))}

    def make(names):
        """Sources with an order, and functions."""
        train = {name: DataLoader(dataset(20, places[name]), batch_size=4, shuffle=True) for name in names}
        dev = {DEV[NAMES.index(name)]: batches_of(dataset(20, places[name] + 3), 4) for name in names}
        probe = probe_of(model, train, dev, priority="low", batches=4)
        probe.divide(2)
        found = [asked(probe, question) for _ in range(2)]
        return [dict(each) for each in found]

    assert_order_invariant(make, NAMES)


@pytest.mark.parametrize("question", [Probe.table, StabilizedCosine()], ids=["table", "reward"])
def test_dev_sets_of_weight_zero_are_not_probed(question):
    probe = probe_of(priority={"x": 1.0})
    found = asked(probe, question)
    assert set(probe.losses("dev")) == {"x"}
    assert_equal(dict(found), dict(asked(probe_of(dev=batches(["x"], 4, seed=1)), question)), 1e-12)


@pytest.mark.parametrize("priority", ["regular", "low"])
def test_dev_batches_are_the_same_whether_they_are_kept_or_drawn_when_used(priority):
    """A priority by losses takes a pass over the dev batches before their gradients."""
    calls = []

    def source(generator):
        calls.append(1)
        return batch(int(torch.randint(1000, (1,), generator=generator)))

    dev = {"x": source, "y": source}
    probe = probe_of(mlp(), batches(NAMES), dev, priority=priority, batches=3)
    gradient = asked(probe, lambda probe, round_: probe.gradient("dev", "x", round_))
    drawn = probe_of(mlp(), batches(NAMES), dev, batches=3)
    assert_equal(gradient, asked(drawn, lambda probe, round_: probe.gradient("dev", "x", round_)))
    assert len(calls) == (6 if priority == "low" else 3) + 3


# -------------------------------------------------------------------------------------------------------------- models


def test_only_the_given_parameters_count():
    model, train, dev = mlp(), batches(NAMES), batches(DEV, seed=1)
    whole, part = (table_of(model, train, dev, params=params) for params in (None, model[2].parameters()))
    assert not torch.allclose(part.dev_train, whole.dev_train, atol=1e-3)
    model[0].requires_grad_(False)
    assert torch.allclose(part.dev_train, table_of(model, train, dev).dev_train, atol=1e-14)


@pytest.mark.bfloat16
def test_bfloat16_models_are_summed_in_float32():
    model = mlp(dtype=torch.bfloat16, width=64)
    train, dev = batches(NAMES, 8, dtype=torch.bfloat16), batches(DEV, 8, seed=1, dtype=torch.bfloat16)
    # The mean of the bfloat16 gradients of single batches, computed in float64.
    t, d = gradients(model, train), gradients(model, dev)
    exact = (d @ t.T) / (d.norm(dim=1)[:, None] * t.norm(dim=1))
    # loss / count is a power of two here, so single gradients are the same numbers.
    assert torch.allclose(table_of(model, train, dev, batches=8).cosines(), exact, atol=1e-5)


@pytest.mark.bfloat16
@pytest.mark.parametrize("question", [Cosine(ahead=1.0), Probe.table], ids=["ahead", "table"])
def test_an_autocast_around_a_probe_changes_nothing_but_the_loss(question):
    """A step ahead does not reuse old casts, and sketches are multiplied in full precision."""

    def bf16_loss(model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss(model, batch)

    model, train, dev = mlp(dtype=torch.float32), batches(NAMES, dtype=torch.float32), batches(DEV, 1, 1, torch.float32)
    inside = asked(probe_of(model, train, dev, bf16_loss), question)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        around = asked(probe_of(model, train, dev), question)
    assert_equal(dict(around), dict(inside))


def test_sparse_gradients_count_as_dense_ones():
    def embedding_loss(model, batch):
        return model(batch).square().mean()

    tables = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = nn.Embedding(10, 3, sparse=sparse).double()
        ids = {name: [torch.tensor([i, 2 * i, 5])] for i, name in enumerate(NAMES)}
        tables.append(table_of(model, ids, ids, embedding_loss).dev_train)
    assert torch.allclose(*tables, atol=1e-14)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_models_can_be_probed(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp()

        def forward(self, x):
            return self.inner[2](checkpoint(self.inner[:2], x.requires_grad_(), use_reentrant=reentrant))

    train, dev = batches(NAMES), batches(DEV, seed=1)
    expected = table_of(mlp(), train, dev).cosines()
    assert torch.allclose(table_of(Checkpointed(), train, dev).cosines(), expected, atol=1e-9)


def test_inference_mode_and_the_default_device_do_not_matter():
    for question in (Probe.table, Cosine(ahead=0.1)):
        probe = probe_of()
        with torch.inference_mode():
            asked(probe, question)
        torch.set_default_device("meta")  # nothing of the package may be created there
        try:
            asked(probe, question)
        finally:
            torch.set_default_device(None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dev": {}}, "at least one dev set"),
        ({"mode": "test"}, "mode.*'test'"),
        ({"params": mlp().parameters()}, "params.*of the model"),
        ({"params": []}, "no trainable parameters in params"),
        ({"compute": lambda m, b: m(b[0])}, r"scalar.*shape \(7, 3\).*dev 'x'"),
        ({"compute": lambda m, b: 1.5}, "scalar.*float.*dev 'x'"),
        ({"compute": lambda m, b: b[0].sum()}, "dev 'x' does not depend on any trainable parameter"),
    ],
)
def test_arguments_that_cannot_be_are_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        table_of(**change)


# ------------------------------------------------------------------------------------------ values that are not finite


def infinite_at(marked):
    def compute(model, b):
        return loss(model, b) + (math.inf if torch.equal(b[0], marked) else 0.0)

    return compute


@pytest.mark.parametrize("question", [Probe.table, StabilizedCosine()], ids=["table", "reward"])
@pytest.mark.parametrize("priority", ["regular", "low", "high", {"x": 1.0, "y": 1.0}])
@pytest.mark.parametrize(("kind", "name"), [("dev set", "y"), ("dataset", "b")])
def test_a_loss_that_is_not_finite_is_said_whatever_the_priority(question, priority, kind, name):
    """Its gradient is finite. With "high" the dev set would be ranked last and not probed."""
    marked = (batches(DEV, seed=1) if kind == "dev set" else batches(NAMES))[name][0][0]
    probe = probe_of(None, batches(NAMES), batches(DEV, seed=1), infinite_at(marked), priority=priority)
    with pytest.raises(NotFiniteError, match=f"^the loss of {kind} {name!r} is not finite$"):
        asked(probe, question)


def test_infinities_of_both_signs_are_not_finite():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.u, self.v = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def linear(model, b):
        return (model.u * b[0] + model.v * b[1]).sum()

    train, dev = {"a": [torch.ones(2, 1)]}, {"x": [torch.tensor([[math.inf], [-math.inf]])]}
    with pytest.raises(NotFiniteError, match="gradient of dev set 'x'"):
        table_of(Two(), train, dev, linear)


def test_a_value_of_a_rule_that_is_not_finite_is_said_and_the_rest_is_counted():
    with pytest.raises(NotFiniteError, match=r"the reward of dataset 'a' is not finite \(and 2 more like it\)"):
        asked(probe_of(), lambda probe, round_: probe.of_datasets(round_, lambda gradient, norm: math.nan))


def test_the_loss_of_a_dev_set_of_weight_zero_is_noted_and_does_not_count():
    dev = batches(DEV, seed=1)
    probe = probe_of(None, batches(NAMES), dev, infinite_at(dev["y"][0][0]), priority={"x": 1.0})

    def question(probe, round_):
        probe.keep_sketches(64)
        probe.direction(round_, unit=True)
        assert probe.trouble() is None
        return probe.notes

    assert asked(probe, question) == ("the loss of dev set 'y' is not finite; its weight is 0",)


def test_zero_gradients_count_as_cosines_of_zero_and_are_noted():
    def compute(model, b):
        return loss(model, b) * b[0].abs().max().clamp(max=1)

    train, dev = batches(NAMES), batches(DEV, seed=1)
    train["b"][0][0].zero_()
    for question in (Probe.table, Cosine(), StabilizedCosine()):
        probe = probe_of(None, train, dev, compute)
        found = asked(probe, question)
        assert (found["x"]["b"][0] if question is Probe.table else found["b"]) == 0
        assert probe.notes == ("the gradient of dataset 'b' is zero: its cosine counts as 0",)
    for name in DEV:
        dev[name][0][0].zero_()
    for reward in (Cosine(), StabilizedCosine()):
        probe = probe_of(None, train, dev, compute)
        assert set(asked(probe, reward).values()) == {0.0}
        notes = " ".join(probe.notes)
        assert "dev set 'x' is zero" in notes
        assert "sum to zero" in notes


# -------------------------------------------------------------------------------------------------------------- errors


def test_sources_go_back_if_the_block_raises_and_the_next_round_is_the_same():
    def make():
        loader = DataLoader(dataset(20), batch_size=4, shuffle=True)
        return probe_of(mlp(), {"a": loader, "b": batches("b", 3)["b"]}, {"x": Places()}, batches=2)

    whole, broken = make(), make()
    for probe in (whole, broken):
        asked(probe, Probe.table)

    def fails(probe, round_):
        probe.table(round_)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asked(broken, fails)
    assert_equal(broken.state_dict(), whole.state_dict())
    assert_equal(dict(asked(broken, Probe.table)), dict(asked(whole, Probe.table)))


# --------------------------------------------------------------------------------------------------- weights and state


def test_a_priority_may_be_a_function_of_the_dev_losses():
    probe = probe_of(dev=batches(DEV, seed=1), priority=lambda losses: {max(losses, key=losses.get): 2.0})
    measured = {name: loss(mlp(), b[0]).item() for name, b in batches(DEV, seed=1).items()}
    worst = max(measured, key=measured.get)
    assert asked(probe, lambda probe, round_: round_.weights) == {name: float(name == worst) for name in DEV}


def test_losses_of_a_validation_rank_in_the_place_of_the_probe():
    probe = probe_of(priority="low")
    probe.dev_losses = {"x": 1.0, "y": 3.0, "z": 2.0}
    assert asked(probe, lambda probe, round_: round_.weights) == {"x": 0.0, "y": 0.5, "z": 0.5}
    with pytest.raises(ValueError, match=r"dev_losses.*'y' is nan"):
        probe.dev_losses = {"x": 1.0, "y": math.nan, "z": 2.0}


def test_without_a_pass_dev_sets_are_ranked_by_their_last_probes():
    train, dev = many_sources()
    probe, losses = probe_of(None, train, dev, priority="low"), {}
    for number in range(3):
        mean = sum(losses.values()) / max(1, len(losses))
        worst = sorted(MANY_DEV, key=lambda name: (-losses.get(name, mean), name))[:15]
        with probe.open():
            weights = probe.dev_weights(measure=False)
            shown = rotated(0, "dev", weights, 10, number)
            table = probe.table(Round(number, 0, MANY[:2], shown, weights))
        assert {name for name, weight in weights.items() if weight} == set(worst)
        losses |= table.dev_losses


@pytest.mark.parametrize("kind", ["functions", "lists", "loaders", "stateful"])
def test_it_resumes_exactly(kind):
    def make():
        def source(i):
            data = dataset(20, i)
            makers = {
                "functions": lambda: batches_of(data, 4),
                "lists": lambda: list(DataLoader(data, batch_size=4)),
                "loaders": lambda: DataLoader(data, batch_size=4, shuffle=True),
                "stateful": Places,
            }
            return makers[kind]()

        return probe_of(mlp(), {"a": source(0), "b": source(1)}, {"x": source(2)}, batches=2)

    whole, other = make(), make()
    asked(whole, Probe.table)
    other.load_state_dict(whole.state_dict())
    assert_equal(dict(asked(other, Probe.table)), dict(asked(whole, Probe.table)))
    assert_equal(other.state_dict(), whole.state_dict())


def test_a_state_is_loaded_whole_or_not_at_all():
    probe, other = probe_of(), probe_of()
    third = probe_of(dev=batches((*DEV, "extra"), 4, seed=1), priority="low")
    probe.dev_losses = {"x": 1.0, "y": 2.0, "z": 3.0}
    other.load_state_dict(probe.state_dict())
    assert (other.priority, other.dev_losses) == ("regular", {"x": 1.0, "y": 2.0, "z": 3.0})
    before = third.state_dict()
    with pytest.raises(ValueError, match="'extra'"):
        third.load_state_dict(probe.state_dict())
    assert third.state_dict() == before
