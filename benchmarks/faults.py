"""Random faults over every command that writes, and whether anything was lost: the goal is a table of zeros.

    python benchmarks/faults.py --count 500 --seed 1

Every fault is a function of the seed and its number. Real processes are killed, real small disks (tmpfs, where we may
mount) run full; damage is done to copies of finished folders. KINDS is the table of faults: a kind is a function
(world, command, rng) -> Outcome, with the commands that it is for and how often it is drawn. docs/translation.md
says what each fault should lead to.
"""

import argparse
import os
import random
import resource
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault_world import Command, Ended, World, make_world, mount


@dataclass
class Outcome:
    """What came of one fault. `detected` None: there was nothing to be said."""

    detected: bool | None = None
    resumed: bool | None = None
    lost: int = 0  # steps beyond the last checkpoint
    accepted: bool = False
    differs: bool = False
    hung: bool = False
    what: str = ""

    @property
    def bad(self) -> bool:
        failed = self.detected is False or self.resumed is False
        return failed or bool(self.lost) or self.accepted or self.differs or self.hung


def go_on(world: World, command: Command, fault: Ended, detected: bool | None, what: str) -> Outcome:
    """The same command again, to the end, and whether that is the end without a fault."""
    from multidds.nmt import checkpoints

    steps = [step for path in checkpoints.listed(world.place / "run") if (step := whole_step(path)) is not None]
    ended = world.call(command)
    outcome = Outcome(detected, ended.code == 0, hung=fault.hung or ended.hung, what=what)
    if detected is False:
        outcome.what += f"; said: {fault.output[-600:]}"
    if ended.code:
        outcome.what += f"; then: {ended.output[-600:]}"
        return outcome
    outcome.differs = command.result(world.place) != command.expected
    if command.name == "train" and steps:
        line = next((line for line in ended.output.splitlines() if line.startswith("going on after step ")), "")
        gone_on = int(line.removeprefix("going on after step ")) if line else steps[-1]
        outcome.lost = max(0, steps[-1] - gone_on)
    return outcome


def whole_step(path: Path) -> int | None:
    from multidds.nmt import checkpoints
    from multidds.nmt.errors import UserError

    try:
        checkpoints.check(path)
    except UserError:
        return None
    return checkpoints.step_of(path)


def killed(world: World, command: Command, rng: random.Random) -> Outcome:
    """kill -9 of the process and all that it has started, at any moment, once to three times."""
    with world.fresh(command):
        moments = []
        for _ in range(rng.choice((1, 1, 2, 3))):
            moments.append(rng.uniform(0, 1.1 * command.seconds))
            fault = world.call(command, kill_after=moments[-1])
        return go_on(world, command, fault, None, f"killed after {', '.join(f'{m:.2f}' for m in moments)} s")


def full_disk(world: World, command: Command, rng: random.Random) -> Outcome:
    """A disk with room for a part of the output; then there is room again."""
    before, after = command.size
    size = int(before + 16_384 + rng.uniform(0, 1) * (after - before))
    if not world.can_mount:
        return file_limit(world, command, rng)
    with world.fresh(command, size):
        fault = world.call(command)
        mount("-o", "remount,size=64m", str(world.place))
        detected = None if fault.code == 0 else fault.refused
        return go_on(world, command, fault, detected, f"{size} of {after} bytes")


def file_limit(world: World, command: Command, rng: random.Random) -> Outcome:
    """No file may grow beyond a size, as with a quota; then it may."""
    largest = int(10 ** rng.uniform(3.5, 5.5))  # what it says is a file, too
    with world.fresh(command):
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        fault = world.call(command, setup=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (largest, limits[1])))
        return go_on(world, command, fault, None if fault.code == 0 else fault.refused, f"files of {largest} bytes")


def read_only(world: World, command: Command, rng: random.Random) -> Outcome:
    """A disk that nothing can be written to; then it can."""
    if not world.can_mount:
        return file_limit(world, command, rng)
    with world.fresh(command, 1 << 26):
        mount("-o", "remount,ro", str(world.place))
        fault = world.call(command)
        mount("-o", "remount,rw", str(world.place))
        return go_on(world, command, fault, fault.refused, "read-only")


def vanished(world: World, command: Command, rng: random.Random) -> Outcome:
    """The folder is gone while the command works, as on a network; then it is there again."""
    away = world.root / "away"
    with world.fresh(command):

        def vanish() -> None:
            world.place.rename(away)

        fault = world.call(command, kill_after=rng.uniform(0, command.seconds), meanwhile=vanish)
        if away.exists():
            shutil.rmtree(world.place, ignore_errors=True)
            away.rename(world.place)
        return go_on(world, command, fault, None if fault.code == 0 else fault.refused, "gone and back")


