"""Random faults in every command that writes, and a count of losses: the goal is zeros.

    python benchmarks/faults/faults.py --count 500 --seed 1 --results faults.jsonl

Every fault is a function of the seed and its number. The first faults are one of each kind. Real processes are
killed. Real small disks run full (tmpfs, if mounting is allowed). Ranks under the agent of torchrun die. Copies of
finished folders are damaged, and files are swapped between runs. KINDS is the table of faults. A kind is a function
(world, command, rng) -> Outcome, with its commands and its frequency. docs/recovery.md and docs/distributed.md say
what must happen after a fault. With --results every outcome is a line of that file, and the same command continues
after the last.
"""

import argparse
import importlib
import json
import os
import random
import resource
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from damage import DAMAGE, Damaged, copy_damaged, copy_swapped, flip, opened, rewrite, text_in, used
from deaths import RANKS, Death, newest_whole, starts_of, steps_lost
from world import TWO, Command, Ended, World, make_world, mount

# Once, for all the processes that are forked: of the commands, and of what they import when they need it.
IMPORTED = (
    "multidds.nmt.commands.cli",
    "multidds.nmt.evaluation.evaluate",
    "multidds.nmt.report.section",
    "multidds.nmt.training.train",
    "tensorboard.compat.proto.event_pb2",
    "tensorboard.summary.writer.record_writer",
    "torch._dynamo",
    "torch.distributed.launcher.api",
    "matplotlib.backends.backend_pdf",
    "fontTools.subset",
)
USED = 0.35  # of the damaged files, how many are also read by a command


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
    file: str = ""  # the kind of file that was damaged
    noticed: float = 0.0  # seconds from the death of a rank to the end of the others

    @property
    def bad(self) -> bool:
        failed = self.detected is False or self.resumed is False
        return failed or bool(self.lost) or self.accepted or self.differs or self.hung


def go_on(world: World, command: Command, fault: Ended, detected: bool | None, what: str) -> Outcome:
    """The same command again, to the end, and whether that is the end without a fault."""
    newest = newest_whole(world.place / "run")
    ended = world.call(command)
    outcome = Outcome(detected, ended.code == 0, hung=fault.hung or ended.hung, what=what)
    if detected is False:
        outcome.what += f"; said: {fault.output[-600:]}"
    if ended.code != 0:
        outcome.what += f"; then: {ended.output[-600:]}"
        return outcome
    outcome.differs = command.result(world.place) != command.expected
    if command.name in ("train", TWO):
        outcome.lost = steps_lost(newest, ended.output.splitlines())
    return outcome


def killed(world: World, command: Command, rng: random.Random) -> Outcome:
    """kill -9 of the process and all that it has started, at any moment, once to three times."""
    with world.fresh(command):
        moments = []
        for _ in range(rng.choice((1, 1, 2, 3))):
            moments.append(rng.uniform(0, 1.1 * command.seconds))
            fault = world.call(command, moments[-1])
        return go_on(world, command, fault, None, f"killed after {', '.join(f'{m:.2f}' for m in moments)} s")


def signalled(world: World, command: Command, rng: random.Random) -> Outcome:
    """Ctrl-C or SIGTERM at any moment: no traceback, and the same command goes on."""
    number, moment = rng.choice((signal.SIGTERM, signal.SIGINT)), rng.uniform(0, command.seconds)
    with world.fresh(command):
        fault = world.call(command, moment, lambda child: os.kill(child, number))
        quiet = "Traceback" not in fault.output
        return go_on(world, command, fault, None if quiet else False, f"{number.name} after {moment:.2f} s")


# Place in a training of two ranks -> (the steps where it comes by there, the seconds it is there for).
PLACES = {
    "step": (range(16), 0.05),
    "update": (range(5, 16, 5), 0.4),
    "validate": (range(8, 17, 8), 0.6),
    "save": (range(4, 17, 4), 0.03),
}


