"""The task of plain_loop.py with a model in shards (FSDP2), and checkpoints from which the same command goes on.

On a machine with GPUs each process takes one; without, all compute on the CPU.

    torchrun --standalone --nproc-per-node 2 examples/sharded_loop.py runs/sharded
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from plain_loop import SIZES, WIDTH, examples
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.data import ConcatDataset, DataLoader

from multidds import Balancer, Mixture, MixtureSampler, batches_of

BATCH = 64  # examples of a step, over all processes


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    device = next(model.parameters()).device
    x, y = (tensor.to(device) for tensor in batch)
    return nn.functional.cross_entropy(model(x), y)


def save(folder: Path, step: int, states: dict[str, dict]) -> None:
    """Writes shards of all ranks, then the name of the whole checkpoint: one that is cut off is never read."""
    dcp.save(states, checkpoint_id=folder / f"step-{step}")
    if dist.get_rank() == 0:
        (folder / "newest.part").write_text(f"step-{step}")
        (folder / "newest.part").replace(folder / "newest")


def main(folder: Path, steps: int = 400, save_every: int = 50) -> dict[str, float]:
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if not dist.is_initialized():
        dist.init_process_group()
    torch.manual_seed(0)
    data = {name: examples(name, size, seed=i) for i, (name, size) in enumerate(SIZES.items())}
    dev = {"web": examples("web", 300, seed=10), "rare": examples("rare", 300, seed=11)}
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 2))
    for layer in (model[0], model):  # in a transformer: its blocks, then the whole
        fully_shard(layer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    mixture = Mixture.proportional(SIZES)
    sampler = MixtureSampler(SIZES, mixture, BATCH // dist.get_world_size(), seed=1)
    loader = DataLoader(ConcatDataset(data.values()), batch_sampler=sampler)
    train_sources, dev_sources = ({name: batches_of(d, 64) for name, d in sets.items()} for sets in (data, dev))
    arguments = {"train": train_sources, "dev": dev_sources, "steps": steps, "examples_per_step": BATCH, "every": 20}
    balancer = Balancer(mixture, model, loss, **arguments)

    def states() -> dict[str, dict]:
        weights, moments = get_state_dict(model, optimizer)
        rest = balancer.state_dict()
        tensors = rest.pop("tensors")  # in shards, like the model
        text = json.dumps({"balancer": rest, "sampler": sampler.state_dict()})
        return {"model": weights, "optimizer": moments, "tensors": tensors, "rest": {"text": text}}

    done = 0
    if (folder / "newest").exists():
        newest = (folder / "newest").read_text()
        loaded = states()
        dcp.load(loaded, checkpoint_id=folder / newest)
        set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
        rest = json.loads(loaded["rest"]["text"])
        balancer.load_state_dict({**rest["balancer"], "tensors": loaded["tensors"]})
        sampler.load_state_dict(rest["sampler"])
        done = int(newest.removeprefix("step-"))
    for step, batch in zip(range(done + 1, steps + 1), loader, strict=False):
        loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        if (update := balancer.step()) and dist.get_rank() == 0:
            print(step, {name: round(p, 3) for name, p in update.mixture.items()}, flush=True)
        if step % save_every == 0:
            save(folder, step, states())
    return mixture.probabilities


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    dist.destroy_process_group()