def damaged_run(world: World, command: Command, rng: random.Random) -> Outcome:
    """The newest checkpoint or the records of a run are damaged: it goes on from what is whole before it."""
    from multidds.nmt import checkpoints

    with world.fresh(command):
        run = world.place / "run"
        shutil.copytree(world.done / "run", run)
        path = rng.choice([checkpoints.listed(run)[-1], run / "records.jsonl"])
        if path.suffix == ".jsonl":  # in a line behind an older checkpoint
            lines = path.read_bytes().splitlines(keepends=True)
            place = len(b"".join(lines[:-1])) + rng.randrange(len(lines[-1]))
            what = flip(path, rng, place)
        else:
            what = rng.choice(DAMAGE[:3])(path, rng)
        fault = world.call(command)
        return go_on(world, command, fault, fault.code == 0 and path.name in fault.output, f"{path.name}: {what}")


def flip(path: Path, rng: random.Random, place: int | None = None) -> str:
    content = bytearray(path.read_bytes())
    place = rng.randrange(len(content)) if place is None else place
    content[place] ^= 1 << rng.randrange(8)
    return rewrite(path, bytes(content), f"bit at byte {place}")


def cut(path: Path, rng: random.Random) -> str:
    content = path.read_bytes()
    left = rng.randrange(len(content))
    return rewrite(path, content[:left], f"cut to {left} of {len(content)} bytes")


def blank(path: Path, rng: random.Random) -> str:
    """A block of zeros, as a disk leaves it."""
    content = path.read_bytes()
    place = rng.randrange(len(content)) // 512 * 512
    changed = content[:place] + bytes(len(content[place : place + 512])) + content[place + 512 :]
    return flip(path, rng) if changed == content else rewrite(path, changed, f"zeros from byte {place}")


def remove(path: Path, rng: random.Random) -> str:
    path.unlink()
    return "removed"


def rewrite(path: Path, content: bytes, what: str) -> str:
    path.unlink()  # it may be a link to the whole one
    path.write_bytes(content)
    return what


DAMAGE: list[Callable[..., str]] = [flip, cut, blank, flip, flip, remove]


def damaged(world: World, command: Command, rng: random.Random) -> Outcome:
    """A file of a finished run, of prepared data or of a corpus: whoever opens it says so, and so does verify."""
    from multidds.nmt.errors import UserError
    from multidds.nmt.verify import verify

    which = {"prepare": "prepared", "corpus": "corpus"}.get(command.name, "run")
    folder = world.root / "damaged" / which
    shutil.rmtree(folder, ignore_errors=True)
    unread = shutil.ignore_patterns("tensorboard", "wheels")
    shutil.copytree(world.done / which, folder, copy_function=os.link, ignore=unread)
    path = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size))
    choice = rng.choice(DAMAGE[:5] if path.parent.name == "checkpoints" else DAMAGE)
    what = f"{path.relative_to(folder)}: {choice(path, rng)}"
    said = []
    for check in (lambda: openers(folder, path), lambda: [line for one in verify(folder) for line in one.lines()]):
        try:
            said.append(str(check()))
        except UserError as error:
            said.append(str(error))
        except Exception:
            said.append("")
            what += "; " + traceback.format_exc()
    named = [path.name in line or (choice is remove and str(folder) in line) for line in said]
    return Outcome(detected=all(named), accepted=not named[0], what=f"{what}; said: {said}" if not all(named) else what)


def openers(folder: Path, path: Path) -> Any:
    """Open a file as the commands do that read it. What was passed over, if that is how damage is met."""
    from multidds.nmt import checkpoints, records, scores, translate, vocabulary
    from multidds.nmt.catalogues.folder import Folder, check_made
    from multidds.nmt.config import load_config, read_run
    from multidds.nmt.prepare import Prepared
    from multidds.nmt.sealed import sha256

    if folder.name == "corpus":
        if path.suffix in (".tur", ".rus", ".eng") and path.exists():
            check_made(path, sha256(path))
        with Folder(folder) as place:
            return "" if place.whole() else path.name  # it is made again
    if folder.name == "prepared":
        prepared = Prepared(load_config(folder.parent.parent / "recipe.toml", [f"data.folder={folder}"]))
        for pair in prepared.sizes:
            for side in ("source", "target"):
                prepared.arrays(pair, "train", side), prepared.arrays(pair, "dev", side)
                prepared.test_lines(pair, side)
        return [vocabulary.load_model(folder, name) for name in ("mirror", "shift", "base")] and ""
    if path.parent.name == "checkpoints":
        if path != checkpoints.listed(folder)[-1]:
            return checkpoints.read(path, "numpy") and ""
        found = checkpoints.newest(folder)
        return "" if found is None else found.passed_over
    config, _ = read_run(folder)
    if path.parent.name == "export":
        return translate.read_export(folder / "export") and ""
    if path.name == "best.safetensors":
        return checkpoints.read(path, "numpy") and ""
    records.read_records(folder)
    vocabulary.load_vocabulary(folder / "vocabulary")
    for name in vocabulary.models_of(config):
        vocabulary.load_model(folder / "vocabulary", name)
    for part in ("hypotheses", "references"):
        for pair in config.data.names:
            scores.scored_lines(folder, part, pair)
    return ""


