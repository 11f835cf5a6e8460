"""kill -9 in the trainers that people use, again and again: the goal is that every end is the undisturbed one.

    nice python benchmarks/faults/trainers.py --kills 500 --seed 1

A training of 20 steps has an update every 3 steps and a checkpoint every 4. It is killed up to four times: at any
moment, in a step, in an update, or while a checkpoint is written. Each time the newest checkpoint is resumed. A
checkpoint that its trainer had not finished may be refused by a message that names it ("detected"). Then the one before
is resumed. At the end parameters, optimizer, draws and the whole state of the balancer are compared bit for bit. Every
tenth training runs on a disk that becomes full, and is resumed when there is room.

Libraries are imported once. Each training is a fork.
"""

import argparse
import importlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from faults import Outcome, table
from world import ROOT, Ended, call, can_mount, mount, size_of

STEPS, EVERY, SAVE = 20, 3, 4
SETTINGS = {"max_steps": STEPS, "save_strategy": "steps", "save_steps": SAVE}
PLACES = {"step": 1 / 40, "update": 1 / 8, "save": 1 / 16}  # of a training, within which it ends after it came there
FULL = "full disk"
MARK = "refused: "

Result = dict[str, Any]


def arm(kind: str, place: str, number: int, delay: float, rank: str) -> None:
    """Makes this process end as by kill -9, in the middle of whatever it does; or the rank of it that is given.

    place: where it must come for the `number`-th time; it ends `delay` seconds later.
    """
    from multidds import Balancer

    owner, name = {"step": (Balancer, "step"), "update": (Balancer, "_update")}.get(place) or saver(kind)
    original, numbers = getattr(owner, name), itertools.count(1)

    def deadly(*given: Any, **named: Any) -> Any:
        if next(numbers) == number and os.environ.get("RANK", "0") == rank:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, max(delay, 1e-6))
        return original(*given, **named)

    setattr(owner, name, deadly)


# ------------------------------------------------------------------------------------------------ trainers


def checked(model: Any, optimizer: Any, balancer: Any, draws: Any, checkpoint: Path | None) -> Result:
    """Returns everything that a kill must not change, as plain values.

    If a finished training was resumed, that is only parameters: the Trainer makes one step too many, with the learning
    rate 0, and Lightning makes none.
    """
    plain: Result = {"parameters": {name: tensor.tolist() for name, tensor in model.state_dict().items()}}
    if checkpoint is None or step_of(checkpoint) < STEPS:
        state = balancer.state_dict()
        plain["balancer"] = state | {"tensors": {key: tensor.tolist() for key, tensor in state["tensors"].items()}}
        plain["optimizer"] = [value.tolist() for each in optimizer.state.values() for value in each.values()]
        plain["draws"] = draws
    return dict(json.loads(json.dumps(plain)))


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.stem.split("-")[1])


def by_trainer(trainer: Any, callback: Any, folder: Path, checkpoint: Path | None) -> Result:
    """Trains with a Trainer of transformers. The log and mixture.jsonl are checked, too."""
    from toy_trainers import mixtures

    from multidds.history import moments_of

    optimizer = trainer.create_optimizer()
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    written = [(moment.step, moment.mixture) for moment in moments_of(folder / "mixture.jsonl")]
    draws = [callback.state()["attributes"]["dataset"], sorted(mixtures(trainer).items()), written]
    return checked(trainer.model, optimizer, callback.balancer, draws, checkpoint)


def toy_trainer(module: str, folder: Path, checkpoint: Path | None) -> Result:
    from multidds.rules import RelevancePlan

    made = importlib.import_module(module).trainer_of(folder, EVERY, settings=SETTINGS, rule=RelevancePlan())
    return by_trainer(*made, folder, checkpoint)


def trl(folder: Path, checkpoint: Path | None) -> Result:
    from toy_trl import dev_sets, sft, train_sets

    from multidds.integrations.trl import balance

    trainer = sft(folder, train_sets()["a"], dev_sets(), **SETTINGS)
    return by_trainer(trainer, balance(trainer, train_sets(), every=EVERY), folder, checkpoint)


def lightning(folder: Path, checkpoint: Path | None) -> Result:
    from lightning.pytorch.callbacks import ModelCheckpoint
    from toy_lightning import loader_and_callback, net, trainer

    from multidds.rules import RelevancePlan

    module = net(dropout=0.3)
    loader, callback = loader_and_callback(every=EVERY, callback={"rule": RelevancePlan()})
    settings = {"auto_insert_metric_name": False, "every_n_train_steps": SAVE, "save_top_k": -1}
    made = trainer(folder, callback, ModelCheckpoint(folder, "checkpoint-{step}", **settings), max_steps=STEPS)
    made.fit(module, loader, ckpt_path=checkpoint)
    return checked(module, made.optimizers[0], callback.balancer, loader.state_dict(), checkpoint)


