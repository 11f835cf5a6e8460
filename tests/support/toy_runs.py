"""Translation runs small enough for a test, on the made-up languages; how they are launched and compared."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from made_runs import read_lines

from multidds._base.errors import UserError
from multidds.commands.cli import run as run_command
from multidds.nmt.commands import cli  # noqa: F401  (adds its commands)
from multidds.nmt.config.config import load_config
from multidds.nmt.prepare import prepare
from multidds.nmt.runs import checkpoints

SCRIPTS = Path(sys.executable).parent
FAULTY = ROOT / "tests" / "support" / "faulty_rank.py"

SMALL = (
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.width=16",
    "model.inner=32",
    "model.heads=2",
    "train.tokens=400",
    "train.batch_tokens=200",
    "train.pool=4",
    "train.warmup=5",
    "train.log_every=3",
    "train.save_every=4",
    "train.max_steps=12",
    "mixture.every=5",
    "mixture.probe_tokens=100",
    "mixture.sketch=256",
)
TIMES = ("seconds", "clock", "tokens_per_second")


class Silent:
    """A display that keeps what it is told."""

    def __init__(self):
        self.lines = []

    def progress(self, fraction, facts):
        pass

    def line(self, text):
        self.lines.append(text)

    log = line


class Stopping(Silent):
    """A display that asks the training to stop, as Ctrl-C does."""

    def __init__(self, after):
        super().__init__()
        self.after = after

    def progress(self, fraction, facts):
        if facts.get("step") == self.after:
            signal.raise_signal(signal.SIGINT)


def small_config(corpus, monkeypatch, *overrides, pairs=None):
    """recipes/tiny.toml, smaller; prepared. Relative paths lead into the corpus."""
    monkeypatch.chdir(corpus)
    extra = []
    if pairs:
        folder = "data/made-up/" + "+".join(pairs)
        extra = ["data.pairs=[" + ", ".join(f'"{pair}"' for pair in pairs) + "]", f"data.folder={folder}"]
    config = load_config(ROOT / "recipes" / "tiny.toml", [*SMALL, *extra, *overrides])
    prepare(config, processes=2)
    return config


def mistake(*arguments):
    """The message of a mistake on the command line, made in this process."""
    with pytest.raises(UserError) as caught:
        run_command([str(argument) for argument in arguments])
    message = str(caught.value)
    assert "\n" not in message
    return message


def records(run):
    return [{key: value for key, value in line.items() if key not in TIMES} for line in read_lines(run)]


def all_lines(run):
    """The records and the lines of mixture.jsonl."""
    return [*records(run), *read_lines(run, "mixture.jsonl")]


def tensors(run):
    return checkpoints.read(checkpoints.listed(run)[-1])[0]


def without_identity(facts):
    """Runs that ended alike may have begun with other lengths, which their identities keep."""
    return [{key: value for key, value in one.items() if key != "run"} for one in facts]


def same_runs(a, b):
    one, two = tensors(a), tensors(b)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert without_identity(all_lines(a)) == without_identity(all_lines(b))
    best = [checkpoints.read(run / "best.safetensors") for run in (a, b)]
    assert without_identity([best[0][1]]) == without_identity([best[1][1]])
    assert all(torch.equal(best[0][0][name], best[1][0][name]) for name in best[0][0])


def sets(overrides):
    return [part for override in (*SMALL, *overrides) for part in ("--set", override)]


def torchrun(folder, *overrides, faults=None, options=()):
    """The command and the environment of a launch with two processes and, by their restart, some faults."""
    program = ["-m", "multidds"] if faults is None else [str(FAULTY)]
    recipe = str(ROOT / "recipes" / "tiny.toml")
    start = [str(SCRIPTS / "torchrun"), "--standalone", "--nproc-per-node", "2", *options]
    command = [*start, *program, "train", recipe, "--folder", str(folder), *sets(overrides)]
    return command, os.environ | {"FAULTS": json.dumps(faults or {}), "PYTHONUNBUFFERED": "1"}


def launched(folder, cwd, *overrides, faults=None, options=()):
    command, environment = torchrun(folder, *overrides, faults=faults, options=options)
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
