"""The processes and folders of faults.py: every command once without a fault, and any number of times with one.

A command runs in a process that is forked from one with everything imported. So it is a real process that can be
killed, and it starts without the seconds that imports take.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deaths import Death, launch_ranks, newest_whole

ROOT = Path(__file__).resolve().parents[2]
STALLED = 300.0  # seconds without a new line of output or a change of any file, after which a process hangs
TWO = "train on two"
TIMES = ("seconds", "clock", "tokens_per_second", "checksum")
RECIPE = """\
[data]
folder = "done/prepared"
pairs = ["mirror-base", "shift-base"]
train = "text/{many}-base/train.{lang}"
dev = "text/{many}-base/dev.{lang}"
test = "text/{many}-base/test.{lang}"
max_length = 60
[vocabulary]
size = 60
[model]
encoder_layers = 1
decoder_layers = 1
width = 16
inner = 32
heads = 2
[train]
max_steps = 16
tokens = 400
batch_tokens = 200
pool = 4
warmup = 5
log_every = 3
save_every = 4
validate_every = 8
keep = 3
threads = 1
[mixture]
every = 5
probe_tokens = 100
sketch = 256
[translate]
beam = 1
"""
EXPERIMENT = """\
folder = "{place}/runs"
parallel = 2
[settings.s]
recipe = "{root}/recipe.toml"
[methods.uniform]
set = {{mixture = {{method = "static", prior = "uniform"}}}}
[methods.learned]
[[blocks]]
name = "all"
settings = ["s"]
methods = ["uniform", "learned"]
seeds = [1]
"""


# ------------------------------------------------------------------------------------------------ processes


@dataclass
class Ended:
    code: int | None  # None: killed
    output: str
    hung: bool = False

    @property
    def refused(self) -> bool:
        """One line about the fault and exit code 2; an experiment has exit code 1 and a line per run."""
        lines = [line for line in self.output.splitlines() if line.startswith(("multidds: ", "failed: "))]
        return self.code in (1, 2) and bool(lines) and "Traceback" not in self.output


def kill(child: int) -> None:
    """A process and all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)


def call(
    body: Callable[[], int],
    cwd: Path,
    after: float | None = None,
    meanwhile: Callable[[int], None] = kill,
) -> Ended:
    """A command in a process of its own, forked from this one, which has imported everything already.

    A slow machine is not a hanging process: it hangs if nothing that it writes changes for STALLED seconds.

    after: seconds until `meanwhile` is called with the number of the process.
    """
    sys.stdout.flush()
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            os._exit(_in_child(body, cwd, output.fileno()))
        began = looked = moved = time.monotonic()
        progress: Any = None
        hung = False
        while (waited := os.waitpid(child, os.WNOHANG))[0] == 0:
            now = time.monotonic()
            if after is not None and now - began > after:
                after = None
                meanwhile(child)
            if now - looked > 1:
                written = os.fstat(output.fileno()).st_size, states_of_files(cwd)
                moved = now if written != progress else moved
                looked, progress = now, written
            if hung := now - moved > STALLED:
                kill(child)
                waited = os.waitpid(child, 0)
                break
            time.sleep(0.002)
        kill(child)  # what it has left
        output.seek(0)
        code = os.waitstatus_to_exitcode(waited[1])
        return Ended(code if code >= 0 else None, output.read().decode("utf-8", "replace"), hung)


def states_of_files(folder: Path) -> dict[str, tuple[int, int]]:
    """The size and the time of the last change of every file below a folder, also while files come and go."""
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                about = os.stat(path := os.path.join(place, name))
                found[path] = about.st_size, about.st_mtime_ns
    return found


def _in_child(body: Callable[[], int], cwd: Path, output: int) -> int:
    os.setsid()
    os.chdir(cwd)
    os.dup2(output, 1)
    os.dup2(output, 2)
    return body()


def run_command(arguments: list[str], setup: Callable[[], None]) -> int:
    """The command line, in this process; its exit code."""
    sys.argv = ["multidds", *arguments]
    code: Any = 0
    try:
        from multidds.nmt.commands.cli import main

        setup()
        main()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    return int(code)


# ------------------------------------------------------------------------------------------------ commands


@dataclass
class Command:
    """A command whose output is below one folder: what it needs there, how it is called, and what came of it."""

    name: str
    arguments: Callable[[Path], list[str]]
    begin: Callable[[Path], None]
    result: Callable[[Path], Any]
    seconds: float = 1.0  # that it takes
    size: tuple[int, int] = (0, 0)  # bytes in its folder before and after it
    expected: Any = None
    ranks: bool = False  # under the agent of torchrun

    def body(
        self, place: Path, setup: Callable[[], None] = lambda: None, restarts: int = 0, deaths: Sequence[Death] = ()
    ) -> Callable[[], int]:
        """What a process does that runs it."""

        def main() -> int:
            return run_command(self.arguments(place), setup)

        if not self.ranks:
            return main
        return lambda: launch_ranks(main, restarts, list(deaths), lambda: newest_whole(place / "run"))