def plain_loop(folder: Path, checkpoint: Path | None, rank: int = 0, ranks: int = 1) -> Result:
    """A loop of one's own, which saves state_dicts. With ranks, its model is in DDP."""
    import torch
    from torch.utils.data import ConcatDataset, DataLoader
    from toys import dataset, loss

    from multidds import Balancer, Mixture, MixtureSampler, batches_of
    from multidds.rules import MovingAverage, RelevancePlan, Scorer

    sizes = {"a": 40, "b": 13, "c": 7}
    data = {name: dataset(size, seed=size) for name, size in sizes.items()}
    dev = {name: batches_of(dataset(9, seed), 4) for seed, name in enumerate("xy", start=1)}
    torch.manual_seed(1)
    layers = torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 3)
    inner = torch.nn.Sequential(*layers).double()
    model = inner if ranks == 1 else torch.nn.parallel.DistributedDataParallel(inner)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    mixture = Mixture.proportional(sizes)
    sampler = MixtureSampler(sizes, mixture, batch_size=8, seed=5)
    train = {name: batches_of(each, 4) for name, each in data.items()}
    rule = Scorer(lr=1.0, reward=MovingAverage()) if ranks == 1 else RelevancePlan()
    lengths = {"every": EVERY, "steps": STEPS, "examples_per_step": 8 * ranks}
    balancer = Balancer(mixture, model, loss, train=train, dev=dev, rule=rule, **lengths)
    parts = {"model": inner, "optimizer": optimizer, "sampler": sampler, "balancer": balancer}
    saved = {"step": 0} if checkpoint is None else torch.load(checkpoint, weights_only=True)
    if checkpoint is not None:
        for name, part in parts.items():
            part.load_state_dict(saved[name])
    loader = DataLoader(ConcatDataset(data.values()), batch_sampler=sampler, generator=torch.Generator())
    for step, batch in zip(range(saved["step"] + 1, STEPS + 1), loader, strict=False):
        torch.manual_seed(2 * step + rank)  # of the dropout
        loss(model, batch).backward()
        balancer.observe("a")  # as if it were a batch of this dataset alone
        optimizer.step()
        optimizer.zero_grad()
        balancer.step()
        if step % SAVE == 0 and rank == 0:
            save({"step": step} | {name: part.state_dict() for name, part in parts.items()}, folder)
    return checked(inner, optimizer, balancer, sampler.state_dict(), checkpoint)


def save(state: Any, folder: Path) -> None:
    import torch

    torch.save(state, folder / "partial")
    (folder / "partial").replace(folder / f"checkpoint-{state['step']}")


def two_ranks(folder: Path, checkpoint: Path | None) -> Result:
    """The loop on two ranks of DDP with gloo. If one dies, the other is ended."""
    import torch.distributed as dist
    from ranks import run_on_ranks

    def in_rank() -> Result:
        return plain_loop(folder, checkpoint, dist.get_rank(), ranks=2)

    return dict(run_on_ranks(in_rank, Path(tempfile.mkdtemp()), 2, fork=True)[0])


TRAINERS: dict[str, tuple[Callable[..., Result], tuple[str, ...]]] = {  # how they train, and what is imported once
    "Trainer": (partial(toy_trainer, "toy_trainers"), ("toy_trainers",)),
    "TRL": (trl, ("toy_trl", "multidds.integrations.trl")),
    "sentence-transformers": (partial(toy_trainer, "toy_st"), ("toy_st",)),
    "Lightning": (lightning, ("toy_lightning",)),
    "plain loop": (plain_loop, ("toys",)),
    "two ranks": (two_ranks, ("toys", "ranks")),
}


def saver(kind: str) -> tuple[Any, str]:
    """Returns (owner, name) of the function that writes a checkpoint."""
    if kind in ("plain loop", "two ranks"):
        return sys.modules[__name__], "save"
    if kind == "Lightning":
        return importlib.import_module("lightning.pytorch").Trainer, "save_checkpoint"
    return importlib.import_module("transformers").Trainer, "_save_checkpoint"


# ------------------------------------------------------------------------------------------------ kills


