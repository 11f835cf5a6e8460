"""Training by several processes, as launchers start them: equal to one process, and nothing is lost when they end."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys

import pytest
import torch
from conftest import ROOT
from toy_runs import (
    FAULTY,
    SCRIPTS,
    Silent,
    all_lines,
    launched,
    records,
    same_runs,
    sets,
    small_config,
    tensors,
    torchrun,
)

from multidds._base.errors import UserError
from multidds.nmt.batches.batch import assemble
from multidds.nmt.common import launch
from multidds.nmt.common.processes import Processes
from multidds.nmt.model.device import device_of
from multidds.nmt.runs import checkpoints
from multidds.nmt.training.train import Training, train
from multidds.nmt.training.validation import measure

pytestmark = [
    pytest.mark.claim(
        "Several processes",
        "what is shared, what happens when something goes wrong, resuming with another number of processes",
    ),
]

LATE = 300  # seconds: by then, on any machine, a process that has not ended hangs
TOKENS = "train.tokens=300"
LOSS = "multidds: another process exited; stopping all. Run the same command to resume."


def said(done):
    """What our processes said on standard error; launchers speak too."""
    return [line for line in done.stderr.splitlines() if line.startswith("multidds: ")]


def by_hand(command, cwd, environment):
    """A command as two processes that nobody watches."""
    port, both = free_port(), []
    for rank in ("0", "1"):
        place = dict(zip(launch.LAUNCHED, (rank, "2", "127.0.0.1", port), strict=True))
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        both.append(subprocess.Popen(command, cwd=cwd, env=environment | place, **pipes, text=True))
    return both


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    """A run of two processes that nothing happened to."""
    folder = tmp_path_factory.mktemp("two") / "whole"
    done = launched(folder, text, TOKENS)
    assert done.returncode == 0, done.stderr
    return folder


# ---------------------------------------------------------------------------------------------- the same as one process


def documented():
    """The launchers' commands of all pages, with two processes, and two machines of one process each."""
    pages = [page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md"))]
    found = re.findall(r"(?:^|`)((?:torchrun|accelerate launch) [^`\n]*multidds train [^`\n]*)", "\n".join(pages), re.M)
    for change in (
        (r"R\.toml", "recipes/tiny.toml"),
        (r"--folder \S+", "--folder runs/two"),
        (r"--nnodes 4", "--nnodes 2"),
    ):
        found = [re.sub(*change, line) for line in found]
    found = [re.sub("-node 8", "-node 1" if "--nnodes" in line else "-node 2", line) for line in found]
    assert len(set(found)) == 4
    usual = "torchrun --nproc-per-node"
    nightly = pytest.mark.nightly(part="launchers")
    return [line if line.startswith(usual) else pytest.param(line, marks=nightly) for line in dict.fromkeys(found)]


@pytest.mark.claim("Several processes", "the documented commands start two processes")
@pytest.mark.parametrize("line", documented(), ids=lambda line: " ".join(line.split()[:2]))
@pytest.mark.slow
def test_a_documented_command_trains_as_one_process_does(text, monkeypatch, tmp_path, line):
    overrides = ("model.dropout=0", "train.tokens=300")
    program, *arguments = shlex.split(line.replace("FIRST:29500", f"localhost:{free_port()}"))
    arguments = [str(ROOT / part) if part == "recipes/tiny.toml" else part for part in arguments]
    arguments[arguments.index("--folder") + 1] = str(tmp_path / "two")
    command = [str(SCRIPTS / program), *arguments, *sets(overrides)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    machines = [subprocess.Popen(command, cwd=text, **pipes) for _ in range(1 + ("--nnodes" in line))]
    ends = [machine.communicate(timeout=300) for machine in machines]
    assert all(machine.returncode == 0 for machine in machines), ends
    out = "".join(out for out, _ in ends)
    assert out.count("Finished after 12 steps") == out.count("step 12  loss") == 1
    train(small_config(text, monkeypatch, *overrides), tmp_path / "one", Silent())
    one, two = all_lines(tmp_path / "one"), all_lines(tmp_path / "two")
    places = [[(line.get("kind"), line["step"]) for line in lines] for lines in (one, two)]
    assert places[0] == places[1]
    for ours, theirs in zip(one, two, strict=True):
        for key in ("loss", "mixture", "reward", "noise", "dev_loss", "soft_bleu"):
            if key in ours:
                assert ours[key] == pytest.approx(theirs[key], rel=1e-4), key
        assert ours.get("passes") == theirs.get("passes")
    states = [checkpoints.read(checkpoints.listed(tmp_path / run)[-1])[1] for run in ("one", "two")]
    assert states[0]["stream"] == states[1]["stream"]
    assert (states[0]["processes"], states[1]["processes"]) == (1, 2)


@pytest.mark.slow
def test_a_shared_validation_finds_what_one_process_finds(text, whole, monkeypatch, tmp_path):
    config = small_config(text, monkeypatch, TOKENS)
    run = Training(config, tmp_path / "run")
    run.close()
    weights, _ = checkpoints.read(whole / "best.safetensors")
    run.model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in weights.items()})
    found = measure(run.model.eval(), run.dev, config.train.batch_tokens, run.device)
    (record,) = [record for record in records(whole) if record["kind"] == "validation"]
    assert record["best"]
    for key in ("dev_loss", "accuracy", "expected_accuracy", "soft_bleu"):
        assert record[key] == getattr(found, key)


