import re
import subprocess
import sys

import pytest
from conftest import ROOT, multidds
from toy_runs import mistake

from multidds import Mixture
from multidds._base.escaping import printable
from multidds.commands.cli import run

RECIPE = ROOT / "recipes" / "tiny.toml"


def test_help_shows_the_commands_and_imports_no_torch():
    code = (
        "import sys; sys.argv = ['multidds', '--help']; from multidds.__main__ import main\n"
        "try: main()\nexcept SystemExit: pass\nprint('torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for command in ("prepare", "plan", "train", "translate", "evaluate"):
        assert command in out
    assert out.strip().endswith("False")


def test_translating_imports_no_torch(tiny):
    """What makes it start at once, with a model that is converted already."""
    code = (
        "import sys; sys.argv = ['multidds', 'translate', 'runs/tiny', '--from', 'shift']\n"
        "from multidds.__main__ import main\n"
        "try: main()\nexcept SystemExit: pass\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tiny, input="b", capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\nFalse\n")


def test_without_the_extra_the_command_is_one_line():
    code = (
        "import sys, importlib.util as u; real = u.find_spec\n"
        "import multidds.__main__ as m; m.find_spec = lambda name: None if name == 'rich' else real(name)\n"
        "sys.argv[1:] = ['train', 'R.toml']; m.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "multidds train: needs an extra: pip install 'multidds[nmt]'\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prepare", "no.toml"], "multidds: no.toml: there is no such file."),
        (["train", RECIPE, "--run", "r", "--set", "train.max_step=1"], "Did you mean 'max_steps'?"),
        (["train", RECIPE, "--run", "r", "--set", "data.folder=nothing"], "nothing: nothing is prepared there; run"),
        (["prepare", RECIPE, "--set", "data.folder=."], "is the current folder"),
        (["evaluate", "nothing"], "multidds: nothing: is not a run"),
        (
            ["prepare", RECIPE, "--set", "data.folder=\x1b[31mred", "--set", "data.train=x{lang}"],
            "there is no such file",
        ),
    ],
)
def test_a_mistake_is_one_line(corpus, monkeypatch, arguments, message):
    monkeypatch.chdir(corpus)
    assert message in printable(f"multidds: {mistake(*arguments)}")


