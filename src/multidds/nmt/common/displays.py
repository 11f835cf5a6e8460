"""The displays of commands that take long: a bar, and a training on a terminal or in a log. Does not import torch."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from multidds._base.escaping import printable
from multidds._base.terminal import err, escaped, out, say


@contextmanager
def bar(title: str) -> Iterator[Any]:
    """Yields a function (what, done, total), which moves a bar on a terminal, and does nothing elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task(title, total=None)
        yield lambda what, done, total: progress.update(task, description=escaped(what), completed=done, total=total)


class Plain(AbstractContextManager["Plain"]):
    """A training as plain lines, for logs."""

    def __exit__(self, *_: object) -> None:
        pass

    def progress(self, fraction: float, facts: dict[str, Any]) -> None:
        pass

    def line(self, text: str) -> None:
        print(printable(text), flush=True)

    def log(self, text: str) -> None:
        self.line(text)


class Quiet(Plain):
    """A training that another process displays."""

    def line(self, text: str) -> None:
        pass


class Terminal(AbstractContextManager["Terminal"]):
    """A training as a bar with speed, loss, mixture and the time left."""

    def __init__(self) -> None:
        columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        self._progress = Progress(*columns, console=out, transient=True)
        self._task = self._progress.add_task("", total=1.0)
        self._facts: dict[str, Any] = {}

    def __enter__(self) -> "Terminal":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def progress(self, fraction: float, facts: dict[str, Any]) -> None:
        self._facts |= facts
        numbers = [
            f"{key} {value:,.0f}" if value >= 1000 else f"{key} {value:.3g}"
            for key, value in self._facts.items()
            if isinstance(value, float)
        ]
        if "mixture" in self._facts:
            largest = sorted(self._facts["mixture"].items(), key=lambda item: -item[1])[:4]
            numbers.append(" ".join(f"{name} {p:.0%}" for name, p in largest))
        text = f"step {self._facts.get('step', 0)} epoch {self._facts.get('epoch', 0)}  " + "  ".join(numbers)
        self._progress.update(self._task, completed=fraction, description=escaped(text))

    def line(self, text: str) -> None:
        say(text, self._progress.console)

    def log(self, text: str) -> None:
        pass  # the bar shows it
