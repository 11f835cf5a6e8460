"""Single examples: slopes against gradients, the paper's update, invisibility, resume, ranks, refusals."""

import copy
from functools import partial

import pytest
import torch
import torch.distributed as dist
from assertions import assert_equal, assert_ranks_equal_one_process, assert_resumes_exactly
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from toys import Everything, batch, dataset, mlp

from multidds import ExampleScorer, batches_of, reference
from multidds.example_scorer import DevDirection, OwnNetwork, SmallNetwork
from multidds.probes import Probes


def losses(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def mean_loss(model, batch):
    return losses(model, batch).mean()


class Table(nn.Module):
    """A network that scores by the input and the label."""

    def __init__(self, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.table = nn.Parameter(torch.randn(4, 3, generator=generator, dtype=torch.float64) / 2)

    def forward(self, batch):
        x, y = batch
        return (x @ self.table).gather(1, y[:, None])[:, 0]


class Answer(nn.Module):
    """A network that always gives the same answer."""

    def __init__(self, answer):
        super().__init__()
        self.p, self.answer = nn.Parameter(torch.zeros(1)), answer

    def forward(self, batch):
        return self.answer


def features(batch):
    x, y = batch
    return torch.stack([x.norm(dim=1), y.to(x.dtype)], dim=1)


DEV = {"a": [batch(50, 9)], "b": [batch(51, 9)]}
SGD = partial(torch.optim.SGD, lr=0.5)
PAPER = DevDirection(balanced=False)
SMALL = SmallNetwork(features)
LOSS_ALONE = SmallNetwork()


def scorer_of(model=None, network=LOSS_ALONE, dev=DEV, losses=losses, **settings):
    """A scorer that makes an update at every step; a module becomes an OwnNetwork."""
    network = OwnNetwork(network) if isinstance(network, nn.Module) else network
    return ExampleScorer(model or mlp(), losses, dev, **{"every": 1, "network": network, **settings})


# -------------------------------------------------------------------------------------------------------- rewards


def balanced(model, vector):
    parts = vector.split([p.numel() for p in model.parameters()])
    return torch.cat([part * (len(part) ** 0.5 / part.norm()) for part in parts])


def direction_of(model, weights):
    return sum(weight * reference.gradient(model, mean_loss, DEV[name]) for name, weight in weights.items())


@pytest.mark.claim(
    "The method", "rewards of examples are inner products of their gradients; a transformer with dropout too"
)
@pytest.mark.parametrize("is_balanced", [False, True])
@pytest.mark.parametrize("weights", [{"a": 0.5, "b": 0.5}, {"a": 0.2, "b": 0.8}, {"b": 1.0}])
def test_rewards_are_inner_products_of_gradients_of_single_examples(weights, is_balanced):
    model, given = mlp(), batch(1, 12)
    update = scorer_of(model, priority=weights, direction=DevDirection(balanced=is_balanced)).update(given)
    direction = direction_of(model, weights)
    if is_balanced:
        direction = balanced(model, direction)
    expected = reference.example_rewards(model, losses, given, direction)
    assert update.rewards.tolist() == pytest.approx(expected, abs=1e-8)
    assert update.losses.tolist() == pytest.approx(losses(model, given).tolist(), abs=1e-8)
    assert update.weights == {"a": 0.0, "b": 0.0, **weights}


class Transformer(nn.Module):
    """A classifier of sequences with dropout everywhere."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.3, batch_first=True)
        self.out = nn.Linear(16, 5)

    def forward(self, ids):
        return self.out(self.layer(self.embed(ids)).mean(1))


def sequences(seed, size=24):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 11, (size, 7), generator=generator), torch.randint(0, 5, (size,), generator=generator)


@pytest.mark.claim(
    "The method", "rewards of examples are inner products of their gradients; a transformer with dropout too"
)
@pytest.mark.parametrize(
    ("dtype", "is_balanced"), [(torch.float64, False), (torch.float32, False), (torch.float32, True)]
)
def test_slopes_of_a_transformer_with_dropout_are_under_the_same_masks(dtype, is_balanced):
    torch.manual_seed(0)
    model, given, dev, random_states = Transformer().to(dtype), sequences(1), [sequences(2, 64)], []

    def watched(model, batch):
        random_states.append(torch.get_rng_state())
        return losses(model, batch)

    direction = DevDirection(balanced=is_balanced)
    rewards = scorer_of(model, dev={"dev": dev}, losses=watched, direction=direction).update(given).rewards
    at_dev, ahead, behind = random_states
    assert torch.equal(ahead, behind)

    def seeded(state, model, batch):
        torch.set_rng_state(state)
        return losses(model, batch)

    vector = reference.gradient(model, lambda model, batch: seeded(at_dev, model, batch).mean(), dev)
    vector = balanced(model, vector) if is_balanced else vector
    expected = torch.tensor(reference.example_rewards(model, partial(seeded, ahead), given, vector)).double()
    if dtype == torch.float64:
        assert rewards.tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    assert torch.corrcoef(torch.stack([rewards, expected]))[0, 1] > 0.999


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_slopes_in_float32_are_right_at_any_scale_of_the_loss(scale):
    model, given = mlp(dtype=torch.float32), batch(1, 12, torch.float32)
    dev = {"dev": [batch(50, 9, torch.float32)]}

    def scaled(model, batch):
        return scale * losses(model, batch)

    rewards = scorer_of(model, dev=dev, losses=scaled, direction=PAPER).update(given).rewards
    vector = reference.gradient(model, lambda model, batch: scaled(model, batch).mean(), dev["dev"])
    expected = torch.tensor(reference.example_rewards(model, scaled, given, vector)).double()
    assert torch.corrcoef(torch.stack([rewards, expected]))[0, 1] > 0.9999


@pytest.mark.parametrize("decay", [0.0, 0.7])
def test_directions_are_averaged_over_updates(decay):
    """Dev batches come in turn: the second reward is along d_2 + decay * d_1, whatever the factor."""
    model, given, turns = mlp(), batch(1, 12), iter([batch(50, 9), batch(51, 9)])
    first, second = (reference.gradient(model, mean_loss, [batch(seed, 9)]) for seed in (50, 51))
    scorer = scorer_of(
        model, dev={"dev": lambda generator: next(turns)}, direction=DevDirection(balanced=False, decay=decay)
    )
    scorer.update(given)
    expected = reference.example_rewards(model, losses, given, second + decay * first)
    assert scorer.update(given).rewards.tolist() == pytest.approx(expected, abs=1e-8)


# ------------------------------------------------------------------------------------------------------- networks


@pytest.mark.claim("The method", "the update of an `ExampleScorer` is the paper's")
def test_an_update_is_that_of_the_paper():
    model, network, naive = mlp(), Table(), Table()
    scorer = scorer_of(model, OwnNetwork(network, SGD), direction=PAPER)
    for seed in range(3):
        given = batch(seed, 8)
        update = scorer.step(given)
        rewards = reference.example_rewards(model, losses, given, direction_of(model, {"a": 0.5, "b": 0.5}))
        assert update.probabilities.tolist() == pytest.approx(naive(given).softmax(0).tolist(), abs=1e-9)
        reference.example_scorer_step(naive, given, rewards, lr=0.5)
        assert_equal(network.state_dict(), naive.state_dict(), 1e-7)


def assert_fitted(scorer, naive, inputs, rewards, steps):
    """Asserts that a small network took steps of the paper on these inputs, from the parameters of another."""
    naive.statistics.load_state_dict(scorer.network.statistics.state_dict())
    for _ in range(steps):
        reference.example_scorer_step(naive, inputs, rewards.tolist(), lr=0.5)
    assert_equal(dict(scorer.network.named_parameters()), dict(naive.named_parameters()), 1e-5)


def test_a_small_network_learns_from_recent_updates_in_several_steps():
    """The last two of three updates count, their rewards in root mean squares."""
    network = SmallNetwork(features, optimizer=SGD, replay=2, inner_steps=3)
    scorer, kept = scorer_of(network=network, direction=PAPER), []
    for seed in range(3):
        naive, given = copy.deepcopy(scorer.network), batch(seed, 8)
        update = scorer.update(given)
        kept.append((torch.cat([features(given), update.losses[:, None]], dim=1), update.rewards))
    inputs, rewards = (torch.cat(parts) for parts in zip(*kept[1:], strict=True))
    assert_fitted(scorer, naive, inputs, (rewards / rewards.square().mean().sqrt()).clamp(-3, 3), steps=3)


def test_a_small_network_without_the_loss_scores_by_features_alone():
    model, given = mlp(), batch(1, 12)
    scorer = scorer_of(model, SmallNetwork(features, own_loss=False, optimizer=SGD))
    scorer.scores(given)
    naive = copy.deepcopy(scorer.network)
    assert_fitted(scorer, naive, features(given), scorer.update(given).rewards, steps=1)
    scores = scorer.scores(given)
    assert torch.equal(scorer.scores(given, torch.full((12,), float("nan"))), scores)
    for p in model.parameters():
        p.data.zero_()
    assert torch.equal(scorer.scores(given), scores)  # the model is not used


@pytest.mark.parametrize("network", [Table(), SMALL, SmallNetwork()])
def test_weights_have_mean_1_and_probabilities_sum_to_1_without_gradient(network):
    scorer, given = scorer_of(network=network), batch(1, 12)
    if not isinstance(network, Table):
        assert scorer.weights(given).tolist() == [1.0] * 12
    scorer.step(given)
    weights, probabilities = scorer.weights(given), scorer.probabilities(given)
    assert not weights.requires_grad
    assert weights.mean().item() == pytest.approx(1)
    assert weights.tolist() == pytest.approx((12 * probabilities).tolist())
    assert weights.std() > 0


def test_keep_probabilities_are_1_above_the_median_and_the_odds_below_it():
    scorer, given = scorer_of(network=SMALL), batch(1, 13)
    scorer.step(given)
    each = losses(mlp(), given)
    kept = scorer.keep_probabilities(given, each)
    assert kept.tolist() == pytest.approx(scorer.scores(given, each).exp().clamp_max(1).tolist())
    assert int((kept == 1).sum()) >= 6
    assert kept.min() < 1
    alone = scorer.keep_probabilities((given[0][:2], given[1][:2]), each[:2])
    assert alone.tolist() == pytest.approx(kept[:2].tolist())  # whatever else is in the batch


@pytest.mark.parametrize(("replay", "warmup"), [(3, 3), (40, 10)])
def test_keep_probabilities_are_1_during_the_warmup(replay, warmup):
    scorer, given = scorer_of(network=SmallNetwork(replay=replay)), batch(1, 12)
    assert scorer.warmup == warmup
    for _ in range(warmup):
        assert scorer.keep_probabilities(given).tolist() == [1.0] * 12
        scorer.step(given)
    assert scorer.keep_probabilities(given).std() > 0


def test_scores_do_not_depend_on_how_many_are_computed_together():
    scorer = scorer_of(network=SmallNetwork(features, own_loss=False))
    for seed in range(3):
        scorer.step(batch(seed, 12))
    x, y = batch(9, 200)
    parts = [scorer.scores((x[a:b], y[a:b])) for a, b in ((0, 1), (1, 64), (64, 77), (77, 200))]
    assert torch.equal(torch.cat(parts), scorer.scores((x, y)))


def test_the_order_of_examples_does_not_matter():
    order, results = torch.randperm(12, generator=torch.Generator().manual_seed(0)), []
    for shuffled in (False, True):
        scorer = scorer_of(network=SMALL)
        for seed in range(4):
            x, y = batch(seed, 12)
            rewards = scorer.step((x[order], y[order]) if shuffled else (x, y)).rewards
        results.append([scorer.network.state_dict(), rewards if shuffled else rewards[order], scorer.weights(batch(9))])
    assert_equal(*results, 1e-5)  # the network is float32


def test_a_cost_of_one_pass_per_dev_batch_and_two_over_the_batch():
    model, given, calls = mlp(), batch(1, 12), []

    def counted(model, batch):
        calls.append(1)
        return losses(model, batch)

    scorer = scorer_of(model, losses=counted, every=2, probes=Probes(batches=3, mode="eval"))
    scorer.update(given)
    assert len(calls) == 3 * len(DEV) + 2
    weights = scorer.weights(given, losses(model, given))
    assert len(calls) == 3 * len(DEV) + 2  # the losses are given
    assert weights.tolist() == pytest.approx(scorer.weights(given).tolist())
    assert len(calls) == 3 * len(DEV) + 3
    assert scorer.step(given) is None
    assert len(calls) == 3 * len(DEV) + 3
    assert scorer.step(given).step == 2


def test_wrong_labels_have_low_scores():
    """30% of the labels of three classes are wrong; the dev set is clean."""
    generator = torch.Generator().manual_seed(0)
    planes = torch.randn(10, 3, generator=generator)
    x, dev_x = torch.randn(2000, 10, generator=generator), torch.randn(300, 10, generator=generator)
    wrong = torch.rand(2000, generator=generator) < 0.3
    y = ((x @ planes).argmax(1) + wrong * torch.randint(1, 3, (2000,), generator=generator)) % 3
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 128), nn.ReLU(), nn.Linear(128, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    dev = {"dev": batches_of(TensorDataset(dev_x, (dev_x @ planes).argmax(1)), 64)}
    scorer = scorer_of(model, SmallNetwork(), dev, every=5)
    for _ in range(1000):
        rows = torch.randint(2000, (32,), generator=generator)
        given = (x[rows], y[rows])
        each = losses(model, given)
        (scorer.weights(given, each) * each).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        scorer.step(given)
    ranks = scorer.scores((x, y)).argsort().argsort().double()
    clean, dirty = ranks[~wrong], ranks[wrong]
    assert (clean[:, None] > dirty).double().mean() > 0.85  # the area under the ROC curve


# ------------------------------------------------------------------------------------------- traces, resume, ranks


@pytest.mark.claim("The method", "it is invisible, resumes exactly, and W replicas equal one process")
@pytest.mark.parametrize("network", [Table(), SMALL])
def test_updates_and_weights_leave_no_trace_in_model_or_random_states(network):
    torch.manual_seed(0)
    model = Everything().double()
    optimizer = torch.optim.Adam(model.parameters())
    losses(model, batch(3)).sum().backward()
    optimizer.step()

    def everything():
        tensors = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None)]
        flags = [module.training for module in model.modules()]
        return copy.deepcopy([tensors, optimizer.state_dict(), flags, torch.get_rng_state()])

    before, gradients = everything(), [p.grad for p in model.parameters()]
    scorer = scorer_of(model, network)
    for seed in range(3):
        assert scorer.step(batch(seed)).skipped is None
        scorer.weights(batch(seed))
        scorer.probabilities(batch(seed), losses(copy.deepcopy(model).eval(), batch(seed)))
    assert_equal(everything(), before)
    assert all(p.grad is gradient for p, gradient in zip(model.parameters(), gradients, strict=True))


def test_an_update_that_raises_is_the_same_when_it_is_made_again():
    dev = {name: DataLoader(dataset(9, seed=seed), batch_size=4, shuffle=True) for seed, name in enumerate("ab")}
    raises = [False]

    def fragile(model, batch):
        if raises[0] and len(batch[0]) == 6:  # the batch that is scored, after all dev batches
            raise ZeroDivisionError
        return losses(model, batch)

    whole, broken = (
        scorer_of(losses=fragile, dev=dev, network=SMALL, direction=DevDirection(decay=0.5)) for _ in range(2)
    )
    for number in range(4):
        raises[0] = True
        with pytest.raises(ZeroDivisionError):
            broken.step(batch(number, 6))
        raises[0] = False
        assert_equal(broken.step(batch(number, 6)).rewards, whole.step(batch(number, 6)).rewards)
    assert_equal(broken.state_dict(), whole.state_dict())


@pytest.mark.claim("The method", "it is invisible, resumes exactly, and W replicas equal one process")
@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    "network", [None, SmallNetwork(features, replay=3, inner_steps=2), SmallNetwork(features, own_loss=False)]
)
def test_a_resumed_training_equals_the_uninterrupted_one(network, as_json):
    def make(seed=0):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 3)).double()
        dev = {"f": batches_of(dataset(30, seed=1), 6), "l": [batch(i, 5) for i in range(4)]}
        own = network or OwnNetwork(Table(seed))
        scorer = scorer_of(model, own, dev, every=3, priority="low", direction=DevDirection(decay=0.5), seed=seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(i):
            torch.manual_seed(i)
            given = batch(100 + i, 8)
            each = losses(model, given)
            weights = scorer.weights(given, each)
            if not as_json:  # a state of a model is no JSON: it stays as it is
                (weights * each).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            update = scorer.step(given)
            return weights, update and update.rewards

        return {"scorer": scorer} if as_json else {"scorer": scorer, "model": model}, step

    assert_resumes_exactly(make, steps=20, stops=[2, 10], again=partial(make, seed=1), as_json=as_json)


def updates_of(small):
    """Four updates from batches of 12 examples, which the ranks divide."""
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    model = DistributedDataParallel(mlp()) if size > 1 else mlp()
    dev = {name: batches_of(dataset(30, seed=i), 6) for i, name in enumerate("ab")}
    results = []
    for probes in (Probes(batches=4 // size, mode="eval"), Probes(batches=4, count="in all", mode="eval")):
        network = SmallNetwork(features, replay=4) if small else Table()
        scorer = scorer_of(model, network, dev, priority="low", probes=probes)
        for seed in range(4):
            x, y = batch(seed, 12)
            update = scorer.step((x[rank::size], y[rank::size]))
        results.append([scorer.network.state_dict(), scorer.weights(batch(7)), update.dev_losses])
    return results


def check_that_an_error_of_one_rank_is_raised_on_all():
    rank = dist.get_rank()
    with pytest.raises(ValueError, match="ranks.*networks"):
        scorer_of(network=Table(rank)).step(batch(1))
    with pytest.raises((ValueError, RuntimeError), match="7 losses.*6 examples"):
        scorer_of(network=SmallNetwork(lambda b: features(b)[: 7 - rank])).step(batch(1))
    x, y = batch(1)
    assert "example 0 of 7" in scorer_of().step((x / (1 - rank), y)).skipped
    sharded = mlp(width=6)
    fully_shard(sharded, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    with pytest.raises(ValueError, match="sharded"):
        scorer_of(sharded)


@pytest.mark.claim("The method", "it is invisible, resumes exactly, and W replicas equal one process")
@pytest.mark.slow
@pytest.mark.parametrize("small", [False, True])
def test_two_ranks_equal_one_process(small, tmp_path):
    checks = [check_that_an_error_of_one_rank_is_raised_on_all] if small else []
    assert_ranks_equal_one_process(updates_of, tmp_path, arguments=[small], tolerance=1e-5, checks=checks)


# ------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("scorer", "message"),
    [
        (scorer_of(network=Answer(torch.zeros(7, 1))), r"network.*\(7, 1\)"),
        (scorer_of(network=Answer(torch.zeros(()))), r"network.*\(\)"),
        (scorer_of(network=Answer([0.0] * 7)), "network.*list"),
        (scorer_of(network=Answer(torch.tensor([0.0, float("nan")]))), "score of example 1 of 2 is nan"),
        (scorer_of(network=SmallNetwork(lambda b: None)), "features.*NoneType"),
        (scorer_of(network=SmallNetwork(lambda b: b[0][:, 0])), r"features.*\(7,\)"),
        (scorer_of(network=SmallNetwork(lambda b: b[0][:3])), "7 losses.*3 examples"),
        (scorer_of(network=SmallNetwork(lambda b: b[0] * float("nan"))), "features of example 0 of 7"),
        (scorer_of(losses=lambda m, b: losses(m, b).mean()), r"losses.*\(\)"),
        (scorer_of(losses=lambda m, b: losses(m, b).tolist()), "losses.*list"),
        (scorer_of(losses=lambda m, b: losses(m, b)[:, None]), r"losses.*, 1\)"),
    ],
)
def test_scores_features_and_losses_of_other_shapes_are_refused_and_nothing_moves(scorer, message):
    before = scorer.state_dict()
    for call in (scorer.step, scorer.weights):
        with pytest.raises((ValueError, TypeError), match=message):
            call(batch(1))
    after = scorer.state_dict()
    assert after["steps"] == 0
    assert_equal({name: after["tensors"].get(name) for name in before["tensors"]}, before["tensors"])
    assert scorer.network is None or not any(p.any() for p in scorer.network.buffers())


def test_other_numbers_of_scores_and_of_features_are_refused():
    with pytest.raises(ValueError, match=r"7.*\(3,\)"):
        scorer_of(network=Answer(torch.zeros(3))).step(batch(1))
    columns = [3]
    scorer = scorer_of(network=SmallNetwork(lambda b: b[0][:, : columns[0]]))
    scorer.step(batch(1))
    columns[0] = 2
    with pytest.raises(ValueError, match="2 features.*3"):
        scorer.weights(batch(1))


def test_updates_with_numbers_that_are_not_finite_are_skipped_and_nothing_moves():
    x, y = batch(1)
    broken = x.clone()
    broken[2] = float("inf")
    scorer = scorer_of()
    scorer.step((x, y))
    before = scorer.network.state_dict()
    assert "loss of example 2 of 7" in scorer.step((broken, y)).skipped
    assert_equal(scorer.network.state_dict(), before)
    with pytest.raises(ValueError, match="loss of example 2 of 7 is nan"):
        scorer.weights((broken, y))
    assert "dev set 'a'" in scorer_of(dev={"a": [(broken, y)]}).step((x, y)).skipped
    assert "zero" in scorer_of(losses=lambda m, b: losses(m, b) * 0).step((x, y)).skipped


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OwnNetwork("table"), "module.*str"),
        (lambda: OwnNetwork(Table(), 3), "optimizer.*int"),
        (lambda: SmallNetwork(3), "features.*int"),
        (lambda: SmallNetwork(own_loss=False), "features=None.*own_loss=False"),
        (lambda: SmallNetwork(optimizer=3), "optimizer.*int"),
        (lambda: SmallNetwork(replay=0), "replay.*0"),
        (lambda: SmallNetwork(inner_steps=0), "inner_steps.*0"),
        (lambda: DevDirection(decay=1.0), "decay.*1.0"),
        (lambda: DevDirection(eps=2), "eps.*2"),
        (lambda: scorer_of(network=OwnNetwork(Table(), lambda params: 3)), "optimizer.*int"),
        (lambda: scorer_of(network=nn.ReLU()), "no trainable parameters"),
        (lambda: scorer_of(network="small"), "network.*str"),
        (lambda: scorer_of(losses=3), "losses.*int"),
        (lambda: scorer_of(dev={}), "at least one dev set"),
        (lambda: scorer_of(every=0), "every.*0"),
        (lambda: scorer_of(seed=None), "seed.*None"),
        (lambda: scorer_of(priority={"z": 1.0}), "'z'"),
        (lambda: scorer_of(mlp(dtype=torch.bfloat16)), "'0.weight'.*bfloat16"),
        (lambda: scorer_of(model := mlp(), nn.Sequential(model[0], nn.Flatten(0))), "'0.weight'.*model"),
        (lambda: scorer_of(network=Table()).keep_probabilities(batch(1)), "SmallNetwork"),
    ],
)
def test_settings_without_meaning_are_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_a_state_of_something_else_is_refused_and_nothing_changes():
    small, narrow = scorer_of(network=SMALL), scorer_of()
    averaging, other_model = (scorer_of(mlp(width=w), direction=DevDirection(decay=0.5)) for w in (5, 6))
    for scorer in (small, narrow, averaging):
        scorer.step(batch(1))
    state = scorer_of(network=Table()).state_dict()
    cases = [
        (scorer_of(), state, "OwnNetwork"),
        (scorer_of(network=Table()), small.state_dict(), "SmallNetwork"),
        (scorer_of(network=Table()), scorer_of(network=Answer(None)).state_dict(), "parameters"),
        (scorer_of(network=OwnNetwork(Table(), SGD)), state, "Adam.*SGD"),
        (scorer_of(network=Table(), dev={"z": DEV["a"]}), state, "'z' is missing"),
        (narrow, small.state_dict(), "2 features.*0"),
        (other_model, averaging.state_dict(), "direction.*parameters"),
        (small, small.state_dict() | {"version": 2}, "version 2"),
    ]
    for scorer, saved, message in cases:
        before = copy.deepcopy(scorer.state_dict())
        with pytest.raises(ValueError, match=message):
            scorer.load_state_dict(saved)
        assert_equal(scorer.state_dict(), before)
