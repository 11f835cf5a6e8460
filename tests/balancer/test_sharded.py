"""Real processes (gloo): a model in the shards of FSDP2 is balanced as the same model whole, and "
"stays in shards."""

import copy
import json
import os

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import leave
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from toys import batch, dataset, loss

from multidds import Balancer, Mixture, batches_of
from multidds.probes import probe
from multidds.probes.sweep import Direction
from multidds.rules import RelevancePlan, Scorer

pytestmark = [pytest.mark.claim("Several processes", "W replicas and shards equal one process")]

NAMES, DEV = ("a", "b", "c"), ("x", "y")
CASES = [
    {"reward": "multidds"},
    {"reward": "multidds-s", "sketch": 64, "priority": "low"},
    {"reward": "multidds", "step_ahead": 0.05, "sketch": 64, "priority": "high"},
    {"reward": "moving-average", "sketch": "exact"},
    {"scorer": RelevancePlan()},
    {"reward": lambda alignment, weights: alignment.cosines().amin(dim=0), "sketch": "exact", "optimizer": True},
]


class Uneven(nn.Module):
    """Layers that two and four ranks cannot share out evenly, one of them with less rows than ranks."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 7), nn.Linear(7, 5), nn.Linear(5, 3)
        self.drop, self.unused = nn.Dropout(0.4), nn.Linear(2, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.second(self.drop(torch.tanh(self.first(x))))))


def sharded(model, **kwargs):
    for layer in (model.first, model.second):
        fully_shard(layer, **kwargs)
    return fully_shard(model, **kwargs)


def make(shard, total, optimizer=False, **kwargs):
    torch.manual_seed(0)
    model = Uneven().double()
    if shard:
        sharded(model)
    if optimizer:  # which has taken a step, so that there are moments
        kwargs["optimizer"] = torch.optim.Adam(model.parameters(), lr=1e-2)
        loss(model, batch(5)).backward()
        kwargs["optimizer"].step()
        kwargs["optimizer"].zero_grad()
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    sets = [{name: batches_of(dataset(30, seed=seed + i), 4) for i, name in enumerate(names)} for seed, names in
            ((0, NAMES), (10, DEV))]  # fmt: skip
    options = {"scorer": Scorer(lr=1), **kwargs}
    mixture = Mixture.proportional({"a": 1, "b": 2, "c": 5})
    train, dev = sets
    balancer = Balancer(mixture, model, loss, train=train, dev=dev, every=1, batches=total // world_size, **options)
    return model, balancer


def updates(shard, total=8):
    """Two updates of every case, with `total` batches over all ranks."""
    found = []
    for case in CASES:
        _, balancer = make(shard, total, **case)
        for _ in range(2):
            update = balancer.step()
            assert update.skipped is None
            found.append([update.rewards, update.noise, update.dev_losses, update.train_losses, update.weights])
            if (table := update.alignment) is not None:
                found.append([each.tolist() for each in (table.dev_train, table.dev_dev, table.train_norms)])
        found.append(update.mixture)
    return found


def losses(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def slopes(shard):
    """Two updates of 64 datasets by batches that mix them, with and without another objective for dev sets."""
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    found = []
    for dev_loss, dev_sets in ((None, 30), (lambda model, batch: 2 * loss(model, batch), 4)):
        kinds = (("d", 0, 64), ("k", 1000, dev_sets))
        sets = [
            {f"{role}{i:02}": batches_of(dataset(30, seed=seed + i), 4) for i in range(count)}
            for role, seed, count in kinds
        ]
        torch.manual_seed(0)
        model = Uneven().double()
        if shard:
            sharded(model)
        options = {"steps": 2000, "budget": 1.2 / world_size, "total_batches": 4, "dev_loss": dev_loss}
        balancer = Balancer(Mixture.uniform(sets[0]), model, loss, losses=losses, train=sets[0], dev=sets[1], **options)
        before = [p.to_local().tolist() if shard else p.tolist() for p in model.parameters()]
        for _ in range(2):
            update = balancer.update()
            assert update.skipped is None
            found.append([update.rewards, update.noise, update.dev_losses, update.train_losses, update.mixture])
        assert len(update.probed) == 64
        assert before == [p.to_local().tolist() if shard else p.tolist() for p in model.parameters()]
    return found


def check_slopes(rank, folder):
    (folder / f"slopes{rank}.{dist.get_world_size()}.json").write_text(json.dumps(slopes(shard=True)))


def check_updates(rank, folder):
    (folder / f"updates{rank}.{dist.get_world_size()}.json").write_text(json.dumps(updates(shard=True)))


def check_probes_are_invisible(rank, folder):
    """Also in the middle of an accumulation, and where parameters are gathered now."""
    ends = []
    for with_update in (False, True):
        model, balancer = make(True, 8, reward="multidds", priority="low", step_ahead=0.1)
        loss(model, batch(90 + rank)).backward()  # in .grad, in shards
        model.set_requires_gradient_sync(False)
        loss(model, batch(50 + rank)).backward()  # waits for the next one, whole
        loss(model, batch(60 + rank)).backward()
        with torch.no_grad():
            loss(model, batch(1))  # leaves the parameters of the root gathered
        gathered = list(model.head.parameters())
        assert not any(isinstance(p, DTensor) for p in gathered)
        assert balancer.knows_the_parameters
        balancer.refresh_parameters()  # which are the shards, not what is gathered
        torch.manual_seed(7)
        before, grad = torch.get_rng_state(), balancer._prober.params[0].grad
        if with_update:
            assert balancer.step().skipped is None
        assert all(p is q for p, q in zip(model.head.parameters(), gathered, strict=True))
        assert torch.equal(torch.get_rng_state(), before)
        assert balancer._prober.params[0].grad is grad
        model.set_requires_gradient_sync(True)
        loss(model, batch(70 + rank)).backward()
        named = list(model.named_parameters())
        assert all(isinstance(p, DTensor) for _, p in named)
        ends.append(
            [(n, p.to_local().tolist(), None if p.grad is None else p.grad.to_local().tolist()) for n, p in named]
        )
    assert ends[0] == ends[1]


def check_a_rank_holds_its_shards_only(rank, folder):
    seen = []

    def observed(self, look):
        original(self, look)
        seen.append(
            (sum(g.numel() for g in look.gradient if g is not None), sum(v.numel() for v in self._sum if v is not None))
        )

    original = Direction.train
    Direction.train = observed
    try:
        model, balancer = make(True, 4, reward="moving-average")
        balancer.step()
    finally:
        Direction.train = original
    held = sum(p.to_local().numel() for p in model.parameters())
    whole = [None] * dist.get_world_size()
    dist.all_gather_object(whole, held)
    assert sum(whole) == sum(p.numel() for p in model.parameters())
    used = held - sum(p.to_local().numel() for p in model.unused.parameters())
    assert seen == [(held, used)] * len(NAMES)  # t_i is a moving average here, of all parameters
    tensors = balancer.state_dict()["tensors"]
    assert sum(t.to_local().numel() for t in tensors.values()) == len(NAMES) * held


def check_the_table_of_a_probe(rank, folder):
    size = dist.get_world_size()
    mine = {name: [batch(10 * i + rank)] for i, name in enumerate(NAMES)}
    everyones = {name: [batch(10 * i + r) for r in range(size)] for i, name in enumerate(NAMES)}
    for placement, sketch, ahead in ((None, None, None), (None, 16, 0.1), (Shard(1), 16, None)):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Tanh(), nn.Linear(8, 4, bias=False)).double()
        whole = copy.deepcopy(model)
        fully_shard(model, shard_placement_fn=None if placement is None else lambda p: Shard(1))
        found = probe(model, loss, mine, mine, step_ahead=ahead, sketch=sketch)
        groups = [dist.new_group([r]) for r in range(size)]
        alone = DistributedDataParallel(whole, process_group=groups[rank])
        expected = probe(alone, loss, everyones, everyones, step_ahead=ahead, sketch=sketch)
        for key in ("dev_train", "dev_dev", "train_norms"):
            assert torch.allclose(getattr(found, key), getattr(expected, key), atol=1e-12)
        assert found.train_losses == pytest.approx(expected.train_losses)
    with pytest.raises(ValueError, match="the ranks have different names, or other numbers of batches"):
        probe(model, loss, mine, {"x": [batch(0)] * (1 + rank)})


def check_the_wrappers_own_settings(rank, folder):
    """Lower precision, parameters that stay gathered, chosen parameters: as in training, so in probes."""
    size = dist.get_world_size()
    mine = {name: [batch(10 * i + rank, dtype=torch.float32)] for i, name in enumerate(NAMES)}
    everyones = {name: [batch(10 * i + r, dtype=torch.float32) for r in range(size)] for i, name in enumerate(NAMES)}
    found = []
    for policy in (None, MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)):
        torch.manual_seed(1)
        model = Uneven().eval()
        sharded(model, **({} if policy is None else {"mp_policy": policy}))
        model.set_reshard_after_backward(False)
        chosen = [*model.second.parameters(), *model.head.parameters()]
        found.append(probe(model, loss, mine, mine, params=chosen, mode="eval", step_ahead=0.1))
        assert all(p.dtype == torch.float32 for p in model.parameters())
    torch.manual_seed(1)
    whole, groups = Uneven(), [dist.new_group([r]) for r in range(size)]
    chosen = [*whole.second.parameters(), *whole.head.parameters()]
    alone = DistributedDataParallel(whole, process_group=groups[rank])
    expected = probe(alone, loss, everyones, everyones, params=chosen, mode="eval", step_ahead=0.1)
    assert torch.allclose(found[0].dev_train, expected.dev_train, rtol=1e-5)
    assert torch.allclose(found[1].cosines(), expected.cosines(), atol=0.05)
    assert not torch.allclose(found[1].dev_train, expected.dev_train, rtol=1e-5)


def check_shards_of_copies(rank, folder):
    """HSDP: every shard is on two ranks."""
    if dist.get_world_size() != 4:
        return
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    model = sharded(Uneven().double(), mesh=mesh)
    mine = {name: [batch(10 * i + rank)] for i, name in enumerate(NAMES)}
    everyones = {name: [batch(10 * i + r) for r in range(4)] for i, name in enumerate(NAMES)}
    found = probe(model, loss, mine, mine, mode="eval", sketch=32)
    torch.manual_seed(0)
    groups = [dist.new_group([r]) for r in range(4)]
    alone = DistributedDataParallel(Uneven().double(), process_group=groups[rank])
    expected = probe(alone, loss, everyones, everyones, mode="eval", sketch=32)
    assert torch.allclose(found.dev_train, expected.dev_train, atol=1e-12)
    assert found.dev_losses == pytest.approx(expected.dev_losses)


def check_an_error_is_everyones(rank, folder):
    def unlucky(generator):
        if rank == 1:
            raise OSError("no such file")
        return batch(0)

    for priority in ("regular", "low"):
        model = sharded(Uneven().double())
        sources = {"train": {"a": batches_of(dataset(), 4)}, "dev": {"x": batches_of(dataset(), 4), "y": unlucky}}
        balancer = Balancer(Mixture.uniform("a"), model, loss, every=1, priority=priority, **sources)
        with pytest.raises(OSError if rank == 1 else RuntimeError, match="no such file"):
            balancer.step()
    loss(model, batch(rank)).backward()  # nobody was left waiting


def check_what_is_refused(rank, folder):
    size = dist.get_world_size()
    sets = {"train": {"a": batches_of(dataset(), 4)}, "dev": {"x": batches_of(dataset(), 4)}}

    def refusal(model, **kwargs):
        with pytest.raises(ValueError, match="Balancer: ") as error:
            Balancer(Mixture.uniform("a"), model, loss, every=1, **sets, **kwargs)
        return str(error.value)

    parallel = parallelize_module(Uneven(), init_device_mesh("cpu", (size,)), {"first": ColwiseParallel()})
    assert "'first.weight' has the placements (S(0)): tensor parallelism is not supported; use" in refusal(parallel)
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "tp"))
    both = parallelize_module(Uneven(), mesh["tp"], {"first": RowwiseParallel()})
    fully_shard(both, mesh=mesh["dp"])
    assert "tensor parallelism is not supported" in refusal(both)
    half = Uneven()
    fully_shard(half.first)
    assert "the parameter 'second.weight' is not sharded, but others are" in refusal(half)
    assert "'FullyShardedDataParallel' inside the model is not supported; use" in refusal(
        FullyShardedDataParallel(Uneven(), device_id=torch.device("cpu"))
    )
    deep = Uneven()
    deep.head.weight.ds_id = 0
    assert "DeepSpeed holds the parameter 'head.weight'" in refusal(deep)
    uneven = f"total_batches must be a multiple of the {size} ranks that hold shards, but it is {size + 1}."
    assert uneven in refusal(sharded(Uneven()), total_batches=size + 1)
    ones = {name: batches_of(dataset(), 1) for name in map(str, range(70))}
    options = {"train": ones, "dev": ones, "losses": losses, "steps": 2000, "budget": 0.1}
    with pytest.raises(ValueError, match="a sharded model needs probe batches of at least two examples; see batches_"):
        Balancer(Mixture.uniform(ones), sharded(Uneven()), loss, **options)


def averaging(shard):
    return make(shard, 4, reward="moving-average", scorer=Scorer(lr=0.1, optimizer=torch.optim.Adam))


def check_a_checkpoint_goes_on_elsewhere(rank, folder):
    """Four ranks save in the middle, two go on: as one process that nobody has interrupted."""
    model, balancer = averaging(shard=True)
    state = balancer.state_dict()
    if dist.get_world_size() == 4:
        balancer.step()
        state = balancer.state_dict()
    tensors = state.pop("tensors")
    saved = {"model": model.state_dict(), "balancer": json.dumps(state), "averages": tensors}
    if dist.get_world_size() == 4:
        dcp.save(saved, checkpoint_id=folder / "checkpoint")
        return
    dcp.load(saved, checkpoint_id=folder / "checkpoint")
    model.load_state_dict(saved["model"])
    balancer.load_state_dict({**json.loads(saved["balancer"]), "tensors": saved["averages"]})
    update = balancer.step()
    _, alone = averaging(shard=True)
    whole = {key: tensor.full_tensor() for key, tensor in saved["averages"].items()}
    alone.load_state_dict({**json.loads(saved["balancer"]), "tensors": whole})  # as a whole model has saved them
    assert alone.step().mixture == update.mixture
    (folder / f"resumed{rank}.json").write_text(json.dumps([update.step, update.rewards, update.mixture]))


CHECKS = [
    check_updates,
    check_slopes,
    check_probes_are_invisible,
    check_a_rank_holds_its_shards_only,
    check_the_table_of_a_probe,
    check_the_wrappers_own_settings,
    check_shards_of_copies,
    check_an_error_is_everyones,
    check_what_is_refused,
    check_a_checkpoint_goes_on_elsewhere,
]


def one_rank(rank, world_size, folder):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet{world_size}", rank=rank, world_size=world_size)
    for check in CHECKS:
        check(rank, folder)
        (folder / f"{check.__name__}{rank}.{world_size}").touch()
    leave()


def close_to(got, expected):
    if isinstance(expected, dict):
        assert got.keys() == expected.keys()
        got, expected = [got[key] for key in expected], list(expected.values())
    if isinstance(expected, list):
        assert len(got) == len(expected)
        for a, b in zip(got, expected, strict=True):
            close_to(a, b)
    else:
        assert got == pytest.approx(expected, abs=1e-9)


@pytest.mark.claim(
    "The method",
    "a sharded model is balanced like a whole one, on two and four ranks, by mixed batches too; probes "
    "are invisible; checkpoints",
)
@pytest.mark.slow
def test_a_sharded_model_is_balanced_as_a_whole_one(tmp_path):
    for world_size in (4, 2):
        torch.multiprocessing.start_processes(one_rank, (world_size, tmp_path), world_size, start_method="fork")
        for check in CHECKS:
            assert all((tmp_path / f"{check.__name__}{rank}.{world_size}").exists() for rank in range(world_size))
    for what, by_whole_model in (("updates", updates), ("slopes", slopes)):
        found = [[json.loads(path.read_text()) for path in tmp_path.glob(f"{what}*.{n}.json")] for n in (4, 2)]
        assert [len(each) for each in found] == [4, 2]
        assert all(each == results[0] for results in found for each in results)  # on every rank the same bits
        expected = json.loads(json.dumps(by_whole_model(shard=False)))
        close_to(found[0][0], expected)
        close_to(found[1][0], expected)
    _, balancer = averaging(shard=False)
    for _ in range(2):
        update = balancer.step()
    expected = json.loads(json.dumps([update.step, update.rewards, update.mixture]))
    for path in tmp_path.glob("resumed*.json"):
        close_to(json.loads(path.read_text()), expected)
