"""A MixedDataset in the real Trainer without a callback: the static baseline, with no argument of its own."""

import json
import os
import socket

import pytest
import torch
from ranks import leave
from toy_trainers import SIZES, Classifier, Watched, arguments, simulated, streams, train_sets

from multidds import Mixture
from multidds.integrations.huggingface import MixedDataset

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # on machines with few cores
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator"),  # on a CPU
]


def static(folder, data=None, **settings):
    dataset = MixedDataset(data or train_sets(), Mixture.proportional(SIZES), seed=1)
    return Watched(Classifier(), arguments(folder, gradient_accumulation_steps=1, **settings), train_dataset=dataset)


def flat(batches):
    return [number for batch in batches for number in batch]


@pytest.mark.claim("Hugging Face Trainer", "**static mixture without the callback**: shuffled, with workers")
@pytest.mark.parametrize("workers", [0, 2])
def test_without_a_callback_the_trainer_shuffles_what_the_mixture_draws(workers, tmp_path):
    settings = {"max_steps": 33, "save_strategy": "steps", "save_steps": 15, "dataloader_num_workers": workers}
    whole = static(tmp_path, **settings)
    whole.train()
    expected, seen = flat(simulated(33, 4, {})), flat(whole.seen)
    for start in range(0, 3 * 44, 44):  # an epoch has 44 examples
        assert sorted(seen[start : start + 44]) == sorted(expected[start : start + 44])
        assert seen[start : start + 44] != expected[start : start + 44]
    resumed = static(tmp_path, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-15"))
    assert resumed.seen[7:] == whole.seen[22:]
    assert set(flat(resumed.seen[:7])) <= set(expected[:44])  # accelerate did not tell which epoch it was


@pytest.mark.claim("Hugging Face Trainer", "a static mixture without callback: exact resume")
def test_read_in_order_and_without_a_callback_a_training_resumes_exactly(tmp_path):
    settings = {"max_steps": 33, "save_strategy": "steps", "save_steps": 15, "train_sampling_strategy": "sequential"}
    whole, resumed = static(tmp_path, **settings), static(tmp_path, **settings)
    whole.train()
    assert whole.seen == simulated(33, 4, {})
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-15"))
    assert resumed.seen == whole.seen[15:]
    for p, expected in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(p, expected)


def test_streams_need_no_callback_either(tmp_path):
    trainer = static(tmp_path, streams(), max_steps=12, dataloader_num_workers=2)
    trainer.train()
    names = [
        ["a" if n < 6 else "b" if n < 30 else "c" for n in flat(rows)] for rows in (trainer.seen, simulated(12, 4, {}))
    ]
    for start in range(0, 48, 8):  # a batch of each worker
        assert sorted(names[0][start : start + 8]) == sorted(names[1][start : start + 8])


def replica(rank, port, folder):
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in variables.items()}, GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    seen = []
    for strategy in ("random", "sequential"):
        settings = {"train_sampling_strategy": strategy, "ddp_backend": "gloo", "ddp_find_unused_parameters": False}
        trainer = static(folder, max_steps=12, **settings)
        trainer.train()
        seen.append(trainer.seen)
    (folder / f"{rank}.json").write_text(json.dumps(seen))
    leave()


@pytest.mark.claim("Hugging Face Trainer", "a static mixture without callback in two processes")
@pytest.mark.slow
def test_processes_without_a_callback_share_the_draws_of_an_epoch(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(replica, (port, tmp_path), nprocs=2)
    (shuffled, in_order), (other, in_order_too) = (json.loads((tmp_path / f"{r}.json").read_text()) for r in range(2))
    expected = flat(simulated(22, 4, {}))
    # An epoch has 6 steps of 2 processes; the last batch is filled up from the first examples of the epoch.
    first, second = (flat(shuffled[start : start + 6] + other[start : start + 6]) for start in (0, 6))
    assert set(first) == set(second) == set(expected[:44])  # accelerate does not tell the dataset of the second epoch
    assert shuffled[:6] != shuffled[6:]
    both = flat([*batches] for pair in zip(in_order, in_order_too, strict=True) for batches in pair)
    assert both[:44] == expected[:44]
    assert both[48:92] == expected[44:]
