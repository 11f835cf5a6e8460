"""Single examples: slopes against gradients, the paper's update, invisibility, resume, replicas, refusals."""

import copy
import io
import json
import os
import subprocess
import sys
from functools import partial

import pytest
import reference
import torch
import torch.distributed as dist
from ranks import leave
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset
from toys import Everything, batch, dataset, mlp

from multidds import ExampleScorer, batches_of


def losses(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y, reduction="none")


class Network(nn.Module):
    """Scores by the input and the label."""

    def __init__(self, seed=0, dtype=torch.float64):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.table = nn.Parameter(torch.randn(4, 3, generator=generator, dtype=dtype) / 2)

    def forward(self, batch):
        x, y = batch
        return (x @ self.table).gather(1, y[:, None])[:, 0]


def features(batch):
    x, y = batch
    return torch.stack([x.norm(dim=1), y.to(x.dtype)], dim=1)


DEV = {"a": [batch(50, 9)], "b": [batch(51, 9)]}
PLAIN = {"direction": "gradient", "optimizer": partial(torch.optim.SGD, lr=0.5)}


def scorer_of(model, network="own", **kwargs):
    network = Network() if network == "own" else network
    return ExampleScorer(network, model, losses, **{"dev": DEV, "every": 1, **kwargs})


class Transformer(nn.Module):
    """A classifier of sequences with dropout everywhere."""

    def __init__(self, dropout):
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=dropout, batch_first=True)
        self.out = nn.Linear(16, 5)

    def forward(self, ids):
        return self.out(self.layer(self.embed(ids)).mean(1))


def sequences(seed, size=24):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 11, (size, 7), generator=generator), torch.randint(0, 5, (size,), generator=generator)


def direction_of(model, weights=None):
    loss = lambda model, batch: losses(model, batch).mean()  # noqa: E731
    weights = weights or dict.fromkeys(DEV, 1 / len(DEV))
    return sum(weights[name] * reference.gradient(model, loss, batches) for name, batches in DEV.items())


@pytest.mark.claim(
    "The method", "rewards of examples are inner products of their gradients; a transformer with dropout too"
)
@pytest.mark.parametrize("weights", [{"a": 0.5, "b": 0.5}, {"a": 0.2, "b": 0.8}, {"b": 1.0}])
def test_rewards_are_those_of_gradients_of_single_examples(weights):
    model, given = mlp(), batch(1, 12)
    update = scorer_of(model, priority=weights, **PLAIN).update(given)
    direction = direction_of(model, {"a": 0.0, "b": 0.0, **weights})
    assert update.rewards.tolist() == pytest.approx(
        reference.example_rewards(model, losses, given, direction), abs=1e-8
    )
    assert update.losses.tolist() == pytest.approx(losses(model, given).tolist(), abs=1e-8)
    assert update.weights == {"a": 0.0, "b": 0.0, **weights}


def test_a_balanced_direction_gives_every_parameter_the_same_size():
    model, given = mlp(), batch(1, 12)
    update = scorer_of(model).update(given)
    parts = direction_of(model).split([p.numel() for p in model.parameters()])
    direction = torch.cat([part * (len(part) ** 0.5 / part.norm()) for part in parts])
    assert update.rewards.tolist() == pytest.approx(
        reference.example_rewards(model, losses, given, direction), abs=1e-8
    )