@dataclass
class World:
    """Everything made once without faults, in root/done; faults happen in root/place."""

    root: Path
    commands: dict[str, Command] = field(default_factory=dict)
    can_mount: bool = False

    @property
    def place(self) -> Path:
        return self.root / "place"

    @property
    def done(self) -> Path:
        return self.root / "done"

    @property
    def other(self) -> Path:
        """A folder with the run of another seed, which is made when it is first needed."""
        folder = self.root / "other"
        if not folder.exists():
            folder.mkdir()
            train = [*self.commands["train"].arguments(folder), "--set", "train.seed=2"]
            for arguments in (train, self.commands["evaluate"].arguments(folder)):
                ended = call(lambda arguments=arguments: run_command(arguments, lambda: None), self.root)
                assert ended.code == 0, ended.output
        return folder

    def call(
        self, command: Command, after: float | None = None, meanwhile: Callable[[int], None] = kill, **options: Any
    ) -> Ended:
        """options: of the command's body."""
        return call(command.body(self.place, **options), self.root, after, meanwhile)

    @contextlib.contextmanager
    def fresh(self, command: Command, size: int | None = None) -> Iterator[None]:
        """An empty place with what the command needs; with a size, on a small disk."""
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir()
        if size is not None:
            mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(self.place))
        try:
            command.begin(self.place)
            yield
        finally:
            if size is not None:
                subprocess.run(["umount", "-l", str(self.place)], check=True)
            shutil.rmtree(self.place, ignore_errors=True)


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


def can_mount(folder: Path) -> bool:
    """Returns whether a small disk can be mounted in a folder."""
    try:
        (folder / "try").mkdir()
        mount("-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder / "try"))
        subprocess.run(["umount", str(folder / "try")], check=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def make_world(root: Path, names: set[str]) -> World:
    """With the commands of these names, and those whose results they need."""
    sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests" / "support")]
    import made_up_languages

    made_up_languages.TRAINING, made_up_languages.HELD_OUT = {"mirror": 80, "shift": 240}, 15
    made_up_languages.write(root / "text")
    (root / "recipe.toml").write_text(RECIPE)
    (root / "done").mkdir()
    needed = names | {"prepare", "train", "evaluate"}
    world = World(root, {name: command for name, command in commands_of(root).items() if name in needed})
    world.can_mount = can_mount(root)
    if not world.can_mount:
        print("No disk can be mounted here: files that may not grow stand for full disks.")
    for command in world.commands.values():
        where = world.done if command.name in ("prepare", "train") else world.root / f"done-{command.name}"
        where.mkdir(exist_ok=True)
        command.begin(where)
        before, began = size_of(where), time.monotonic()
        ended = call(command.body(where), root)
        assert ended.code == 0, ended.output
        command.seconds, command.size = time.monotonic() - began, (before, size_of(where))
        command.expected = command.result(where)
    shutil.copytree(root / "done-evaluate" / "run", world.done / "run", dirs_exist_ok=True)
    return world


def size_of(folder: Path) -> int:
    """In pages, as a disk counts."""
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in folder.rglob("*") if path.is_file())


def commands_of(root: Path) -> dict[str, Command]:
    recipe = str(root / "recipe.toml")

    def experiment(place: Path) -> None:
        (place / "e.toml").write_text(EXPERIMENT.format(place=place, root=root))

    def run(place: Path) -> None:
        made = shutil.ignore_patterns("export", "scores.json", "hypotheses", "references")
        shutil.copytree(root / "done" / "run", place / "run", ignore=made)

    def nothing(place: Path) -> None:
        pass

    prepared = ["prepare", recipe, "--processes", "1", "--set"]
    listed = [
        Command("prepare", lambda p: [*prepared, f"data.folder={p}/prepared"], nothing, files),
        Command("train", lambda p: ["train", recipe, "--run", f"{p}/run"], nothing, lambda p: trained(p / "run")),
        Command(
            TWO,
            lambda p: ["train", recipe, "--folder", f"{p}/run"],
            nothing,
            lambda p: trained(p / "run"),
            ranks=True,
        ),
        Command("evaluate", lambda p: ["evaluate", f"{p}/run", "--threads", "1"], run, lambda p: scored(p / "run")),
        Command("report", lambda p: ["report", f"{root}/done-evaluate/run", "-o", f"{p}/report"], nothing, tables),
        Command("experiment", lambda p: ["experiment", f"{p}/e.toml"], experiment, runs),
    ]
    return {command.name: command for command in listed}


def files(place: Path) -> Any:
    """The digests in the manifest of prepared data."""
    return json.loads((place / "prepared" / "manifest.json").read_text())["files"]


def trained(run: Path) -> Any:
    """The newest checkpoint, the best model, the records and the updates, but for times."""
    from multidds.nmt.runs import checkpoints

    tensors = {}
    for path in (checkpoints.listed(run)[-1], run / "best.safetensors"):
        for name, array in checkpoints.read(path, framework="numpy")[0].items():
            tensors[path.name, name] = hashlib.sha256(array.tobytes()).hexdigest()
    files = [run / name for name in ("records.jsonl", "mixture.jsonl")]
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    return tensors, [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


def scored(run: Path) -> Any:
    scores = json.loads((run / "scores.json").read_text())
    texts = {place: (run / place).read_text() for place in scores["files"]}
    return scores["pairs"], texts


def runs(place: Path) -> Any:
    return {str(run.relative_to(place)): (trained(run), scored(run)) for run in sorted(place.glob("runs/s/*/*"))}


def tables(place: Path) -> Any:
    """Those of a report, but for where the run is."""
    found = sorted((place / "report" / "tables").iterdir())
    return {path.name: re.sub(r"[^\s,&]+/run\b", "run", path.read_text()) for path in found}