def test_every_process_has_its_own_dropout_in_every_step(corpus, monkeypatch, tmp_path):
    def seed_and_gradient(rank, step):
        run.processes.rank, run.processes.size, run.progress.step = rank, 2, step
        monkeypatch.setattr(run.optimizer, "zero_grad", lambda: None)
        monkeypatch.setattr(run.optimizer, "step", lambda: None)
        for p in run.model.parameters():
            p.grad = None
        run.step([batch], batch.tokens)
        return torch.initial_seed(), run.model.encoder_norm.g.grad.clone()

    run = Training(small_config(corpus, monkeypatch, "model.dropout=0.5"), tmp_path / "run")
    batch = assemble([(run.data["shift-base"], i) for i in range(5)])
    places = [(0, 0), (1, 0), (0, 1), (1, 1)]
    found = [seed_and_gradient(*place) for place in places]
    assert len({seed for seed, _ in found}) == len({gradient.item() for _, gradient in found}) == 4
    assert seed_and_gradient(1, 0)[1] == found[1][1]
    run.close()


# ---------------------------------------------------------------------------------------------- stopping and going on


@pytest.mark.slow
def test_a_signal_to_one_process_stops_all_and_the_run_goes_on(text, whole, tmp_path):
    stopped = launched(tmp_path / "run", text, TOKENS, faults={"0": [[1, "step", 6, "SIGTERM"]]})
    assert stopped.returncode == 0, stopped.stderr
    assert stopped.stdout.count("Stopped and saved after step 7. To go on: the same command again") == 1
    assert not said(stopped)
    done = launched(tmp_path / "run", text, TOKENS)
    assert done.stdout.startswith("going on after step 7\n")
    same_runs(whole, tmp_path / "run")