@pytest.mark.claim(
    "The method", "rewards of examples are inner products of their gradients; a transformer with dropout too"
)
@pytest.mark.parametrize(
    ("dtype", "direction"), [(torch.float64, "gradient"), (torch.float32, "gradient"), (torch.float32, "balanced")]
)
def test_slopes_of_a_transformer_with_dropout_see_the_same_masks(dtype, direction):
    """Its per-example gradients are taken under the masks that the probes drew."""
    torch.manual_seed(0)
    model, given, seeds = Transformer(0.3).to(dtype), sequences(1), []

    def watched(model, batch):
        seeds.append(torch.get_rng_state())
        return losses(model, batch)

    dev = {"dev": [sequences(2, 64)]}
    scorer = ExampleScorer(None, model, watched, dev=dev, direction=direction)
    update = scorer.update(given)
    at_dev, ahead, behind = seeds
    assert torch.equal(ahead, behind)

    def seeded(state, model, batch):
        torch.set_rng_state(state)
        return losses(model, batch)

    mean = lambda model, batch: seeded(at_dev, model, batch).mean()  # noqa: E731
    vector = reference.gradient(model, mean, dev["dev"])
    if direction == "balanced":
        parts = vector.split([p.numel() for p in model.parameters()])
        vector = torch.cat([part * (len(part) ** 0.5 / part.norm()) for part in parts])
    expected = torch.tensor(
        reference.example_rewards(model, partial(seeded, ahead), given, vector), dtype=torch.float64
    )
    if dtype == torch.float64:
        assert update.rewards.tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    assert torch.corrcoef(torch.stack([update.rewards, expected]))[0, 1] > 0.999


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_the_scale_of_the_loss_does_not_spoil_slopes_in_float32(scale):
    model, given = mlp(dtype=torch.float32), batch(1, 12, torch.float32)
    dev = {"dev": [batch(50, 9, torch.float32)]}
    scaled = lambda model, batch: scale * losses(model, batch)  # noqa: E731
    found = ExampleScorer(None, model, scaled, dev=dev, direction="gradient").update(given).rewards
    direction = reference.gradient(model, lambda model, batch: scaled(model, batch).mean(), dev["dev"])
    expected = torch.tensor(reference.example_rewards(model, scaled, given, direction), dtype=torch.float64)
    assert torch.corrcoef(torch.stack([found, expected]))[0, 1] > 0.9999


@pytest.mark.claim("The method", "the update of an `ExampleScorer` is the paper's")
def test_an_update_is_that_of_the_paper():
    model, network = mlp(), Network()
    naive = copy.deepcopy(network)
    scorer = scorer_of(model, network, **PLAIN)
    for seed in range(3):
        given = batch(seed, 8)
        update = scorer.step(given)
        rewards = reference.example_rewards(model, losses, given, direction_of(model))
        assert update.probabilities.tolist() == pytest.approx(naive(given).softmax(0).tolist(), abs=1e-9)
        reference.example_scorer_step(naive, given, rewards, lr=0.5)
        assert network.table.flatten().tolist() == pytest.approx(naive.table.flatten().tolist(), abs=1e-7)


def test_weights_have_mean_1_and_probabilities_sum_to_1_without_gradient():
    model, given = mlp(), batch(1, 12)
    for network, extra in (("own", {}), (None, {"features": features}), (None, {})):
        scorer = scorer_of(model, network, **extra)
        scorer.step(given)
        weights, probabilities = scorer.weights(given), scorer.probabilities(given)
        assert weights.shape == probabilities.shape == (12,)
        assert not weights.requires_grad
        assert weights.mean().item() == pytest.approx(1)
        assert probabilities.sum().item() == pytest.approx(1)
        assert weights.tolist() == pytest.approx((12 * probabilities).tolist())
        assert weights.std() > 0


def test_the_small_network_begins_with_equal_weights():
    scorer = scorer_of(mlp(), None, features=features)
    assert scorer.weights(batch(1, 5)).tolist() == [1.0] * 5


def test_trust_is_1_above_the_median_and_the_odds_below_it():
    scorer, given = scorer_of(mlp(), None, features=features), batch(1, 13)
    scorer.step(given)
    each = losses(mlp(), given)
    scores, trust = scorer.scores(given, each), scorer.trust(given, each)
    assert trust.tolist() == pytest.approx(scores.exp().clamp_max(1).tolist())
    assert int((trust == 1).sum()) >= 6
    assert trust.min() < 1
    alone = scorer.trust((given[0][:2], given[1][:2]), each[:2])
    assert alone.tolist() == pytest.approx(trust[:2].tolist())  # whatever stands beside it
    with pytest.raises(ValueError, match="trust is by the scores of the small network; yours has its own scale"):
        scorer_of(mlp()).trust(given)


@pytest.mark.parametrize(("replay", "updates"), [(3, 3), (40, 10)])
def test_all_are_trusted_until_there_are_enough_updates(replay, updates):
    scorer, given = scorer_of(mlp(), None, replay=replay), batch(1, 12)
    for _ in range(updates):
        assert scorer.trust(given).tolist() == [1.0] * 12
        scorer.step(given)
    assert scorer.trust(given).std() > 0