def dead_rank(world: World, command: Command, rng: random.Random) -> Outcome:
    """One of two ranks dies in a step, an update, a validation, while saving or at any other moment, once to three
    times; with or without restarts."""
    deaths: list[Death] = []
    for start in range(rng.choice((1, 1, 2, 3))):
        place = rng.choice([*PLACES, "start"])
        steps, seconds = PLACES.get(place, ((0,), command.seconds))
        later = [step for step in steps if not deaths or step >= deaths[-1].step] or steps[-1:]
        deaths.append(Death(start, rng.randrange(RANKS), place, rng.choice(later), rng.uniform(0, seconds)))
    restarts = rng.choice((0, len(deaths)))
    what = f"{restarts} restarts, {', '.join(f'rank {d.rank} in {d.place} {d.step} + {d.delay:.3f} s' for d in deaths)}"
    with world.fresh(command):
        fault = world.call(command, restarts=restarts, deaths=deaths)
        starts = starts_of(fault.output)
        died = [start for start in starts if start.deaths]
        noticed = max((start.seconds for start in died), default=0.0)
        detected = all(start.is_clear for start in died) if died else None
        if fault.code == 0:
            outcome = Outcome(detected, True, hung=fault.hung, what=what)
            outcome.differs = command.result(world.place) != command.expected
            if detected is False:
                outcome.what += f"; said: {fault.output[-2000:]}"
        elif len(died) <= restarts:
            outcome = Outcome(detected, False, hung=fault.hung, what=f"{what}; ended: {fault.output[-2000:]}")
        else:
            outcome = go_on(world, command, fault, detected, what)
        outcome.lost += sum(start.lost for start in starts)
        outcome.noticed = noticed
        return outcome


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
    rank = str(rng.randrange(RANKS))

    def limit() -> None:
        if os.environ.get("RANK", rank) == rank:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    with world.fresh(command):
        fault = world.call(command, setup=limit)
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
        fault = world.call(command, rng.uniform(0, command.seconds), lambda child: world.place.rename(away) and None)
        if away.exists():
            shutil.rmtree(world.place, ignore_errors=True)
            away.rename(world.place)
        return go_on(world, command, fault, None if fault.code == 0 else fault.refused, "gone and back")


def damaged_run(world: World, command: Command, rng: random.Random) -> Outcome:
    """The newest checkpoint or the records of a run are damaged: it goes on from what is whole before it."""
    from multidds.nmt.runs import checkpoints

    with world.fresh(command):
        run = world.place / "run"
        shutil.copytree((world.root / f"done-{TWO}" if command.ranks else world.done) / "run", run)
        path = rng.choice([checkpoints.listed(run)[-1], run / "records.jsonl"])
        if path.suffix == ".jsonl":  # in a line behind an older checkpoint
            lines = path.read_bytes().splitlines(keepends=True)
            place = len(b"".join(lines[:-1])) + rng.randrange(len(lines[-1]))
            what = flip(path, rng, place)
        else:
            what = rng.choice(DAMAGE[:3])(path, rng)
        fault = world.call(command)
        return go_on(world, command, fault, fault.code == 0 and path.name in fault.output, f"{path.name}: {what}")


def damaged(world: World, command: Command, rng: random.Random) -> Outcome:
    """A file of a finished run or of prepared data: whoever opens it says so, and so does verify; and a
    command that reads it ends with one line, or as if nothing had happened."""
    which = "prepared" if command.name == "prepare" else "run"
    return met(world, copy_damaged(world, which, rng), rng, USED)


def met(world: World, one: Damaged, rng: random.Random, used_share: float) -> Outcome:
    """What comes of a damaged folder. used_share: how often a command also reads it."""
    outcome = Outcome(file=one.kind, what=one.what)
    said, trace = opened(one)
    named = [one.is_named_in(text) for text in said]
    outcome.detected, outcome.accepted = all(named), not named[0]
    if not all(named):
        outcome.what += f"; said: {said} {trace}"
    if rng.random() < used_share:
        name, ended, result, expected = used(world, one, rng)
        outcome.hung = ended.hung
        if ended.code == 0 and result != expected:
            outcome.accepted = True
            outcome.what += f"; {name} took it: {ended.output[-600:]}"
        elif ended.code and not ended.refused:
            outcome.detected = False
            outcome.what += f"; {name} said: {ended.output[-600:]}"
    return outcome


def foreign(world: World, command: Command, rng: random.Random) -> Outcome:
    """Files of another run: whoever opens them says so, and so does verify; no command takes them for its own."""
    return met(world, copy_swapped(world, rng), rng, used_share=1.0)


