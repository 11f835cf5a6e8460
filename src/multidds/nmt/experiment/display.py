"""The display of an experiment: a live table on a terminal, lines elsewhere, and the table at the end."""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from multidds._base.errors import UserError
from multidds._base.escaping import printable
from multidds._base.terminal import escaped, new_table, say

from .progress import Job, remaining_stages

RUNNING = ("queued", "preparing", "training", "evaluating")
_EVERY = 30.0  # seconds between lines about a run, without a terminal
_TEXT = ("setting", "method", "state")  # columns; the others are numbers
_COLORS = {"training": "cyan", "evaluating": "cyan", "done": "green", "failed": "red", "stopped": "yellow"}


class Lines:
    """A line per change of state, and one about every run under way from time to time."""

    def __init__(self, every: float = _EVERY) -> None:
        self._every, self._last = every, time.monotonic()

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def line(self, text: str) -> None:
        print(printable(text), flush=True)

    def changed(self, job: Job) -> None:
        facts = _facts(job) if job.state in ("done", "skipped", "stopped") else ""
        reason = f": {job.reason}" if job.reason else ""
        self.line(f"{job.run.name}: {job.state}{reason}{facts}")

    def tick(self, jobs: Sequence[Job]) -> None:
        if time.monotonic() - self._last < self._every:
            return
        self._last = time.monotonic()
        for job in jobs:
            if job.state in ("training", "evaluating"):
                job.read()
                self.line(f"{job.run.name}: {job.state}{_facts(job)}")


class LiveTable:
    """All runs, or as many as fit: those under way and those that failed come first, the rest is counted."""

    def __init__(self, console: Console) -> None:
        self._console, self._last = console, 0.0
        # No thread of its own: children are forked from here.
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> "LiveTable":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def line(self, text: str) -> None:
        say(text, self._console)

    def changed(self, job: Job) -> None:
        self._last = 0.0
        if job.state == "failed":
            self.line(f"{job.run.name}: failed: {job.reason}")

    def tick(self, jobs: Sequence[Job]) -> None:
        if time.monotonic() - self._last < 1.0:
            return
        self._last = time.monotonic()
        for job in jobs:
            if job.state in RUNNING:
                job.read()
        self._live.update(live_table(jobs, self._console.height), refresh=True)


def live_table(jobs: Sequence[Job], height: int) -> Group:
    rows = max(3, height - 7)  # lines of a table around its rows, and the summary
    shown = list(jobs)
    if len(shown) > rows:
        running = [job for job in jobs if job.state in RUNNING]
        failed = [job for job in jobs if job.state == "failed"]
        first = {id(job) for job in [*running, *failed][:rows]}
        shown = [job for job in jobs if id(job) in first]
    headings = ("setting", "method", "seed", "state", "step", "%", "loss", "dev loss", "tokens/s", "BLEU", "left")
    table = new_table(headings, _TEXT, no_wrap=True)
    for job in shown:
        watch, run = job.watch, job.run
        moving = job.state == "training"
        table.add_row(
            escaped(run.setting),
            escaped(run.method),
            str(run.seed),
            Text(job.state, style=_COLORS.get(job.state, "")),
            f"{watch.step:,}" if watch.step else "",
            "" if watch.fraction is None else f"{watch.fraction:.0%}",
            _number(watch.loss, ".3f"),
            _number(watch.dev_loss, ".4f"),
            _number(watch.speed, ",.0f") if moving else "",
            _number(watch.bleu, ".2f") if watch.evaluated else "",
            _time(job.seconds_left),
        )
    counts = Counter(job.state for job in jobs)
    hidden = f" (shown: {len(shown)})" if len(shown) < len(jobs) else ""
    text = f"{len(jobs)} runs{hidden}: " + ", ".join(f"{n} {state}" for state, n in counts.items())
    return Group(table, Text(text))


def final_table(jobs: Sequence[Job], folder: Path) -> Table:
    table = new_table(("setting", "method", "seed", "state", "BLEU", "best dev loss"), _TEXT, str(folder))
    for job in jobs:
        job.read()
        bleu = job.watch.bleu if job.watch.evaluated else None
        name = (escaped(job.run.setting), escaped(job.run.method), str(job.run.seed))
        table.add_row(*name, job.state, _number(bleu, ".2f") or "-", _number(job.watch.best, ".4f") or "-")
    if any(job.run.config.weighted for job in jobs):
        table.caption = "BLEU and dev loss: means weighted by the priority of the run"
    return table


def commands(jobs: Sequence[Job]) -> list[str]:
    """Returns the commands of runs, as lines that a shell can run, with comments."""
    lines: list[str] = []
    prepared: set[Path] = set()
    for job in jobs:
        try:
            stages = remaining_stages(job)
            state = f"to do: {', '.join(stages)}" if stages else "done"
        except UserError as error:
            state = f"refused: {error}"
        folder = job.run.config.data.folder.resolve()
        if folder not in prepared:
            prepared.add(folder)
            lines += [f"# the data of {job.run.setting}", job.run.command("prepare")]
        lines += [f"# {job.run.name}: {state}", job.run.command("train")]
        if job.run.evaluate:
            lines.append(job.run.command("evaluate"))
    return lines


def _facts(job: Job) -> str:
    watch = job.watch
    left = _time(job.seconds_left)
    parts = (
        f"  step {watch.step:,}" + ("" if watch.fraction is None else f" ({watch.fraction:.0%})"),
        "" if watch.loss is None else f"  loss {watch.loss:.3f}",
        "" if watch.dev_loss is None else f"  dev loss {watch.dev_loss:.4f}",
        f"  {watch.speed:,.0f} tokens/s" if watch.speed is not None and job.state == "training" else "",
        f"  BLEU {watch.bleu:.2f}" if watch.bleu is not None and watch.evaluated else "",
        f"  {left} left" if left else "",
    )
    return "".join(parts)


def _number(value: float | None, style: str) -> str:
    return "" if value is None else format(value, style)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
