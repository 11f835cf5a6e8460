"""The commands, one screen each. A user's mistake is one line and exit code 2; heavy imports wait for their command."""

import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .errors import UserError
from .names import printable

app = typer.Typer(
    name="multidds",
    help="Multilingual translation with a learned mixture: prepare, train, translate, evaluate.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
corpora = typer.Typer(help="Make a corpus to train on.", no_args_is_help=True)
app.add_typer(corpora, name="corpus")
out, err = Console(soft_wrap=True), Console(stderr=True, soft_wrap=True)

Recipe = Annotated[Path, typer.Argument(help="The recipe, a TOML file; see recipes/.", show_default=False)]
Set = Annotated[list[str], typer.Option("--set", help="Override a key: --set train.lr=0.001.", show_default=False)]


def main() -> None:
    try:
        app()
    except UserError as error:
        err.print(f"multidds: {printable(str(error))}", markup=False, highlight=False)
        raise SystemExit(2) from None
    except OSError as error:  # a full disk, a folder without permission
        where = f"{error.filename}: " if error.filename else ""
        err.print(
            f"multidds: {printable(where)}{printable(error.strerror or str(error))}", markup=False, highlight=False
        )
        raise SystemExit(2) from None
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error).lower():
            raise
        err.print("multidds: out of memory; lower train.batch_tokens or mixture.probe_tokens, or the model.")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        err.print("multidds: stopped.")
        raise SystemExit(130) from None


@corpora.command()
def catalogues(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the corpus shall be.", show_default=False)],
    languages: Annotated[
        str, typer.Option(help="ISO 639-3 codes, or those of two letters, with commas between.")
    ] = "aze,bel,glg,slk,tur,rus,por,ces",
    list_: Annotated[
        Path | None, typer.Option("--list", help="A list of packages of your own; see nmt/catalogues/packages.toml.")
    ] = None,
) -> None:
    """Messages of programs and their translations, out of packages on the registry. Does nothing where it is done."""
    from .catalogues import SPLITS, build

    with _bar("catalogues") as say:
        manifest, made = build(folder, [code for code in languages.split(",") if code.strip()], list_, say)
    table = Table("language", *SPLITS, title=escape(printable(str(folder))))
    for column in table.columns[1:]:
        column.justify = "right"
    for name, facts in manifest["languages"].items():
        table.add_row(name, *(f"{facts[split]:,}" for split in SPLITS))
    out.print(table)
    licences = ", ".join(f"{package['name']} {package['licence']}" for package in manifest["packages"])
    out.print(
        printable(f"The text belongs to its projects: {licences}. See README.md there."), markup=False, highlight=False
    )
    if not made:
        out.print("Nothing has changed since the last call.")


@app.command()
def prepare(
    recipe: Recipe,
    set_: Set = [],  # noqa: B006
    processes: Annotated[int, typer.Option(min=0, help="Processes at once; 0: one per core.")] = 0,
) -> None:
    """Learn vocabularies and turn text into token arrays. Does nothing where nothing has changed."""
    from .config import load_config
    from .prepare import Prepared
    from .prepare import prepare as run

    config = load_config(recipe, set_)
    with _bar("prepare") as say:
        made = run(config, processes, say)
    prepared = Prepared(config)
    table = Table("pair", "train", "dev", "test", "dropped", title=escape(printable(str(config.data.folder))))
    for name, splits in prepared.manifest["pairs"].items():
        dropped = Counter(splits["train"]["dropped"]) + Counter(splits["dev"]["dropped"])
        cells = [f"{splits[split]['pairs']:,}" if split in splits else "-" for split in ("train", "dev", "test")]
        table.add_row(_shown(name), *cells, ", ".join(f"{n} {reason}" for reason, n in dropped.items()) or "-")
    out.print(table)
    sizes = prepared.manifest["vocabulary"]
    out.print(f"{prepared.manifest['direction']}, {sizes['source']:,} source and {sizes['target']:,} target tokens.")
    if not made:
        out.print("Nothing has changed since the last call.")


@app.command()
def train(
    recipe: Recipe,
    run: Annotated[
        Path | None, typer.Option(help="The folder of the run; by default runs/ and the recipe's name.")
    ] = None,
    set_: Set = [],  # noqa: B006
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and stop.")] = False,
) -> None:
    """Train a model. The same command again goes on with a run that was stopped."""
    from .config import load_config

    config = load_config(recipe, set_)
    if dry_run:
        from .dry_run import describe

        describe(config, out)
        return
    from .train import train as start

    run = run or Path("runs") / recipe.stem
    again = shlex.join(["multidds", "train", str(recipe), "--run", str(run), *(p for s in set_ for p in ("--set", s))])
    with Terminal() if out.is_terminal else Plain() as show:
        at = start(config, run, show)
    if at.finished:
        from .validation import MEASURES

        which = "last" if config.train.select == "last" else "best"
        value = (
            "" if at.best is None else f"; {which} {MEASURES[config.train.select]} {at.best:.4f} at step {at.best_step}"
        )
        out.print(f"Finished after {at.step} steps ({at.finished}){value}.")
        out.print(printable(f"Next: {shlex.join(['multidds', 'evaluate', str(run)])}"), markup=False, highlight=False)
    else:
        out.print(
            printable(f"Stopped and saved after step {at.step}. To go on: {again}"), markup=False, highlight=False
        )