def test_a_mistake_ends_with_exit_code_2_and_without_control_characters(corpus):
    done = multidds("prepare", RECIPE, "--set", "data.train=\x1b[31m[bold]{lang}", cwd=corpus, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "\\x1b[31m[bold]base: there is no such file." in done.stderr
    assert "\x1b" not in done.stderr


def test_control_characters_come_out_as_text():
    assert printable("a\x1b[31mb\r\n\u202e") == "a\\x1b[31mb\\r\\n\\u202e"
    assert printable("Sağ ol [bold]") == "Sağ ol [bold]"


@pytest.mark.slow
def test_a_dry_run_tells_what_would_be_done(tiny):
    priors = ("--set", "mixture.prior=proportional")
    before = set((tiny / "runs").iterdir())
    out = multidds("train", RECIPE, "--dry-run", *priors, cwd=tiny).stdout
    for part in (
        "many-to-one, ", " parameters", "steps per epoch", "memory: about", "one every 25 steps",
        "8 passes over 256 tokens",
    ):  # fmt: skip
        assert part in out, part
    table = multidds("plan", RECIPE, *priors, cwd=tiny).stdout
    assert out.startswith(table)
    assert re.search("dataset +examples +this recipe +proportional .* planned", table)
    (row,) = [line for line in table.splitlines() if line.startswith("mirror-base")]
    assert row.split()[1] == "500"
    assert row.split()[2:4] == row.split()[4:6]  # "this recipe" is proportional
    assert "{" not in out
    whole = multidds("train", RECIPE, "--dry-run", "--json", *priors, cwd=tiny).stdout
    assert whole.startswith(out)
    assert '"batch_tokens": 1024' in whole
    assert set((tiny / "runs").iterdir()) == before


LENGTH = ["--steps", "2", "--batch", "2"]
BY_SIZES = ["plan", "a=12000", "--steps", "200", "--batch", "32", "b=150"]
WITHOUT_EXTRAS = (
    "import sys, importlib.util as u; real = u.find_spec\n"
    "import multidds.__main__ as m; m.find_spec = lambda name: None\n"
    "m.main(); assert not {'rich', 'jinja2', 'pydantic'} & set(sys.modules)"
)


def test_a_plan_of_sizes_is_the_table_with_and_without_the_extras(tmp_path):
    table = f"{Mixture.table({'a': 12_000, 'b': 150}, 6400)}\n"
    bare = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS, *BY_SIZES], capture_output=True, text=True, check=True)
    assert multidds(*BY_SIZES, cwd=tmp_path).stdout == bare.stdout == table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "NAME=SIZE|a=12000"),
        (["a=1"], "--steps and --batch"),
        (["a=1", "--steps", "4"], "--steps and --batch"),
        (["a=1", "b", *LENGTH], "'b'"),
        (["a=1", "=2", *LENGTH], "'=2'"),
        (["a=1", "b=", *LENGTH], "'b'.*''"),
        (["a=1", "b=0", *LENGTH], "'b'.*'0'"),
        (["a=1", "b=-3", *LENGTH], "'b'.*'-3'"),
        (["a=1", "b=many", *LENGTH], "'b'.*'many'"),
        (["a=1", "a=2", *LENGTH], "'a'"),
        (["a=1", "--batch", "1", "--steps", "inf"], "--steps.*'inf'"),
        (["a=1", "--steps", "1", "--batch", "x"], "--batch.*'x'"),
        (["a=1", *LENGTH, "--goal", "b"], "--goal b.*'a'"),
        (["a=1", *LENGTH, "--goal", "a=-1"], "weight of 'a'.*'-1'"),
        ([RECIPE, *LENGTH], "leave"),
        ([RECIPE, "--goal", "a"], "leave"),
        ([RECIPE, "a=1"], "leave"),
    ],
)
def test_a_plan_that_cannot_be_is_one_line(arguments, message):
    assert re.search(message, mistake("plan", *arguments))


def test_names_in_a_plan_are_escaped_for_terminals(capsys):
    name = "\x1b[31m[bold]=\u2028"
    run(["plan", f"{name}=5", *LENGTH])
    out = capsys.readouterr().out
    assert "?[31m[bold]=? " in out
    assert "\x1b" not in out
    code = f"import sys; sys.argv = ['multidds', 'plan', {name + '=x'!r}, *{LENGTH!r}]\n{WITHOUT_EXTRAS}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "\x1b" not in done.stderr


def test_prepare_twice_says_that_nothing_has_changed(tiny):
    out = multidds("prepare", RECIPE, cwd=tiny).stdout
    assert "Nothing has changed since the last call." in out
    assert "3,000" in out


@pytest.mark.slow
def test_a_finished_run_says_that_it_is_finished(tiny):
    out = multidds("train", RECIPE, "--run", "runs/tiny", cwd=tiny).stdout
    assert "Finished after 600 steps" in out
    assert "Next: multidds evaluate runs/tiny" in out


@pytest.mark.slow
def test_a_full_disk_or_a_forbidden_folder_is_one_line(tiny):
    done = multidds("train", RECIPE, "--run", "/proc/run", cwd=tiny, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("multidds: /proc/run")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("more", [100_000, 1_000_000])
def test_too_little_memory_is_one_line(tiny, more):
    """A thread cannot be started, or not even the message be printed as usual."""
    code = (
        "import resource, sys; sys.argv = ['multidds', 'evaluate', 'runs/tiny']\n"
        "import multidds.nmt.evaluation.evaluate\nfrom multidds.nmt.commands.cli import main\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        f"limit = pages * resource.getpagesize() + {more}\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit)); main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tiny, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "out of memory" in done.stderr


def test_too_little_memory_that_a_library_hides_is_one_line():
    """The error that CPython raises then was seen in matplotlib, under a limit of memory."""
    code = (
        "from multidds.nmt.commands import cli\n"
        "def run(arguments): raise SystemError('<function draw at 0x1> returned NULL without setting an exception')\n"
        "cli.library.run = run; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "out of memory" in done.stderr
