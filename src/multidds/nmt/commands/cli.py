"""The commands of the application, beside those of the library. Heavy imports wait for their command."""

import shlex
import sys
import traceback
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from multidds._base.errors import UserError
from multidds._base.files import LOCK, locked
from multidds._base.terminal import out, say, spinner
from multidds.commands import cli as library
from multidds.commands.cli import Application, add_overrides, command, explained, notice

from ..common import displays, launch
from . import tables

if TYPE_CHECKING:
    from multidds.commands.cli import Commands
    from multidds.mixture import MixtureTable

    from ..config.config import Config
    from ..training.progress import Progress


def main() -> None:
    """Runs the command line. Of several processes of a training, the first that ends says why."""
    try:
        library.run(sys.argv[1:])
    except SystemExit as ended:
        launch.exit_process(ended.code)
    except BaseException as error:
        lost = "multidds: another process exited; stopping all. Run the same command to resume.", 1
        line_and_code = lost if launch.is_loss(error) else explained(error)
        if line_and_code is None:
            if not launch.is_formed():
                raise
            line_and_code = "".join(traceback.format_exception(error)), 1
        launch.end(*line_and_code, notice)


def _add_commands(commands: "Commands") -> None:
    made = _of_a_recipe(commands, prepare)
    made.add_argument("--processes", type=_at_least(0), default=0, help="Number of processes; 0: one per core.")
    made = _of_a_recipe(commands, train)
    # torchrun takes --run, wherever it stands, for one of its own.
    text = "The folder of the run; by default runs/ plus the recipe's name. Under torchrun use --folder."
    made.add_argument("--run", "--folder", type=Path, help=text)
    made.add_argument("--dry-run", action="store_true", help="Only show what would be done.")
    made.add_argument("--json", action="store_true", help="With --dry-run: show the whole config, too.")
    made = _of_a_run(commands, translate)
    made.add_argument("--from", dest="source", help="Source language; needed if there are several.")
    made.add_argument("--to", dest="target", help="Target language; needed if there are several.")
    text = "A file of lines; by default standard input."
    made.add_argument("--input", dest="file", type=Path, metavar="FILE", help=text)
    made.add_argument("--beam", type=_at_least(1), help="Beam size; by default the recipe's.")
    made.add_argument("--length-penalty", type=_at_least(0, float), help="By default the recipe's.")
    text = "What to do with lines longer than any seen in training."
    made.add_argument("--long-lines", choices=("split", "refuse"), help=text)
    made.add_argument("--int8", action="store_true", help="Eight-bit weights: faster, with slightly different results.")
    made = _of_a_run(commands, evaluate)
    made.add_argument("--against", type=Path, metavar="RUN", help="Another run, for a significance test.")
    made = command(commands, experiment)
    made.add_argument("file", type=Path, help="The experiment: a TOML file, as in experiments/.")
    made.add_argument("--parallel", type=_at_least(1), help="Runs at a time; by default the file's.")
    made.add_argument("--only", help="Only runs that match, e.g. '*/multidds*/seed-1'.")
    text = "The place: slurm uses the [cluster] of the file."
    made.add_argument("--on", choices=("local", "slurm"), default="local", help=text)
    made.add_argument("--folder", type=Path, help="The folder for the runs; by default the file's.")
    made.add_argument("--dry-run", action="store_true", help="Only show the runs and their commands.")
    add_overrides(made)
    made = command(commands, verify)
    made.add_argument("folder", type=Path, help="A run, prepared data, or a folder that holds some.")


def _of_a_recipe(commands: "Commands", function: Callable[..., None]) -> ArgumentParser:
    made = command(commands, function)
    made.add_argument("recipe", type=Path, help="The recipe: a TOML file, as in recipes/.")
    add_overrides(made)
    return made


def _of_a_run(commands: "Commands", function: Callable[..., None]) -> ArgumentParser:
    made = command(commands, function)
    made.add_argument("run", type=Path, help="The folder of a run.")
    made.add_argument("--threads", type=_at_least(0), default=0, help="Number of threads; 0: one per core.")
    return made


def _at_least(lowest: int, kind: type[int] | type[float] = int) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = kind(text)
        if not value >= lowest:
            raise ArgumentTypeError(f"must be at least {lowest}, but it is {text}")
        return value

    return number


def _plan(recipe: Path, overrides: Sequence[str]) -> "MixtureTable":
    from ..config.config import load_config
    from .dry_run import recipe_table

    return recipe_table(load_config(recipe, overrides))


library.application = Application("multidds.nmt.report", _plan, _add_commands)


def prepare(recipe: Path, overrides: Sequence[str], processes: int) -> None:
    """Learn vocabularies and turn text into token arrays. Does nothing if nothing has changed."""
    from ..config.config import load_config
    from ..prepare import Prepared
    from ..prepare import prepare as run

    config = load_config(recipe, overrides)
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


def train(recipe: Path, overrides: Sequence[str], run: Path | None, dry_run: bool, json: bool) -> None:
    """Train a model. To resume a run that was stopped, repeat the command."""
    from ..config.config import load_config

    config = load_config(recipe, overrides)
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
        sets = [part for override in overrides for part in ("--set", override)]
        again = shlex.join(["multidds", "train", str(recipe), "--run", str(run), *sets])
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


def translate(
    run: Path,
    threads: int,
    source: str | None,
    target: str | None,
    file: Path | None,
    beam: int | None,
    length_penalty: float | None,
    long_lines: str | None,
    int8: bool,
) -> None:
    """Translate lines from standard input or a file."""
    from ..evaluation import Translator
    from ..prepare.text_files import lines_of

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


def evaluate(run: Path, threads: int, against: Path | None) -> None:
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


def experiment(
    file: Path,
    parallel: int | None,
    only: str | None,
    on: str,
    folder: Path | None,
    dry_run: bool,
    overrides: Sequence[str],
) -> None:
    """Train and evaluate many runs. To resume, repeat the command; finished runs are kept."""
    from ..experiment.experiment_file import load_experiment
    from ..experiment.job import commands
    from ..experiment.run_list import plan
    from ..experiment.runner import Runner
    from ..experiment.slurm_job import Slurm

    wanted = load_experiment(file, folder)
    planned = plan(file, wanted, overrides)
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
        given += [("--on", on if place else None), *(("--set", override) for override in overrides)]
        again = [str(part) for pair in given if pair[1] is not None for part in pair]
        say(f"Stopped. To go on: {shlex.join(['multidds', 'experiment', str(file), *again])}")
        raise SystemExit(130)
    if failed:
        raise SystemExit(1)
    say(f"Next: {shlex.join(['multidds', 'report', str(wanted.folder)])}")


def verify(folder: Path) -> None:
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