@app.command()
def translate(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    source: Annotated[
        str | None, typer.Option("--from", help="Source language; needed where there are several.")
    ] = None,
    target: Annotated[str | None, typer.Option("--to", help="Target language; needed where there are several.")] = None,
    file: Annotated[Path | None, typer.Option("--input", help="A file of lines; without it, standard input.")] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="Beam size; the recipe's by default.")] = None,
    length_penalty: Annotated[float | None, typer.Option(min=0, help="The recipe's by default.")] = None,
    long_lines: Annotated[
        str | None, typer.Option(help="split or refuse lines longer than the model has seen.")
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Eight-bit weights: faster, slightly different.")] = False,
    threads: Annotated[int, typer.Option(min=0, help="0: one per core.")] = 0,
) -> None:
    """Translate lines from standard input or a file."""
    from .corpora import lines_of
    from .translate import Translator

    if long_lines not in (None, "split", "refuse"):
        raise UserError(f"--long-lines {long_lines}: expected 'split' or 'refuse'.")
    translator = Translator(run, threads, int8)
    languages = translator.direction(source, target)
    if file is None and sys.stdin.isatty():  # an answer to every line
        for number, line in enumerate(_standard_input(), start=1):
            where = "standard input"
            for text in translator.translate([line], *languages, beam, length_penalty, long_lines, where, number):
                print(text, flush=True)
        return
    lines = lines_of(file) if file else _standard_input()
    where = str(file or "standard input")
    for text in translator.translate(lines, *languages, beam, length_penalty, long_lines, where):
        sys.stdout.write(text + "\n")
    sys.stdout.flush()


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    against: Annotated[Path | None, typer.Option(help="Another run, for a test of significance.")] = None,
    threads: Annotated[int, typer.Option(min=0, help="0: one per core.")] = 0,
) -> None:
    """Score the test sets with BLEU and chrF."""
    from .evaluate import compare
    from .evaluate import evaluate as run_evaluation

    with _spinner() as say:
        scores = run_evaluation(run, threads, say)
        if against is not None:
            run_evaluation(against, threads, say)
            say("paired bootstrap")
            compared = compare(run, against)
    table = Table("pair", "sentences", "BLEU", "chrF", title=escape(printable(str(run))))
    for column in table.columns[1:]:
        column.justify = "right"
    if against is not None:
        table.add_column(escape(printable(str(against))), justify="right")
        table.add_column("p", justify="right")
    for name, pair in scores["pairs"].items():
        row = [_shown(name), f"{pair['sentences']:,}", f"{pair['bleu']:.2f}", f"{pair['chrf']:.2f}"]
        if against is not None and name in compared:
            both = compared[name]
            star = "*" if both["p"] < 0.05 else ""
            row[2] += star if both["bleu"] > both["against"] else ""
            row += [f"{both['against']:.2f}" + (star if both["against"] > both["bleu"] else ""), f"{both['p']:.3f}"]
        table.add_row(*row)
    table.add_section()
    table.add_row("average", "", f"{scores['average']['bleu']:.2f}", f"{scores['average']['chrf']:.2f}")
    out.print(table)
    if against is not None:
        out.print("* better, p < 0.05 (paired bootstrap, 1,000 samples)")
    for key, signature in scores["signatures"].items():
        out.print(f"{key}: {signature}", markup=False, highlight=False)


