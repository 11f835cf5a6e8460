"""The commands of the application, beside those of the library. Heavy imports wait for their command."""

import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from multidds._base.errors import UserError
from multidds._base.files import LOCK, locked
from multidds._base.terminal import out, say, spinner
from multidds.commands import cli as library
from multidds.commands.cli import Set, app, explained, notice

from ..common import displays, launch
from . import tables

if TYPE_CHECKING:
    from multidds.mixture import MixtureTable

    from ..config.config import Config
    from ..training.progress import Progress

Recipe = Annotated[Path, typer.Argument(help="The recipe: a TOML file, as in recipes/.", show_default=False)]
Run = Annotated[Path, typer.Argument(help="The folder of a run.", show_default=False)]
Threads = Annotated[int, typer.Option(min=0, help="Number of threads; 0: one per core.")]


def main() -> None:
    """Runs the command line. Of several processes of a training, the first that ends says why."""
    try:
        app()
    except BaseException as error:
        line_and_code = explained(error)
        if line_and_code is None and isinstance(error, SystemExit):
            launch.exit_process(error.code)
        if line_and_code is None and launch.is_loss(error):
            line_and_code = "multidds: another process exited; stopping all. Run the same command to resume.", 1
        if line_and_code is None:
            if not launch.is_formed():
                raise
            line_and_code = "".join(traceback.format_exception(error)), 1
        launch.end(*line_and_code, notice)


def _recipe_table(recipe: Path, overrides: Sequence[str]) -> "MixtureTable":
    from ..config.config import load_config
    from .dry_run import recipe_table

    return recipe_table(load_config(recipe, overrides))


library.application, library.recipe_table = "multidds.nmt.report", _recipe_table


@app.command()
def prepare(
    recipe: Recipe,
    set_: Set = [],  # noqa: B006
    processes: Annotated[int, typer.Option(min=0, help="Number of processes; 0: one per core.")] = 0,
) -> None:
    """Learn vocabularies and turn text into token arrays. Does nothing if nothing has changed."""
    from ..config.config import load_config
    from ..prepare import Prepared
    from ..prepare import prepare as run

    config = load_config(recipe, set_)
    with displays.bar("prepare") as progress:
        made = run(config, processes, progress, notice)
    manifest = Prepared(config).manifest
    out.print(tables.prepared_table(config.data.folder, manifest["pairs"]))
    sizes = manifest["vocabulary"]
    out.print(f"{manifest['direction']}, {sizes['source']:,} source and {sizes['target']:,} target tokens.")
    for name, pieces in manifest.get("limited", {}).items():
        say(f"{name}: {pieces:,} of {config.vocabulary.size:,} pieces; its training text has no more.")
    if not made:
        say("Nothing has changed since the last call.")


@app.command()
def train(
    recipe: Recipe,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            "--folder",  # torchrun takes --run, wherever it stands, for one of its own
            help="The folder of the run; by default runs/ plus the recipe's name. Under torchrun use --folder.",
        ),
    ] = None,
    set_: Set = [],  # noqa: B006
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    json: Annotated[bool, typer.Option("--json", help="With --dry-run: show the whole config, too.")] = False,
) -> None:
    """Train a model. To resume a run that was stopped, repeat the command."""
    from ..config.config import load_config

    config = load_config(recipe, set_)
    rank, processes = launch.launched()
    if dry_run:
        from .dry_run import describe

        if rank == 0:
            describe(config, out, json)
        return
    _avoid_amx([config], rank == 0)
    launch.form_group()
    from ..training.train import train as start

    run = run or Path("runs") / recipe.stem
    with displays.Quiet() if rank else displays.Terminal() if out.is_terminal else displays.Plain() as show:
        at = start(config, run, show)
    if rank == 0:
        overrides = [part for override in set_ for part in ("--set", override)]
        again = shlex.join(["multidds", "train", str(recipe), "--run", str(run), *overrides])
        _say_end(at, config, run, again if processes == 1 else "the same command again")


def _say_end(at: "Progress", config: "Config", run: Path, again: str) -> None:
    from ..training.validation import MEASURES

    if not at.finished:
        say(f"Stopped and saved after step {at.step}. To go on: {again}")
        return
    select = config.train.select
    which = "last" if select == "last" else "best"
    value = "" if at.best is None else f"; {which} {MEASURES[select]} {at.best:.4f} at step {at.best_step}"
    why = "" if at.finished == f"{at.step} steps" else f" ({at.finished})"
    out.print(f"Finished after {at.step} steps{why}{value}.")
    say(f"Next: {shlex.join(['multidds', 'evaluate', str(run)])}")