class Training:
    """Trainings of one kind in one folder, and what they come to without a fault."""

    def __init__(self, kind: str, root: Path) -> None:
        self.kind, self.folder, self.root, self.said = kind, root / "output", root, Counter[str]()
        self.folder.mkdir(parents=True)
        self.seconds = -time.monotonic()
        assert (ended := self.run()).code == 0, ended.output
        self.seconds += time.monotonic()
        self.size, self.expected = size_of(self.folder), json.loads((root / "result.json").read_text())

    def run(self, begin: Callable[[], None] = lambda: None, after: float | None = None) -> Ended:
        """Trains from the newest checkpoint to the end, in a process of its own. begin: what this does first."""

        def body() -> int:
            tempfile.tempdir = str(self.root)
            begin()
            try:
                result = TRAINERS[self.kind][0](self.folder, self.newest())
                (self.root / "result.json").write_text(json.dumps(result))
            except BaseException as error:
                traceback.print_exc()
                print(f"{MARK}{type(error).__name__}: {' '.join(str(error).split())}", flush=True)
                return 1
            return 0

        ended = call(body, self.root, after)
        rank_died = ended.code == 1 and re.search("SIGALRM|closed by peer|reset by peer", ended.output)
        return Ended(None, ended.output) if rank_died else ended

    def newest(self) -> Path | None:
        return max(self.folder.glob("checkpoint-*"), key=step_of, default=None)

    def disturbed(self, rng: random.Random, full: bool) -> list[tuple[str, Outcome]]:
        """Returns (fault, outcome) of every kill of one training, or of its full disk. The last one has the end."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        if full:
            mount("-t", "tmpfs", "-o", f"size={int(rng.uniform(0.1, 0.95) * self.size)}", "tmpfs", str(self.folder))
        try:
            outcomes = self.on_full_disk() if full else self.killed(rng)
            while outcomes and outcomes[-1][1].resumed is None:  # at most once for every checkpoint
                self.go_on(outcomes, "", self.run())
        finally:
            if full:
                subprocess.run(["umount", "-l", str(self.folder)], check=True)
        return outcomes

    def on_full_disk(self) -> list[tuple[str, Outcome]]:
        ended = self.run()
        mount("-o", "remount,size=64m", str(self.folder))
        self.said[f"{FULL}: {refusal(ended)}"] += ended.code
        return [(FULL, Outcome(what=refusal(ended), hung=ended.hung))] if ended.code else []

    def killed(self, rng: random.Random) -> list[tuple[str, Outcome]]:
        """Trains and is killed, one to four times."""
        outcomes = list[tuple[str, Outcome]]()
        for _ in range(rng.randint(1, 4)):
            place = rng.choice(("any", *PLACES))
            if place == "any":
                ended = self.run(after=rng.uniform(0, self.seconds))
            else:
                rank = rng.choice("01") if self.kind == "two ranks" else "0"
                delay = rng.uniform(0, PLACES[place] * self.seconds)
                ended = self.run(partial(arm, self.kind, place, rng.randint(1, 3), delay, rank))
            self.go_on(outcomes, place, ended)
            if ended.code == 0:
                break
        return outcomes

    def go_on(self, outcomes: list[tuple[str, Outcome]], place: str, ended: Ended) -> None:
        """Adds what came of a run: a kill, a checkpoint that was refused, or the end."""
        if ended.code is None:
            outcomes.append((place, Outcome(what=place, hung=ended.hung)))
        elif outcomes:
            outcome, checkpoint = outcomes[-1][1], self.newest()
            if ended.code == 0:
                result = json.loads((self.root / "result.json").read_text())
                outcome.resumed = True
                outcome.differs = any(value != self.expected[key] for key, value in result.items())
            elif checkpoint is None:
                outcome.resumed, outcome.what = False, ended.output
            else:
                said = "".join(line for line in ended.output.splitlines() if not line.startswith(" "))  # no tracebacks
                named = any(path.name in said for path in (checkpoint, *checkpoint.rglob("*")))
                outcome.detected = outcome.detected is not False and named
                self.said[refusal(ended)] += 1
                shutil.rmtree(checkpoint) if checkpoint.is_dir() else checkpoint.unlink()


def refusal(ended: Ended) -> str:
    """Returns the last line of an error, without places and numbers; empty if there was none."""
    lines = [line.removeprefix(MARK) for line in ended.output.splitlines() if line.startswith(MARK)]
    return re.sub(r"/\S*/|\d+", "*", lines[-1]) if lines else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60, help="in all, full disks included")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600.0, help="no training is begun later")
    parser.add_argument("--trainers", default=",".join(TRAINERS), help="only these, with commas between")
    given = parser.parse_args()
    kinds = given.trainers.split(",")
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}
    sys.path.append(str(ROOT / "tests" / "support"))
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for module in [name for kind in kinds for name in TRAINERS[kind][1]]:
        importlib.import_module(module)
    began, found, places = time.monotonic(), list[tuple[str, Outcome]](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="trainers-") as folder:
        mounts = can_mount(Path(folder))
        trainings = [Training(kind, Path(folder).resolve() / kind.replace(" ", "-")) for kind in kinds]
        print(f"A training takes {', '.join(f'{each.seconds:.1f} s ({each.kind})' for each in trainings)}.", flush=True)
        for number in itertools.count():
            if len(found) >= given.kills or time.monotonic() - began > 60 * given.minutes:
                break
            training = trainings[number % len(kinds)]
            rng = random.Random(f"{given.seed} {training.kind} {number}")
            for place, outcome in training.disturbed(rng, full=mounts and number // len(kinds) % 10 == 1):
                places[place] += 1
                found.append((f"{training.kind}, {FULL}" if place == FULL else training.kind, outcome))
                if outcome.bad:
                    print(f"training {number}, {training.kind}: {outcome}", flush=True)
    table(found, [f"{kind}{end}" for kind in TRAINERS for end in ("", f", {FULL}")])
    print("Where they were killed:", ", ".join(f"{place} {count}" for place, count in places.most_common()))
    for line, count in sum((training.said for training in trainings), Counter[str]()).most_common():
        print(f"{count} times: {line}")
    raise SystemExit(int(any(one.differs or one.hung or one.resumed is False for _, one in found)))


if __name__ == "__main__":
    main()
