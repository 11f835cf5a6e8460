"""`multidds report` and `mixture` on what any trainer leaves, with the packages of [report] alone."""

import json
import re
import subprocess
import sys

import pytest
from conftest import ROOT
from made_runs import make_run, report
from toy_runs import mistake

from multidds import Mixture, Update
from multidds.commands.run_mixture import final_mixture, history_json, mixture_at
from multidds.history import save_history

HIDDEN = (
    "ctranslate2",
    "pydantic",
    "rich",
    "sacrebleu",
    "safetensors",
    "sentencepiece",
    "tensorboard",
    "transformers",
    "lightning",
)


def updates(names="ab", count=4):
    even = dict.fromkeys(names, 1 / len(names))
    for i in range(1, count + 1):
        moved = even | {names[0]: even[names[0]] + 0.05 * i, names[-1]: even[names[-1]] - 0.05 * i}
        yield Update(
            step=10 * i, mixture=moved, rewards=dict.fromkeys(names, 0.1), noise=dict.fromkeys(names, 0.02),
            dev_losses={"x": 2 - i / 10}, train_losses={}, weights={}, alignment=None, seconds=0.1, signal=0.5,
            drift=0.05 * i, learned=0.04 * i, unlearned=0.01, prior=even, before=even,
        )  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """What a plain loop, the Trainer and Lightning leave of the same training, and a run of ours."""
    folder = tmp_path_factory.mktemp("trainers")
    for name in (
        "plain",
        "trainer/checkpoint-20",
        "trainer/checkpoint-40",
        "lightning/version_0",
        "lightning/version_1",
    ):
        (folder / name).mkdir(parents=True)
    given = list(updates())
    save_history(given, folder / "plain", start={"a": 0.5, "b": 0.5}, passes={"a": 1.0, "b": 2.0})
    for number in (20, 40):
        log = [{"step": 5, "loss": 2.0}] + [{"step": u.step} | u.scalars() for u in given if u.step <= number]
        state = {"log_history": log, "global_step": number}
        (folder / "trainer" / f"checkpoint-{number}" / "trainer_state.json").write_text(json.dumps(state))
    rows = [["step", *given[0].scalars()], *([u.step, *u.scalars().values()] for u in given)]
    for version in (0, 1):
        text = "\n".join(",".join(map(str, row)) for row in rows)
        (folder / "lightning" / f"version_{version}" / "metrics.csv").write_text(text + "\n")
    make_run(folder / "ours" / "static", ["a-b", "c-b"])
    make_run(folder / "ours" / "learned", ["a-b", "c-b"], method="multidds-s")
    return folder


def run(*arguments, cwd, hidden=HIDDEN):
    """The command, in a process in which these packages are not installed."""
    code = f"""
import sys
from importlib.machinery import PathFinder
hidden = {hidden!r}
real = PathFinder.find_spec
PathFinder.find_spec = classmethod(lambda cls, name, *more: None if name.split(".")[0] in hidden else real(name, *more))
sys.argv = ["multidds", *{[str(argument) for argument in arguments]!r}]
from multidds.__main__ import main
main()
"""
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True)


@pytest.mark.slow
def test_a_report_of_any_trainer_needs_only_the_extra(folders, tmp_path):
    names = ("plain", "trainer", "trainer/checkpoint-20", "lightning", "ours")
    hidden = (*HIDDEN, "torch")
    done = run("report", *(folders / name for name in names), "-o", tmp_path / "out", cwd=tmp_path, hidden=hidden)
    assert done.returncode == 0, done.stderr
    for sentence in (
        "plain: 4 updates in 40 steps; the plan moved 1% of the draws, learning 16% more: a 50% → 70%, b 50% → 30%.",
        "trainer: 4 updates in 40 steps; the plan moved 1% of the draws, learning 16% more: a 55% → 70%, b 45% → 30%.",
        "checkpoint-20: 2 updates in 20 steps; the plan moved 1% of the draws, learning 8% more: a 55% → 60%",
        "lightning/version_0: 4 updates in 40 steps",
    ):
        assert sentence in done.stdout
    assert re.search(r"learned is (better|worse|level) (than|with) static: mean dev loss", done.stdout)
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert page.count('class="chart area"') > 4
    assert "p &lt; 0.05 (paired" not in page  # no scores without the application
    for path in ("figures", "tables"):
        assert list((tmp_path / "out" / path).iterdir())