@app.command()
def translate(
    run: Run,
    source: Annotated[str | None, typer.Option("--from", help="Source language; needed if there are several.")] = None,
    target: Annotated[str | None, typer.Option("--to", help="Target language; needed if there are several.")] = None,
    file: Annotated[Path | None, typer.Option("--input", help="A file of lines; by default standard input.")] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="Beam size; by default the recipe's.")] = None,
    length_penalty: Annotated[float | None, typer.Option(min=0, help="By default the recipe's.")] = None,
    long_lines: Annotated[
        str | None, typer.Option(help="What to do with lines longer than any seen in training: split or refuse.")
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Eight-bit weights: faster, with slightly different results.")
    ] = False,
    threads: Threads = 0,
) -> None:
    """Translate lines from standard input or a file."""
    from ..evaluation import Translator
    from ..prepare.text_files import lines_of

    if long_lines not in (None, "split", "refuse"):
        raise UserError(f"--long-lines {long_lines}: expected 'split' or 'refuse'.")
    translator = Translator(run, threads, int8, notice)
    languages = translator.direction(source, target)
    lines = lines_of(file) if file else _standard_input()
    where = str(file or "standard input")
    if file is None and sys.stdin.isatty():  # an answer to every line
        for number, line in enumerate(lines, start=1):
            for text in translator.translate([line], *languages, beam, length_penalty, long_lines, where, number):
                print(text, flush=True)
        return
    for text in translator.translate(lines, *languages, beam, length_penalty, long_lines, where):
        sys.stdout.write(text + "\n")
    sys.stdout.flush()


@app.command()
def evaluate(
    run: Run,
    against: Annotated[Path | None, typer.Option(help="Another run, for a significance test.")] = None,
    threads: Threads = 0,
) -> None:
    """Score the test sets with BLEU and chrF."""
    from ..config.config import read_run
    from ..evaluation.evaluate import evaluate as scores_of
    from ..evaluation.significance import compare

    compared = {}
    with spinner() as show:
        scores = scores_of(run, threads, show, notice)
        if against is not None:
            scores_of(against, threads, show, notice)
            show("paired bootstrap")
            compared = compare(run, against)
    out.print(tables.scores_table(run, scores, against, compared, read_run(run)[0].weighted))
    if against is not None:
        out.print("* better, p < 0.05 (paired bootstrap, 1,000 samples)")
    for key, signature in scores["signatures"].items():
        say(f"{key}: {signature}")


@app.command()
def experiment(
    file: Annotated[Path, typer.Argument(help="The experiment: a TOML file, as in experiments/.", show_default=False)],
    parallel: Annotated[int | None, typer.Option(min=1, help="Runs at a time; by default the file's.")] = None,
    only: Annotated[str | None, typer.Option(help="Only runs that match, e.g. '*/multidds*/seed-1'.")] = None,
    on: Annotated[str, typer.Option(help="The place: local, or slurm with the file's \\[cluster].")] = "local",
    folder: Annotated[
        Path | None, typer.Option(help="The folder for the runs; by default the file's.", show_default=False)
    ] = None,
    set_: Set = [],  # noqa: B006
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the runs and their commands.")] = False,
) -> None:
    """Train and evaluate many runs. To resume, repeat the command; finished runs are kept."""
    from ..experiment.experiment_file import load_experiment
    from ..experiment.job import commands
    from ..experiment.run_list import plan
    from ..experiment.runner import Runner
    from ..experiment.slurm_job import Slurm

    if on not in ("local", "slurm"):
        raise UserError(f"--on {on}: must be local or slurm.")
    wanted = load_experiment(file, folder)
    planned = plan(file, wanted, set_)
    runs = [run for run in planned if only is None or fnmatchcase(run.name, only)]
    if not runs:
        raise UserError(f"--only {only}: matches none of the {len(planned)} runs, such as {planned[0].name}.")
    if dry_run:
        for line in commands(runs):
            say(line)
        return
    place = Slurm(wanted.cluster, file) if on == "slurm" else None
    _avoid_amx([run.config for run in runs])  # the processes of the runs inherit it
    refusal = f"{wanted.folder}: another process is at work on the experiment there."
    runner = Runner(runs, parallel or wanted.parallel, place)
    with locked(wanted.folder / f"experiment{LOCK}", refusal):
        runner.run()
    failed = [job for job in runner.jobs if job.state == "failed"]
    for job in failed:
        say(f"failed: {job.run.name}: {job.reason}")
    if runner.stopped:
        given: list[tuple[str, object]] = [("--parallel", parallel), ("--only", only), ("--folder", folder)]
        given += [("--on", on if place else None), *(("--set", override) for override in set_)]
        again = [str(part) for pair in given if pair[1] is not None for part in pair]
        say(f"Stopped. To go on: {shlex.join(['multidds', 'experiment', str(file), *again])}")
        raise SystemExit(130)
    if failed:
        raise SystemExit(1)
    say(f"Next: {shlex.join(['multidds', 'report', str(wanted.folder)])}")


@app.command()
def verify(
    folder: Annotated[
        Path, typer.Argument(help="A run, prepared data, or a folder that holds some.", show_default=False)
    ],
) -> None:
    """Check that every file is as it was written. Exit code 1 if one is damaged."""
    from .verify import verify as check

    checked = check(folder)
    for one in checked:
        for line in one.lines():
            say(line)
    if damaged := sum(len(messages) for one in checked for messages in one.damage.values()):
        say(f"damaged: {damaged}")
        raise SystemExit(1)
    say("Everything is whole.")


def _avoid_amx(configs: Sequence["Config"], aloud: bool = True) -> None:
    """Limits oneDNN, before torch is imported, if a training wants bfloat16 on a CPU that would end the process."""
    if any(c.train.precision == "bfloat16" and c.train.device.startswith(("auto", "cpu")) for c in configs):
        from ..model.bfloat16 import limit_onednn

        limit_onednn(notice if aloud else lambda text: None)


def _standard_input() -> Iterator[str]:
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise UserError(f"standard input:{number}: not valid UTF-8 (byte {error.start + 1}).") from None