def test_directions_are_averaged_over_updates():
    """Dev batches come in turn: the second reward is along d_2 + decay * d_1, whatever the factor."""
    model, given = mlp(), batch(1, 12)
    loss = lambda model, batch: losses(model, batch).mean()  # noqa: E731
    first, second = (reference.gradient(model, loss, [batch(seed, 9)]) for seed in (50, 51))
    for decay in (0.0, 0.7):
        turns = iter([batch(50, 9), batch(51, 9)])
        scorer = scorer_of(model, dev={"dev": lambda generator, turns=turns: next(turns)}, decay=decay, **PLAIN)
        scorer.update(given)
        expected = reference.example_rewards(model, losses, given, second + decay * first)
        assert scorer.update(given).rewards.tolist() == pytest.approx(expected, abs=1e-8)


def test_the_small_network_learns_from_recent_updates_in_several_steps():
    """Against the paper's step, written naively, over the examples of the last two of three updates "
    "together."""
    scorer = scorer_of(mlp(), None, features=features, replay=2, inner_steps=3, **PLAIN)
    scorer.update(batch(0, 8))
    naive, kept = copy.deepcopy(scorer.network), []
    for seed in (1, 2):
        given = batch(seed, 8)
        if seed == 2:
            naive = copy.deepcopy(scorer.network)
        update = scorer.update(given)
        numbers = torch.cat([features(given).double(), update.losses[:, None]], dim=1)
        kept.append((numbers, update.rewards))
    naive.standard.load_state_dict(scorer.network.standard.state_dict())
    numbers, rewards = (torch.cat(parts) for parts in zip(*kept, strict=True))
    for _ in range(3):
        scaled = (rewards / rewards.square().mean().sqrt()).clamp(-3, 3)
        reference.example_scorer_step(naive, numbers, scaled.tolist(), lr=0.5)
    for name, expected in naive.named_parameters():
        found = dict(scorer.network.named_parameters())[name]
        assert found.flatten().tolist() == pytest.approx(expected.flatten().tolist(), abs=1e-5), name


def test_without_its_loss_an_example_is_scored_by_its_features_alone():
    model, given = mlp(), batch(1, 12)
    scorer = scorer_of(model, None, features=features, own_loss=False, **PLAIN)
    rewards = scorer.update(given).rewards
    assert len(scorer.network.inner) == 2
    naive = copy.deepcopy(scorer.network)
    fresh = scorer_of(mlp(), None, features=features, own_loss=False, **PLAIN)
    fresh.scores(given)
    naive.load_state_dict(fresh.network.state_dict() | {
        key: value for key, value in scorer.network.state_dict().items() if key.startswith("standard.")
    })  # fmt: skip
    reference.example_scorer_step(naive, features(given).double(), rewards.tolist(), lr=0.5)
    for name, expected in naive.named_parameters():
        found = dict(scorer.network.named_parameters())[name]
        assert found.flatten().tolist() == pytest.approx(expected.flatten().tolist(), abs=1e-6), name
    scores = scorer.scores(given)
    assert scorer.scores(given, torch.full((12,), float("nan"))).tolist() == scores.tolist()
    for p in model.parameters():
        p.data.zero_()
    assert scorer.scores(given).tolist() == scores.tolist()  # it asks the model nothing


def test_a_scorer_without_losses_is_resumed_exactly():
    first, second = (scorer_of(mlp(), None, features=features, own_loss=False, replay=2) for _ in range(2))
    for seed in (1, 2):
        first.step(batch(seed, 12))
    second.load_state_dict(json.loads(json.dumps({k: v for k, v in first.state_dict().items() if k != "tensors"})) | {
        "tensors": first.state_dict()["tensors"]
    })  # fmt: skip
    for scorer in (first, second):
        scorer.step(batch(3, 12))
    assert torch.equal(first.scores(batch(4, 12)), second.scores(batch(4, 12)))
    assert first.scores(batch(4, 12)).std() > 0


def test_scores_do_not_depend_on_how_many_are_computed_together():
    scorer = scorer_of(mlp(), None, features=features, own_loss=False)
    for seed in range(3):
        scorer.step(batch(seed, 12))
    x, y = batch(9, 200)
    parts = [scorer.scores((x[a:b], y[a:b])) for a, b in ((0, 1), (1, 64), (64, 77), (77, 200))]
    assert torch.equal(torch.cat(parts), scorer.scores((x, y)))