def test_runs_on_the_same_datasets_stand_side_by_side(folders, tmp_path):
    report([folders / "plain", folders / "trainer"], tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert page.count('class="chart area"') == 2
    first = page.index("What the mixture did")
    assert page.index("What moved the mixture") > page.index(
        'class="chart area"', page.index("<figcaption>trainer", first)
    )
    (table,) = (tmp_path / "out" / "tables").glob("*plain.csv")
    assert table.read_text().splitlines()[1].startswith("a,50.0,")


def test_the_mixture_of_any_trainer_is_read(folders, tmp_path):
    for name in ("plain", "trainer", "lightning/version_0"):
        assert final_mixture(folders / name) == pytest.approx({"a": 0.7, "b": 0.3})
    assert mixture_at(folders / "plain", 0) == {"a": 0.5, "b": 0.5}
    assert [step for step, _ in json.loads(history_json(folders / "plain"))] == [0, 10, 20, 30, 40]
    assert "has records of steps 10 to 40" in mistake("mixture", folders / "trainer", "--at", 3)


def test_mixture_and_plan_need_only_the_extra(folders, tmp_path):
    done = run("plan", "a=12000", "b=150", "--steps", "200", "--batch", "32", cwd=tmp_path)
    assert done.stdout == f"{Mixture.table({'a': 12_000, 'b': 150}, 6400)}\n", done.stderr
    done = run("plan", "R.toml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "multidds: plan: R.toml: recipes need an extra: pip install 'multidds[nmt]'.\n",
    )
    done = run("mixture", folders / "ours" / "learned", cwd=tmp_path, hidden=(*HIDDEN, "torch"))
    assert json.loads(done.stdout) == final_mixture(folders / "ours" / "learned"), done.stderr
    done = run("mixture", folders / "plain", cwd=tmp_path, hidden=(*HIDDEN, "torch"))
    assert json.loads(done.stdout) == pytest.approx({"a": 0.7, "b": 0.3}), done.stderr


def test_other_commands_say_what_to_install(tmp_path):
    done = run("train", "R.toml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "multidds train: needs an extra: pip install 'multidds[nmt]'\n",
    )
    done = run("report", ".", cwd=tmp_path, hidden=(*HIDDEN, "jinja2"))
    assert (done.returncode, done.stderr) == (2, "multidds report: needs an extra: pip install 'multidds[report]'\n")


def test_the_version_needs_nothing(tmp_path):
    from multidds import __version__

    done = run("--version", cwd=tmp_path, hidden=(*HIDDEN, "rich", "jinja2", "torch", "numpy"))
    assert done.stdout == f"multidds {__version__}\n", done.stderr


def test_the_extra_names_what_the_command_looks_for():
    import tomllib

    from multidds.__main__ import _NEEDED, _NMT

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, needed in (("report", _NEEDED["report"]), ("nmt", _NMT)):
        assert {one.split(">")[0] for one in extras[extra]} == set(needed)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"log_history": [{"step": 1, "loss": 2.0}]}', "has no mixture; was a balancer at work there?"),
        ('{"log_history": [{"step": 1, "mixture/a": 0.3}]}', "this log has only the datasets that moved most"),
        ("[]", "is no history of a mixture"),
    ],
)
def test_a_checkpoint_without_a_whole_mixture_is_one_line(tmp_path, content, message):
    (tmp_path / "trainer_state.json").write_text(content)
    assert message in mistake("mixture", tmp_path)