def damaged_text(world: World, command: Command, rng: random.Random) -> Outcome:
    """Text as gzip, UTF-16, TSV or JSONL with a damaged file: one line that names it, or nothing that matters."""
    form = rng.choice(("gzip", "gzip", "utf-16", "tsv", "jsonl"))
    shutil.rmtree(world.root / "damaged", ignore_errors=True)
    overrides = text_in(form, world.root / "text", world.root / "damaged" / "text")
    path = rng.choice([path for path in sorted((world.root / "damaged").rglob("*")) if path.is_file()])
    if form == "utf-16":
        what = rewrite(path, path.read_text().encode("utf-16"), "UTF-16")
    else:
        what = rng.choice(DAMAGE[:3])(path, rng)
    outcome = Outcome(file=f"text/{form}", what=f"{path.name}: {what}")
    arguments = [*command.arguments(world.place), *(part for one in overrides for part in ("--set", one))]
    with world.fresh(command):
        changed = Command(command.name, lambda place: arguments, command.begin, command.result)
        ended = world.call(changed)
        outcome.hung = ended.hung
        if ended.code == 0:  # a bit of plain text may make another text; gzip has a checksum
            outcome.accepted = form == "utf-16" or (form == "gzip" and command.result(world.place) != command.expected)
        else:
            outcome.detected = ended.refused and path.name in ended.output
        if outcome.bad:
            outcome.what += f"; said: {ended.output[-600:]}"
    return outcome


def few_files(world: World, command: Command, rng: random.Random) -> Outcome:
    """ulimit -n: few files may be open; then more may."""
    most = rng.randrange(5, 24)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    with world.fresh(command):
        fault = world.call(command, setup=limit)
        return go_on(world, command, fault, None if fault.code == 0 else fault.refused, f"{most} open files")


def little_memory(world: World, command: Command, rng: random.Random) -> Outcome:
    """ulimit -v: little memory beyond what is imported; then more. Libraries may abort, but nothing is lost."""
    more = int(10 ** rng.uniform(5, 8.5))

    def limit() -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, resource.RLIM_INFINITY))

    with world.fresh(command):
        fault = world.call(command, setup=limit)
        return go_on(world, command, fault, fault.refused if fault.code else None, f"{more} bytes of memory")


def started_twice(world: World, command: Command, rng: random.Random) -> Outcome:
    """The same command a second time while the first is at work, which may have been killed before."""
    with world.fresh(command):
        killed_before = rng.random() < 0.5
        if killed_before:
            world.call(command, rng.uniform(0, command.seconds))
        second: list[Ended] = []
        first = world.call(
            command, rng.uniform(0, 0.8 * command.seconds), lambda child: second.append(world.call(command))
        )
        both = [first, *second]
        detected = all(one.code == 0 or one.refused for one in both) and any(one.code == 0 for one in both)
        what = f"a second time{', killed before' if killed_before else ''}"
        if not detected:
            what += f"; said: {[one.output[-400:] for one in both]}"
        outcome = go_on(world, command, first, detected, what)
        outcome.hung = outcome.hung or any(one.hung for one in second)
        outcome.lost = 0  # the second one saves, too
        return outcome


Kind = Callable[[World, Command, random.Random], Outcome]
# Kind of fault -> (what it does, the commands it is for, how often it is drawn).
QUICK = ("prepare", "train", "train", TWO, "evaluate", "report")
KINDS: dict[str, tuple[Kind, tuple[str, ...], float]] = {
    "damaged file": (damaged, ("train", "train", "prepare"), 66),
    "files of another run": (foreign, ("train",), 8),
    "damaged text": (damaged_text, ("prepare",), 5),
    "damaged run goes on": (damaged_run, ("train", TWO), 4),
    "kill -9": (killed, (*QUICK, *QUICK, "experiment"), 9),
    "dead rank": (dead_rank, (TWO,), 8),
    "signal": (signalled, (*QUICK, "experiment"), 3),
    "full disk": (full_disk, (*QUICK, *QUICK, "experiment"), 5),
    "file limit": (file_limit, QUICK, 2),
    "read-only disk": (read_only, QUICK, 1.5),
    "few open files": (few_files, ("prepare", "train", "evaluate", "report"), 1.5),
    "little memory": (little_memory, ("train", "evaluate", "report"), 1.5),
    "started twice": (started_twice, ("prepare", "train", "evaluate", "experiment"), 2),
    "folder gone": (vanished, ("train", "train", TWO, "prepare", "evaluate"), 2.5),
}