def test_losses_that_are_at_hand_are_not_made_again():
    model, given, calls = mlp(), batch(1, 12), []

    def counted(model, batch):
        calls.append(1)
        return losses(model, batch)

    scorer = ExampleScorer(None, model, counted, dev=DEV, every=2, mode="eval")
    scorer.update(given)
    calls.clear()
    by_hand = scorer.weights(given, losses(model, given))
    assert not calls
    assert by_hand.tolist() == pytest.approx(scorer.weights(given).tolist())
    assert calls == [1]
    scorer.step(given)
    assert calls == [1]  # no update is due
    scorer.step(given)
    assert len(calls) == 1 + len(DEV) + 2  # a pass per dev set, two over the batch


def everything_of(model, optimizer):
    tensors = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None)]
    moments = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
    return [t.clone() for t in (*tensors, *moments, torch.get_rng_state())]


@pytest.mark.claim("The method", "it is invisible, resumes exactly, and W replicas equal one process")
@pytest.mark.parametrize("network", ["own", None])
def test_updates_and_weights_leave_no_trace_in_model_or_random_states(network):
    torch.manual_seed(0)
    model = Everything().double()
    optimizer = torch.optim.Adam(model.parameters())
    losses(model, batch(3)).sum().backward()
    optimizer.step()
    before, flags = everything_of(model, optimizer), [m.training for m in model.modules()]
    grads = [p.grad for p in model.parameters()]
    scorer = scorer_of(model, network, features=None if network else features)
    for seed in range(3):
        assert scorer.step(batch(seed)).skipped is None
        scorer.weights(batch(seed))
        scorer.probabilities(batch(seed), losses(copy.deepcopy(model).eval(), batch(seed)))
    after = everything_of(model, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert [m.training for m in model.modules()] == flags
    assert all(p.grad is g for p, g in zip(model.parameters(), grads, strict=True))


def test_the_order_of_examples_does_not_matter():
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    states = []
    for shuffled in (False, True):
        scorer = scorer_of(mlp(), None, features=features)
        for seed in range(4):
            x, y = batch(seed, 12)
            given = (x[order], y[order]) if shuffled else (x, y)
            update = scorer.step(given)
        rewards = update.rewards if shuffled else update.rewards[order]
        tensors = scorer.state_dict()["tensors"]
        in_order = [tensor for name, tensor in tensors.items() if not name.startswith("recent.")]
        states.append([*in_order, rewards, scorer.weights(batch(9))])
    for a, b in zip(*states, strict=True):
        assert a.flatten().tolist() == pytest.approx(b.flatten().tolist(), abs=1e-5)  # the network is float32


def training(steps, network=None, state=None, folder=None):
    """A model in training with a scorer; returns everything that a resumed one must equal."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dev = {"f": batches_of(dataset(30, seed=1), 6), "l": [batch(i, 5) for i in range(4)]}
    own = Network() if network else None
    chosen = {} if network else {"features": features, "priority": "low", "replay": 3, "inner_steps": 2}
    chosen["decay"] = 0.5
    scorer = ExampleScorer(own, model, losses, dev=dev, every=3, **chosen)
    first = 0
    if state is not None:
        first = state["step"]
        model.load_state_dict(state["model"])
        scorer.load_state_dict(state["scorer"])
        torch.set_rng_state(state["random"])
    for step in range(first, steps):
        given = batch(100 + step, 8)
        each = losses(model, given)
        (scorer.weights(given, each) * each).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        scorer.step(given)
    parts = {"model": model.state_dict(), "scorer": scorer.state_dict()}
    return {"step": steps, **parts, "random": torch.get_rng_state()}


def assert_same(a, b):
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    else:
        assert a == b


@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize("at", [2, 10])
def test_a_resumed_training_equals_the_uninterrupted_one(network, at):
    file = io.BytesIO()
    torch.save(training(at, network), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    json.dumps({key: value for key, value in state["scorer"].items() if key != "tensors"})
    assert all(isinstance(value, torch.Tensor) for value in state["scorer"]["tensors"].values())
    assert_same(training(20, network, state), training(20, network))


@pytest.mark.claim("The method", "it is invisible, resumes exactly, and W replicas equal one process")
def test_a_training_resumed_in_a_new_process_is_the_same_bit_for_bit(tmp_path):
    torch.save(training(10), tmp_path / "half.pt")
    code = (
        "import sys, torch; sys.path[:0] = sys.argv[2:]; torch.set_num_threads(1); import test_example_scorer"
        " as t;"
        "f = sys.argv[1]; half = torch.load(f + '/half.pt', weights_only=True);"
        "torch.save(t.training(20, state=half), f + '/whole.pt')"
    )
    paths = [path for path in sys.path if "tests" in path]
    subprocess.run([sys.executable, "-c", code, str(tmp_path), *paths], check=True)
    assert_same(torch.load(tmp_path / "whole.pt", weights_only=True), training(20))


def updates_of(total, network):
    """Four updates from batches of 12 examples, shared out among the ranks."""
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    model = mlp()
    if size > 1:
        model = DistributedDataParallel(model)
    dev = {name: batches_of(dataset(30, seed=i), 6) for i, name in enumerate("ab")}
    own = {"network": Network()} if network else {"network": None, "features": lambda b: features(b).double()}
    chosen = {"priority": "low", "batches": total // size, "mode": "eval"}
    scorer = ExampleScorer(own.pop("network"), model, losses, dev=dev, every=1, replay=4, **chosen, **own)
    for seed in range(4):
        x, y = batch(seed, 12)
        scorer.step((x[rank::size], y[rank::size]))
    found = scorer.state_dict()["tensors"]
    if not network:  # rank by rank, or one after another
        found["recent.rewards"] = found["recent.rewards"].view(4, 12).sort().values
        found["recent.numbers"] = found["recent.numbers"].view(4, 12, -1).sort(1).values
    tensors = {name: t.tolist() for name, t in found.items()}
    return {"tensors": tensors, "weights": scorer.weights(batch(7)).tolist()}


def one_rank(rank, size, folder):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    found = [updates_of(4, True), updates_of(4, False)]
    (folder / f"{rank}.json").write_text(json.dumps(found))
    check_that_an_error_of_one_rank_is_everyones(rank)
    leave()


def check_that_an_error_of_one_rank_is_everyones(rank):
    bad = ExampleScorer(Network(rank), mlp(), losses, dev=DEV, every=1)
    with pytest.raises(ValueError, match="the ranks have different networks"):
        bad.step(batch(1))
    scorer = scorer_of(mlp(), None, features=lambda b: features(b)[: 7 - rank])
    with pytest.raises((ValueError, RuntimeError), match="7 losses, but features of 6 examples"):
        scorer.step(batch(1))
    x, y = batch(1)
    update = scorer_of(mlp(), None).step((x / (1 - rank), y))
    assert update.skipped == "the loss of example 0 of 7 is not finite"
    sharded = mlp(width=6)
    fully_shard(sharded, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    with pytest.raises(ValueError, match="a sharded model is not supported; use DistributedDataParallel"):
        scorer_of(sharded)


@pytest.mark.claim("The method", "it is invisible, resumes exactly, and W replicas equal one process")
@pytest.mark.slow
def test_two_replicas_equal_one_process(tmp_path):
    torch.multiprocessing.spawn(one_rank, (2, tmp_path), nprocs=2)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second
    for got, expected in zip(first, [updates_of(4, True), updates_of(4, False)], strict=True):
        assert got["weights"] == pytest.approx(expected["weights"], abs=1e-5)
        for name, values in expected["tensors"].items():
            got_values = torch.tensor(got["tensors"][name]).flatten().tolist()
            assert got_values == pytest.approx(torch.tensor(values).flatten().tolist(), abs=1e-5), name


class Wrong(nn.Module):
    """A network whose answer is at fault."""

    def __init__(self, answer):
        super().__init__()
        self.p, self.answer = nn.Parameter(torch.zeros(1)), answer

    def forward(self, batch):
        return self.answer(batch) if callable(self.answer) else self.answer


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (torch.zeros(7, 1), r"network\(batch\) must return one number per example, but the shape is \(7, 1\)"),
        (torch.zeros(()), r"network\(batch\) must return one number per example, but the shape is \(\)"),
        ([0.0] * 7, r"network\(batch\) must return a tensor \[B\], got list"),
        (torch.tensor([0.0, float("nan")]), "the score of example 1 of 2 is nan; the network must return finite"),
    ],
)
def test_scores_that_cannot_be_used_are_refused_and_nothing_moves(answer, message):
    model = mlp()
    scorer = scorer_of(model, Wrong(answer))
    before = copy.deepcopy(scorer.state_dict())
    for call in (scorer.step, scorer.weights, scorer.probabilities):
        with pytest.raises((ValueError, TypeError), match=message):
            call(batch(1))
    assert_same(scorer.state_dict(), before)


def test_a_network_that_returns_another_number_of_scores_is_refused():
    with pytest.raises(ValueError, match=r"one number per example, 7 of them, but the shape is \(3,\)"):
        scorer_of(mlp(), Wrong(torch.zeros(3))).step(batch(1))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda b: None, r"features\(batch\) must return a tensor \[B, F\], got NoneType"),
        (lambda b: b[0][:, 0], r"features\(batch\) must return one row per example, \[B, F\], but the shape is \(7,\)"),
        (lambda b: b[0][:3], "there are 7 losses, but features of 3 examples"),
        (lambda b: b[0] * float("nan"), "the features of example 0 of 7 are not finite"),
    ],
)
def test_examples_without_features_are_refused_and_nothing_moves(given, message):
    scorer = scorer_of(mlp(), None, features=given)
    for call in (scorer.step, scorer.weights):
        with pytest.raises((ValueError, TypeError), match=message):
            call(batch(1))
    assert scorer.state_dict()["steps"] == 0
    assert not scorer.state_dict()["tensors"].get("network.standard.total", torch.zeros(1)).any()


def test_another_number_of_features_is_refused():
    columns = [3]
    scorer = scorer_of(mlp(), None, features=lambda b: b[0][:, : columns[0]])
    scorer.step(batch(1))
    columns[0] = 2
    with pytest.raises(ValueError, match=r"features\(batch\) returned 2 features, but there were 3"):
        scorer.weights(batch(1))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda m, b: losses(m, b).mean(),
            r"losses\(model, batch\) must return one number per example, but the shape is \(\)",
        ),
        (lambda m, b: losses(m, b).tolist(), r"losses\(model, batch\) must return a tensor \[B\], got list"),
        (lambda m, b: losses(m, b)[:, None], r"must return one number per example, but the shape is \(.*, 1\)"),
    ],
)
def test_losses_of_another_shape_are_refused(wrong, message):
    scorer = ExampleScorer(Network(), mlp(), wrong, dev=DEV, every=1)
    with pytest.raises((ValueError, TypeError), match=message):
        scorer.step(batch(1))
    assert scorer.state_dict()["steps"] == 0


def test_what_is_not_finite_is_skipped_and_nothing_moves():
    x, y = batch(1)
    broken = x.clone()
    broken[2] = float("inf")
    scorer = scorer_of(mlp(), None)
    scorer.step((x, y))
    before = scorer.state_dict()["tensors"]
    assert scorer.step((broken, y)).skipped == "the loss of example 2 of 7 is not finite"
    with pytest.raises(ValueError, match="the loss of example 2 of 7 is nan"):
        scorer_of(mlp(), None).weights((broken, y))
    dev = {"a": [(broken, y)]}
    assert scorer_of(mlp(), dev=dev).step((x, y)).skipped == "the gradient of dev set 'a' is not finite"
    flat = ExampleScorer(Network(), mlp(), lambda m, b: losses(m, b) * 0, dev=DEV, every=1)
    assert flat.step((x, y)).skipped == "the gradients of the dev sets sum to zero"
    after = scorer.state_dict()["tensors"]  # what the dev sets want is known all the same
    assert_same(*({k: t for k, t in some.items() if "direction" not in k} for some in (after, before)))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"network": "small"}, "network must be a torch.nn.Module or None, got str"),
        ({"losses": None}, r"losses must be a function \(model, batch\) -> \[B\], got NoneType"),
        ({"dev_loss": 3}, r"dev_loss must be a function \(model, batch\) -> scalar tensor, got int"),
        ({"features": features}, "features are for the small network: give network=None, or leave features out"),
        ({"network": None, "features": 3}, r"features must be a function batch -> \[B, F\], got int"),
        ({"network": None, "own_loss": False}, "without features and own_loss the small network would see nothing"),
        ({"optimizer": 3}, "optimizer must be a function params -> optimizer, got int"),
        ({"optimizer": lambda params: 3}, r"optimizer\(params\) must return a torch optimizer, got int"),
        ({"optimizer": torch.optim.SGD([torch.zeros(1)], 1)}, "must hold the trainable parameters of the network"),
        (
            {"network": None, "optimizer": torch.optim.SGD([torch.zeros(1)], 1)},
            "without a network, optimizer must be a",
        ),
        ({"network": nn.ReLU()}, "the network has no trainable parameters"),
        ({"dev": {}}, "there must be at least one dev set"),
        ({"every": 0}, "every must be a whole number of at least 1, but it is 0"),
        ({"batches": 0}, "batches must be a whole number of at least 1, but it is 0"),
        ({"eps": 2}, "eps must be a share between 0 and 1, but it is 2"),
        ({"seed": None}, "seed must be a whole number, got None"),
        ({"mode": "test"}, "mode must be 'train' or 'eval', but it is 'test'"),
        ({"direction": "up"}, "direction must be 'balanced' or 'gradient', but it is 'up'"),
        ({"priority": {"z": 1.0}}, "there is no dev set 'z'"),
        (
            {"model": mlp(dtype=torch.bfloat16)},
            "small steps are lost in rounding: the parameter '0.weight' is torch.bfloat16",
        ),
    ],
)
def test_choices_that_cannot_be_are_refused_at_construction(kwargs, message):
    given = {"network": Network(), "model": mlp(), "losses": losses, "dev": DEV, **kwargs}
    with pytest.raises((ValueError, TypeError), match=message):
        ExampleScorer(**given)


def test_a_network_that_holds_the_model_is_refused():
    model = mlp()
    with pytest.raises(ValueError, match="the network's parameter '0.weight' is one of the model's"):
        ExampleScorer(nn.Sequential(model[0], nn.Flatten(0)), model, losses, dev=DEV)


def test_a_state_of_something_else_is_refused_and_nothing_changes():
    state = scorer_of(mlp()).state_dict()
    small = scorer_of(mlp(), None, features=features)
    small.step(batch(1))
    other = ExampleScorer(Wrong(None), mlp(), losses, dev=DEV)
    cases = [
        (scorer_of(mlp(), None), state, "the state was saved with another network"),
        (scorer_of(mlp()), small.state_dict(), "the state was saved with another network"),
        (scorer_of(mlp()), other.state_dict(), "the network of the state has other parameters"),
        (scorer_of(mlp(), **PLAIN), state, "the state is of the optimizer Adam, but this one has SGD"),
        (scorer_of(mlp(), dev={"z": DEV["a"]}), state, "'z' is missing"),
    ]
    narrow = scorer_of(mlp(), None)
    narrow.step(batch(1))
    cases.append((narrow, small.state_dict(), "the state has 2 features, but there are 0"))
    for scorer, saved, message in cases:
        before = copy.deepcopy(scorer.state_dict())
        with pytest.raises(ValueError, match=message):
            scorer.load_state_dict(saved)
        assert_same(scorer.state_dict(), before)


def auc(suspicion, wrong):
    ranks = suspicion.argsort().argsort().double() + 1
    count = int(wrong.sum())
    return (ranks[wrong].sum().item() - count * (count + 1) / 2) / (count * (len(wrong) - count))


def noisy_labels():
    """(x, given labels, which are wrong, dev batch, test batch): three classes, 30% of the labels wrong."""
    generator = torch.Generator().manual_seed(0)
    planes = torch.randn(10, 3, generator=generator)

    def drawn(size):
        x = torch.randn(size, 10, generator=generator)
        return x, (x @ planes).argmax(1)

    x, y = drawn(2000)
    wrong = torch.rand(2000, generator=generator) < 0.3
    given = torch.where(wrong, (y + torch.randint(1, 3, (2000,), generator=generator)) % 3, y)
    return x, given, wrong, drawn(300), drawn(1000)


@pytest.mark.parametrize("weighted", [True, False])
def test_wrong_labels_are_found_and_accuracy_recovers(weighted):
    x, y, wrong, dev, test = noisy_labels()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 128), nn.ReLU(), nn.Linear(128, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    dev_batches = {"dev": batches_of(TensorDataset(*dev), 64)}
    scorer = ExampleScorer(None, model, losses, dev=dev_batches, every=5 if weighted else 10**9)
    draws = torch.Generator().manual_seed(1)
    for _ in range(2000):
        rows = torch.randint(2000, (32,), generator=draws)
        given = (x[rows], y[rows])
        each = losses(model, given)
        (scorer.weights(given, each) * each).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        scorer.step(given)
    accuracy = (model(test[0]).argmax(1) == test[1]).double().mean().item()
    if weighted:
        assert auc(-scorer.scores((x, y)), wrong) > 0.9
        assert accuracy > 0.88
    else:
        assert accuracy < 0.82