@pytest.mark.slow
def test_ctrl_c_stops_all_and_another_number_goes_on(text, monkeypatch, tmp_path):
    overrides = (TOKENS, "train.max_steps=0", "train.max_epochs=100000")
    command, environment = torchrun(tmp_path / "run", *overrides)
    with subprocess.Popen(
        command, cwd=text, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        for line in process.stdout:
            if line.startswith("step 3"):
                process.send_signal(signal.SIGINT)
                break
        assert process.stdout.read().count("Stopped and saved after step ") == 1
    before = checkpoints.read(checkpoints.listed(tmp_path / "run")[-1])[1]
    show = Silent()
    alone = Training(small_config(text, monkeypatch, *overrides), tmp_path / "run")
    assert alone.stream.state_dict() == before["stream"]
    assert alone.mixture.state_dict() == before["mixture"]
    state = alone.balancer.state_dict()
    state.pop("tensors")
    assert json.loads(json.dumps(state)) == before["balancer"]
    alone.close()
    monkeypatch.setattr(Training, "reason_to_finish", lambda self: "enough")
    train(small_config(text, monkeypatch, *overrides), tmp_path / "run", show)
    step = before["progress"]["step"]
    assert show.lines[0].startswith(
        f"going on after step {step}, with 1 process instead of 2: mixture, counts and the next examples are the same"
    )


@pytest.mark.slow
def test_another_number_of_processes_takes_every_example_as_before(text, monkeypatch, tmp_path):
    """Two, then one, then two again, stopped in the middle of pools: with dropout 0 as one that was "
    "never stopped."""
    overrides = ("model.dropout=0", "train.tokens=300", "train.log_every=1")
    two = tmp_path / "two"
    launched(two, text, *overrides, faults={"0": [[1, "step", 4, "SIGTERM"]]})
    stop = iter([False, False, False, True])
    show, config = Silent(), small_config(text, monkeypatch, *overrides)
    with monkeypatch.context() as patch:
        patch.setattr(Processes, "any", lambda self, here: next(stop))
        assert train(config, two, show).step == 9
    assert show.lines[0].startswith("going on after step 5, with 1 process instead of 2: mixture, counts and the next")
    done = launched(two, text, *overrides)
    assert done.stdout.startswith("going on after step 9, with 2 processes instead of 1: mixture, counts and the next")
    train(config, tmp_path / "one", Silent())
    for ours, theirs in zip(all_lines(tmp_path / "one"), all_lines(two), strict=True):
        assert [ours.get(key) for key in ("kind", "step", "passes", "tokens", "sentences")] == [
            theirs.get(key) for key in ("kind", "step", "passes", "tokens", "sentences")
        ]
        for key in ("loss", "mixture", "dev_loss"):  # of other sentences it would be another
            if key in ours:
                assert ours[key] == pytest.approx(theirs[key], rel=1e-4), key
    states = [checkpoints.read(checkpoints.listed(run)[-1])[1] for run in (tmp_path / "one", two)]
    assert states[0]["stream"] == states[1]["stream"]


# ---------------------------------------------------------------------------------------------- faults


@pytest.mark.slow
def test_ranks_killed_anywhere_are_noticed_and_a_restart_goes_on(text, whole, tmp_path):
    faults = {
        "0": [[1, "validate", 12, "slow"], [1, "step", 6, "kill"]],
        "1": [[1, "update", 10, "kill"]],
        "2": [[0, "validate", 12, "kill"]],
        "3": [[1, "validate", 12, "slow"], [0, "save", 12, "kill"]],
    }
    done = launched(tmp_path / "run", text, TOKENS, faults=faults, options=("--max-restarts", "4"))
    assert done.returncode == 0, done.stderr
    assert set(said(done)) == {LOSS}  # torchrun may end a survivor before it has noticed
    assert re.findall("going on after step .*", done.stdout) == [f"going on after step {step}" for step in (4, 8, 8, 8)]
    same_runs(whole, tmp_path / "run")


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.slow
def test_nobody_leaves_before_all_want_to(tmp_path, last):
    leave = "from multidds.nmt.common import launch; launch.form_group(); print(input()); launch.exit_process(0)"
    both = by_hand([sys.executable, "-c", leave], tmp_path, os.environ)
    both[1 - last].stdin.write("first\n")
    both[1 - last].stdin.flush()
    assert both[1 - last].stdout.readline() == "first\n"
    with pytest.raises(subprocess.TimeoutExpired):
        both[1 - last].wait(timeout=2)
    assert both[last].communicate("last\n", timeout=LATE) == ("last\n", "")
    assert both[1 - last].communicate(timeout=LATE) == ("", "")
    assert [process.returncode for process in both] == [0, 0]


def nightly(*values):
    return pytest.param(*values, marks=pytest.mark.nightly(part="faults"))


@pytest.mark.parametrize(
    "fault", [[1, "update", 5], *map(nightly, ([0, "step", 3], [0, "validate", 12], [1, "save", 4]))], ids=str
)
@pytest.mark.slow
def test_a_death_is_noticed_without_a_launcher_that_watches(text, tmp_path, fault):
    command, environment = torchrun(tmp_path / "run", TOKENS, faults={"0": [[*fault, "kill"]]})
    both = by_hand([sys.executable, *command[command.index(str(FAULTY)) :]], text, environment)
    dead = fault[0]
    assert both[dead].wait(timeout=LATE) == -signal.SIGKILL
    _, end = both[1 - dead].communicate(timeout=LATE)
    both[dead].communicate()
    assert both[1 - dead].returncode == 1
    assert end.splitlines()[-1] == LOSS


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ([1, "step", 6, "poison"], r"step 7: the loss or its gradient is not finite on .*step-00000004\.safetensors\."),
        nightly([0, "save", 8, "full"], r".*step-00000008\.safetensors: cannot be written: .*"),
        nightly([1, "update", 5, "ENOSPC"], r"data: No space left on device"),
    ],
    ids=["poison", "full", "update"],
)
@pytest.mark.slow
def test_a_fault_of_one_process_ends_all_with_one_message(text, tmp_path, fault, message):
    done = launched(tmp_path / "run", text, faults={"0": [fault]})
    assert done.returncode == 1
    (line,) = said(done)
    assert re.fullmatch("multidds: " + message, line)
    assert [path.name for path in checkpoints.listed(tmp_path / "run")] == ["step-00000004.safetensors"]
    assert tensors(tmp_path / "run")


@pytest.mark.slow
def test_a_signal_before_the_first_step_is_one_message_too(text, tmp_path):
    done = launched(tmp_path / "run", text, faults={"0": [[1, "_optimizer", 0, "SIGTERM"]]})
    assert done.returncode == 1
    assert said(done) == ["multidds: stopped."]