class Results:
    """Outcomes by the number of their fault; where there is a file, one line of it each."""

    def __init__(self, path: Path | None, same: dict[str, str | int]) -> None:
        """same: what lines of an earlier call must say to be of the same faults."""
        self._path, self._same = path, same
        self.found: dict[int, tuple[str, Outcome]] = {}
        if path is None or not path.exists():
            return
        for line in path.read_text().splitlines():
            try:
                read = json.loads(line)
            except ValueError:  # the end of a call that was killed
                continue
            if all(read[key] == value for key, value in same.items()):
                self.found[read["number"]] = read["kind"], Outcome(**read["outcome"])
        with path.open("a") as file:  # whatever is at its end, the next line is one of its own
            file.write("\n")

    def add(self, number: int, kind: str, command: str, outcome: Outcome, seconds: float) -> None:
        self.found[number] = kind, outcome
        facts = {**self._same, "number": number, "kind": kind, "command": command, "seconds": round(seconds, 1)}
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps({**facts, "outcome": asdict(outcome)}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600.0, help="no fault is begun later")
    parser.add_argument("--kinds", default="", help=f"only these, with commas between: {', '.join(KINDS)}")
    parser.add_argument("--commands", default="", help="only these, with commas between")
    parser.add_argument("--results", type=Path, help="a file for the outcomes, to go on with")
    given = parser.parse_args()
    wanted = set(given.commands.split(",")) if given.commands else {name for kind in KINDS.values() for name in kind[1]}
    chosen = [kind for kind in KINDS if not given.kinds or kind in given.kinds.split(",")]
    chosen = [kind for kind in chosen if wanted & set(KINDS[kind][1])]
    import torch

    torch.set_num_threads(1)
    for module in IMPORTED:
        importlib.import_module(module)
    began = time.monotonic()
    results = Results(given.results, {"seed": given.seed, "kinds": given.kinds, "commands": given.commands})
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        world = make_world(Path(folder).resolve(), wanted & {name for kind in chosen for name in KINDS[kind][1]})
        took = ", ".join(f"{command.name} {command.seconds:.1f} s" for command in world.commands.values())
        print(f"The commands take {took}.", flush=True)
        for number in range(given.count):
            if number in results.found:
                continue
            if time.monotonic() - began > 60 * given.minutes:
                print(f"Stopped after {len(results.found)} faults: the time is over.")
                break
            rng = random.Random(f"{given.seed} {number}")
            drawn = rng.choices(chosen, [KINDS[kind][2] for kind in chosen])[0]
            kind = chosen[number] if number < len(chosen) else drawn  # first one of each
            make, commands, _ = KINDS[kind]
            command = world.commands[rng.choice([name for name in commands if name in wanted])]
            since = time.monotonic()
            outcome = make(world, command, rng)
            results.add(number, kind, command.name, outcome, time.monotonic() - since)
            if outcome.bad:
                print(f"fault {number}: {kind}, {command.name}: {outcome}", flush=True)
    raise SystemExit(table([found for number, found in sorted(results.found.items()) if number < given.count]))


COLUMNS = ("injected", "detected", "resumed", "steps lost", "accepted", "end differs", "hangs")


def table(found: list[tuple[str, Outcome]], kinds: Iterable[str] = KINDS) -> int:
    """Prints what came of the faults; 1 if a goal was missed."""
    print("| fault | " + " | ".join(COLUMNS) + " |\n|---|" + "---:|" * len(COLUMNS))
    for kind in [*(kind for kind in kinds if kind in dict(found)), "all"]:
        of_kind = [outcome for name, outcome in found if kind in (name, "all")]
        counts = Counter[str]()
        for one in of_kind:
            counts.update(
                {
                    "injected": 1,
                    "detected": int(one.detected is True),
                    "to detect": int(one.detected is not None),
                    "resumed": int(one.resumed is True),
                    "to resume": int(one.resumed is not None),
                    "steps lost": one.lost,
                    "accepted": int(one.accepted),
                    "end differs": int(one.differs),
                    "hangs": int(one.hung),
                }
            )
        cells = {name: str(counts[name]) for name in COLUMNS}
        cells["detected"] += f" of {counts['to detect']}"
        cells["resumed"] += f" of {counts['to resume']}"
        print(f"| {kind} | " + " | ".join(cells.values()) + " |", flush=True)
    outcomes = [outcome for _, outcome in found]
    if files := Counter(outcome.file for outcome in outcomes if outcome.file):
        print(f"Files of {len(files)} kinds were damaged, each {min(files.values())} to {max(files.values())} times.")
    if noticed := [outcome.noticed for outcome in outcomes if outcome.noticed]:
        print(f"When a rank had died the others had ended within {max(noticed):.1f} s.")
    return int(any(outcome.bad for outcome in outcomes))


if __name__ == "__main__":
    main()