@app.command()
def experiment(
    file: Annotated[Path, typer.Argument(help="The experiment, a TOML file; see experiments/.", show_default=False)],
    parallel: Annotated[int | None, typer.Option(min=1, help="Runs at a time; the file's by default.")] = None,
    only: Annotated[str | None, typer.Option(help="Runs that match, e.g. '*/multidds*/seed-1'.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the runs and their commands, and stop.")] = False,
) -> None:
    """Train and evaluate many runs. The same command again goes on; what is done stays as it is."""
    from . import experiment_display as display
    from .experiment import load_experiment, plan
    from .experiment_runner import Job, Runner

    wanted = load_experiment(file)
    runs = plan(file, wanted)
    jobs = [Job(run) for run in runs if only is None or fnmatchcase(run.name, only)]
    if not jobs:
        raise UserError(f"--only {only}: matches none of the {len(runs)} runs, such as {runs[0].name}.")
    if dry_run:
        for line in display.commands(jobs):
            out.print(printable(line), markup=False, highlight=False)
        return
    with display.LiveTable(out) if out.is_terminal else display.Lines() as show:
        runner = Runner(jobs, parallel or wanted.parallel, show)
        runner.run()
    out.print(display.final_table(jobs, wanted.folder))
    for job in jobs:
        if job.state == "failed":
            out.print(printable(f"failed: {job.run.name}: {job.reason}"), markup=False, highlight=False)
    if runner.stopped:
        given = [("--parallel", parallel), ("--only", only)]
        again = [str(part) for pair in given if pair[1] is not None for part in pair]
        command = shlex.join(["multidds", "experiment", str(file), *again])
        out.print(printable(f"Stopped. To go on: {command}"), markup=False, highlight=False)
        raise SystemExit(130)
    if any(job.state == "failed" for job in jobs):
        raise SystemExit(1)
    report = shlex.join(["multidds", "report", str(wanted.folder)])
    out.print(printable(f"Next: {report}"), markup=False, highlight=False)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that hold some.", show_default=False)],
    to: Annotated[
        Path, typer.Option("-o", "--output", help="The folder for report.html, tables/ and figures/.")
    ] = Path("report"),
) -> None:
    """Make a page of tables and figures from runs: BLEU with significance, mixtures, rewards, costs."""
    from .report import report as write

    with _spinner() as say:
        made = write(runs, to, say)
    for compared in made.by_language:
        if not compared.rows:
            continue
        table = Table(title=_shown(compared.title))
        for i, column in enumerate(compared.columns):
            table.add_column(_shown(column), justify="right" if i else "left", overflow="fold")
        for row in compared.rows:
            if row[0].text == "average":
                table.add_section()
            marked = [(_shown(cell.text), cell) for cell in row]
            table.add_row(
                *((f"[b]{text}[/b]" if cell.bold else text) + ("*" if cell.star else "") for text, cell in marked)
            )
        out.print(table)
    for sentence in made.summaries:
        out.print(printable(sentence), markup=False, highlight=False)
    out.print(printable(str(made.page)), markup=False, highlight=False)


@app.command()
def mixture(
    run: Annotated[Path, typer.Argument(help="The folder of a run.", show_default=False)],
    average: Annotated[
        bool, typer.Option("--average", help="The mean over all steps: a mixture counts by the steps drawn from it.")
    ] = False,
    at: Annotated[
        int | None, typer.Option(help="The mixture after this many steps, the update of that step included.")
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="All mixtures with their steps, as JSON: what Replay takes.")
    ] = False,
    format_: Annotated[
        str, typer.Option("--format", help="json, fairseq, hf, megatron, streaming or lhotse.")
    ] = "json",
    data: Annotated[
        str | None,
        typer.Option(help="What the other trainer calls a dataset, e.g. 'data/{name}_text_document'.", metavar="TEXT"),
    ] = None,
) -> None:
    """Print the mixture of a run as the weights that another trainer takes; the final one, unless told otherwise."""
    from . import export

    if average + (at is not None) + history > 1:
        raise UserError("--average, --at and --history: give one of them.")
    if history:
        if format_ != "json" or data is not None:
            raise UserError("--history: is JSON, with the run's own names; leave --format and --data out.")
        print(export.history_json(run))
        return
    if at is not None:
        chosen = export.mixture_at(run, at)
    else:
        chosen = export.average_mixture(run) if average else export.final_mixture(run)
    print(export.written(chosen, format_, data))


def _shown(text: str) -> str:
    """Text from data or configs, as a cell of a table."""
    return escape(printable(text))


def _standard_input() -> Iterator[str]:
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise UserError(f"standard input:{number}: not valid UTF-8 (byte {error.start + 1}).") from None


@contextmanager
def _bar(title: str) -> Iterator[Any]:
    """say(what, done, total): a bar on a terminal, nothing elsewhere."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task(title, total=None)
        yield lambda what, done, total: progress.update(
            task, description=escape(printable(what)), completed=done, total=total
        )


@contextmanager
def _spinner() -> Iterator[Any]:
    with err.status("") as status:
        yield lambda text: status.update(escape(printable(text)))


class Plain:
    """Quiet lines, for logs."""

    def __enter__(self) -> "Plain":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def progress(self, fraction: float, facts: dict[str, Any]) -> None:
        pass

    def line(self, text: str) -> None:
        print(printable(text), flush=True)

    log = line


class Terminal:
    """A bar with speed, loss, mixture and the time left."""

    def __enter__(self) -> "Terminal":
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        self._progress = Progress(*columns, console=out, transient=True)
        self._progress.start()
        self._task = self._progress.add_task("", total=1.0)
        self._facts: dict[str, Any] = {}
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def progress(self, fraction: float, facts: dict[str, Any]) -> None:
        self._facts |= facts
        shown = [
            f"{key} {value:,.0f}" if value >= 1000 else f"{key} {value:.3g}"
            for key, value in self._facts.items()
            if isinstance(value, float)
        ]
        if "mixture" in self._facts:
            largest = sorted(self._facts["mixture"].items(), key=lambda item: -item[1])[:4]
            shown.append(" ".join(f"{name} {p:.0%}" for name, p in largest))
        text = f"step {self._facts.get('step', 0)} epoch {self._facts.get('epoch', 0)}  " + "  ".join(shown)
        self._progress.update(self._task, completed=fraction, description=escape(printable(text)))

    def line(self, text: str) -> None:
        self._progress.console.print(printable(text), markup=False, highlight=False)

    def log(self, text: str) -> None:
        pass  # the bar shows it


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