@pytest.mark.slow
def test_a_mistake_that_all_processes_see_is_said_once(text, tmp_path):
    done = launched(tmp_path / "run", text, "train.max_step=3")
    (line,) = said(done)
    assert line.endswith("[train] has no key 'max_step'. Did you mean 'max_steps'?")


# ---------------------------------------------------------------------------------------------- groups that cannot be


@pytest.fixture
def launcher(monkeypatch):
    """Sets what a launcher would; nobody waits long."""
    port = free_port()
    monkeypatch.setattr(launch, "PATIENCE", 1.0)

    def set_place(rank, size):
        for name, value in zip(launch.LAUNCHED, (rank, size, "127.0.0.1", port), strict=True):
            monkeypatch.setenv(name, str(value))
        return int(port)

    return set_place


@pytest.mark.slow
def test_processes_that_do_not_come_are_named(launcher, monkeypatch):
    port = launcher(0, 3)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    agent = torch.distributed.TCPStore("127.0.0.1", port, is_master=True)
    with pytest.raises(UserError, match=r"3 processes .*127.0.0.1:\d+.* rank 1, 2 did not come within 1 seconds"):
        launch.form_group()
    launcher(2, 3)  # the start is still there: this one comes, and nobody opens it
    with pytest.raises(UserError, match=r"3 processes .*127.0.0.1:\d+.* not all came within 1 seconds"):
        launch.form_group()
    del agent


@pytest.mark.slow
def test_a_launch_without_the_other_machines_is_one_line(launcher):
    launcher(0, 3)
    with pytest.raises(UserError, match=r"rank 0 of 3 .*127.0.0.1:\d+: Timed out .* 1/3 clients joined"):
        launch.form_group()


def test_a_first_process_that_cannot_be_reached_is_one_line(launcher):
    launcher(1, 2)
    with pytest.raises(UserError, match=r"rank 1 of 2 cannot form a group with the others at 127.0.0.1:\d+: ") as found:
        launch.form_group()
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), ("one", 2), (0, 0)])
def test_a_launcher_that_counts_wrongly_is_one_line(launcher, rank, size):
    launcher(rank, size)
    with pytest.raises(UserError, match=f"has RANK={rank}, WORLD_SIZE={size}: expected a rank below"):
        launch.launched()


def test_one_launched_process_is_no_group(launcher):
    launcher(0, 1)
    launch.form_group()
    assert not launch.is_formed()
    assert launch.launched() == (0, 1)


def test_processes_that_have_different_things_do_not_train_together():
    class Two(Processes):
        def gathered(self, value):
            return [value, value | {"checkpoint": 4}]

    Processes().check_same({"recipe": "a", "checkpoint": 8})
    with pytest.raises(UserError, match="rank 1 has another checkpoint than rank 0"):
        Two().check_same({"recipe": "a", "checkpoint": 8})


def test_devices_that_several_processes_cannot_share_are_refused(corpus, monkeypatch):
    for device in ("cuda:1", "mps"):
        config = small_config(corpus, monkeypatch, f"train.device={device}")
        with pytest.raises(UserError, match=rf"device = '{device}' cannot be shared by several processes"):
            device_of(config, 2)
    monkeypatch.setenv("LOCAL_RANK", str(torch.cuda.device_count()))
    with pytest.raises(UserError, match=r"process \d+ of this machine has no GPU: there are \d+\."):
        device_of(small_config(corpus, monkeypatch, "train.device=cuda"), 2)
    assert device_of(small_config(corpus, monkeypatch, "train.device=cpu"), 2) == torch.device("cpu")


def test_every_process_of_a_machine_has_a_gpu_of_its_own(corpus, monkeypatch):
    """As far as a machine without one can tell."""
    config, used, made = small_config(corpus, monkeypatch, "train.device=auto"), [], []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    monkeypatch.setattr(torch, "zeros", lambda *_, device: made.append(device))
    for place in (0, 3, 7):
        monkeypatch.setenv("LOCAL_RANK", str(place))
        assert device_of(config, 16) == torch.device("cuda", place)
    assert used == made == [torch.device("cuda", place) for place in (0, 3, 7)]
    assert device_of(config, 1) == torch.device("cuda")
    assert len(used) == 3


@pytest.mark.parametrize(("gpus", "backend"), [(True, "cpu:gloo,cuda:nccl"), (False, "gloo")])
def test_gradients_go_by_nccl_if_there_are_gpus(monkeypatch, gpus, backend):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    assert launch.backend() == backend