Kind = Callable[[World, Command, random.Random], Outcome]
# Kind of fault -> (what it does, the commands it is for, how often it is drawn).
QUICK = ("prepare", "train", "train", "evaluate", "corpus", "report")
KINDS: dict[str, tuple[Kind, tuple[str, ...], float]] = {
    "damaged file": (damaged, ("train", "train", "prepare", "corpus"), 60),
    "damaged run goes on": (damaged_run, ("train",), 8),
    "kill -9": (killed, (*QUICK, *QUICK, "experiment"), 14),
    "full disk": (full_disk, (*QUICK, *QUICK, "experiment"), 8),
    "file limit": (file_limit, QUICK, 4),
    "read-only disk": (read_only, QUICK, 2),
    "folder gone": (vanished, ("train", "train", "prepare", "evaluate"), 4),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0, help="no fault is begun later")
    parser.add_argument("--kinds", default="", help=f"only these, with commas between: {', '.join(KINDS)}")
    parser.add_argument("--commands", default="", help="only these, with commas between")
    given = parser.parse_args()
    wanted = set(given.commands.split(",")) if given.commands else {name for kind in KINDS.values() for name in kind[1]}
    chosen = [kind for kind in KINDS if not given.kinds or kind in given.kinds.split(",")]
    chosen = [kind for kind in chosen if wanted & set(KINDS[kind][1])]
    import torch

    import multidds.nmt.evaluate
    import multidds.nmt.report
    import multidds.nmt.train  # noqa: F401  once, for all the processes that are forked

    torch.set_num_threads(1)
    began, found = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        world = make_world(Path(folder).resolve(), wanted & {name for kind in chosen for name in KINDS[kind][1]})
        print(
            f"The commands take {', '.join(f'{c.name} {c.seconds:.1f} s' for c in world.commands.values())}.",
            flush=True,
        )
        for number in range(given.count):
            if time.monotonic() - began > 60 * given.minutes:
                print(f"Stopped after {number} faults: the time is over.")
                break
            rng = random.Random(f"{given.seed} {number}")
            kind = rng.choices(chosen, [KINDS[kind][2] for kind in chosen])[0]
            make, commands, _ = KINDS[kind]
            command = world.commands[rng.choice([name for name in commands if name in wanted])]
            outcome = make(world, command, rng)
            found.append((kind, outcome))
            if outcome.bad:
                print(f"fault {number}: {kind}, {command.name}: {outcome}", flush=True)
    raise SystemExit(table(found))


def table(found: list[tuple[str, Outcome]]) -> int:
    """Prints what came of the faults; 1 if a goal was missed."""
    columns = ("injected", "detected", "resumed", "steps lost", "accepted", "end differs", "hangs")
    print("| fault | " + " | ".join(columns) + " |\n|---|" + "---:|" * len(columns))
    for kind in [*dict.fromkeys(kind for kind, _ in found), "all"]:
        of_kind = [outcome for name, outcome in found if kind in (name, "all")]
        counts = Counter[str]()
        for one in of_kind:
            counts.update({
                "injected": 1, "detected": int(one.detected is True), "to detect": int(one.detected is not None),
                "resumed": int(one.resumed is True), "to resume": int(one.resumed is not None), "steps lost": one.lost,
                "accepted": int(one.accepted), "end differs": int(one.differs), "hangs": int(one.hung),
            })  # fmt: skip
        cells = {name: str(counts[name]) for name in columns}
        cells["detected"] += f" of {counts['to detect']}"
        cells["resumed"] += f" of {counts['to resume']}"
        print(f"| {kind} | " + " | ".join(cells.values()) + " |", flush=True)
    return int(any(outcome.bad for _, outcome in found))


if __name__ == "__main__":
    main()
