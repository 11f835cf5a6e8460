"""Experiments as real processes, on the made-up languages."""

import datetime
import json
import math
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib

import pytest
from conftest import ROOT, multidds
from hypothesis import example, given
from hypothesis import strategies as st
from made_runs import read_lines, some_record, write_records
from toy_runs import mistake

from multidds._base.errors import UserError
from multidds.nmt.common.checksummed import read_checksummed, write_checksummed
from multidds.nmt.config.config import load_config
from multidds.nmt.experiment import local_process
from multidds.nmt.experiment.experiment_file import load_experiment
from multidds.nmt.experiment.job import Job, remaining_stages
from multidds.nmt.experiment.run_list import flat, plan, toml_literal
from multidds.nmt.experiment.runner import Runner

RECIPE = ROOT / "recipes" / "tiny.toml"
STEPS = 80
EXPERIMENT = f"""
folder = "runs/e"
parallel = 2

[settings.made-up]
recipe = "{RECIPE}"

[settings.made-up.set]
model = {{encoder_layers = 1, decoder_layers = 1, width = 16, inner = 32, heads = 2}}
train = {{tokens = 400, batch_tokens = 200, pool = 4, warmup = 5, log_every = 3, save_every = 10, max_steps = {STEPS}}}
translate = {{beam = 1}}
mixture = {{every = 10, probe_tokens = 100, sketch = 256, scorer = {{lr = 0.1}}, priority = {{"shift-base" = 2.0}}}}

[methods.uniform]
set = {{mixture = {{method = "static", prior = "uniform"}}}}

[methods.multidds-s]
set = {{mixture = {{method = "multidds-s"}}}}

[[blocks]]
name = "main"
settings = ["made-up"]
methods = ["uniform", "multidds-s"]
seeds = [1]

[[blocks]]
name = "again"
settings = ["made-up"]
methods = ["uniform"]
seeds = [ 1 ]
"""
NAMES = [f"made-up/{method}/seed-1" for method in ("uniform", "multidds-s")]


def write(folder, text, name="e.toml"):
    path = folder / name
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def done(corpus):
    """The experiment, run once; the folder that holds it, and what was printed."""
    write(corpus, EXPERIMENT)
    return corpus, multidds("experiment", "e.toml", cwd=corpus).stdout


def start(cwd, *arguments):
    command = [sys.executable, "-m", "multidds", "experiment", *map(str, arguments)]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for(happened, seconds=60):
    end = time.monotonic() + seconds
    while not (found := happened()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
    return found


def saved(run):
    """The step of the newest checkpoint."""
    return max((int(path.stem[5:]) for path in run.glob("checkpoints/step-*.safetensors")), default=0)


def finished(run):
    lines = read_lines(run)
    return [line["finished"] for line in lines if line["kind"] == "validation"][-1:] not in ([], [""])


def free(run):
    """Whether no process trains it."""
    fcntl = pytest.importorskip("fcntl")
    with (run / "records.jsonl").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def best(run):
    """The header of best.safetensors, whose order is random, and all bits of the tensors by name."""
    content = (run / "best.safetensors").read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    facts = header.pop("__metadata__")
    del facts["checksum"]  # of the order, too
    offsets = {name: tensor.pop("data_offsets") for name, tensor in header.items()}
    return facts, header, {name: content[end + start : end + stop] for name, (start, stop) in offsets.items()}


def everything(folder):
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


# ---------------------------------------------------------------------------------------------- real runs


def test_every_run_of_every_block_is_trained_and_evaluated_once(done):
    cwd, out = done
    for name in NAMES:
        run = cwd / "runs/e" / name
        assert finished(run)
        config = json.loads((run / "config.json").read_text())["config"]
        assert config["data"]["setting"] == "made-up"
        assert config["train"]["threads"] == 1
        assert config["train"]["seed"] == int(name[-1])
        assert config["mixture"]["method"] == ("static" if "uniform" in name else "multidds-s")
        assert config["mixture"]["scorer"]["lr"] == 0.1
        scores = json.loads((run / "scores.json").read_text())
        assert scores["average"]["chrf"] == scores["pairs"]["shift-base"]["chrf"]  # the only one that counts
        bleu = scores["average"]["bleu"]
        assert out.count(f"{name}: training\n") == out.count(f"{name}: evaluating\n") == 1
        assert f"{name}: done  weighted BLEU {bleu:.2f}\n" in out
        log = (cwd / "runs/e/logs" / (name.replace("/", ".") + ".log")).read_text()
        assert f"Finished after {STEPS} steps" in log
        assert "average, by priority" in log  # the table of 'evaluate'
    assert out.count("preparing data/made-up/prepared") == 1
    assert out.rstrip().endswith("Next: multidds report runs/e")


def test_a_second_call_skips_what_is_done_and_starts_no_process(done):
    cwd, _ = done
    before = everything(cwd / "runs/e") | everything(cwd / "data")
    out = multidds("experiment", "e.toml", cwd=cwd).stdout
    assert [f"{name}: skipped" in out for name in NAMES] == [True] * 2
    assert everything(cwd / "runs/e") | everything(cwd / "data") == before


def test_a_run_that_is_not_scored_or_has_become_longer_has_remaining_stages(done, monkeypatch):
    cwd, _ = done
    monkeypatch.chdir(cwd)
    run = plan(cwd / "e.toml", load_experiment(cwd / "e.toml"))[0]
    assert remaining_stages(run) == []
    path = run.folder / "scores.json"
    whole = path.read_bytes()
    facts = read_checksummed(path, "")
    facts.pop("checksum", None)
    for change in ({"model": facts["model"] | {"checksum of the checkpoint": "of another"}}, {"run": "another"}):
        write_checksummed(path, facts | change)
        assert remaining_stages(run) == ["evaluate"]
    path.write_bytes(whole[:-1])
    assert remaining_stages(run) == ["evaluate"]
    path.write_bytes(whole)
    for change, expected in (
        (f"max_steps = {STEPS}}}", [[f"max_steps = {STEPS + 1}}}", ["train", "evaluate"]]]),
        ("log_every = 3", [["log_every = 4", []], ["log_every = 3, lr = 1.0", UserError]]),
        ("beam = 1", [["beam = 2", ["train", "evaluate"]]]),
    ):
        for replacement, stages in expected:
            path = write(cwd, EXPERIMENT.replace(change, replacement), "changed.toml")
            changed = plan(path, load_experiment(path))[0]
            if stages is UserError:
                with pytest.raises(UserError, match=r"was started with other settings: train\.lr\. Move it away or"):
                    remaining_stages(changed)
            else:
                assert remaining_stages(changed) == stages


def test_a_run_that_was_killed_after_it_became_longer_is_not_finished(done, monkeypatch):
    """Its config.json is written before its first step."""
    cwd, _ = done
    monkeypatch.chdir(cwd)
    text = EXPERIMENT.replace(f"max_steps = {STEPS}", f"max_steps = {STEPS + 1}").replace("runs/e", "runs/longer")
    path = write(cwd, text, "longer.toml")
    run = plan(path, load_experiment(path))[0]
    shutil.copytree(cwd / "runs/e" / run.name, run.folder)
    facts = read_checksummed(run.folder / "config.json", "")
    facts["config"] = json.loads(run.config.model_dump_json())
    write_checksummed(run.folder / "config.json", facts)
    assert remaining_stages(run) == ["train", "evaluate"]


@pytest.mark.slow
def test_a_run_that_was_stopped_or_killed_ends_as_one_that_was_not(done):
    cwd, _ = done
    text = EXPERIMENT.replace("runs/e", "runs/cut").replace("parallel", "evaluate = false\nparallel")
    path = write(cwd, text, "cut.toml")
    arguments = (path, "--only", "*/multidds-s/seed-1", "--parallel", "1")
    run = cwd / "runs/cut/made-up/multidds-s/seed-1"

    process = start(cwd, *arguments)
    wait_for(lambda: saved(run))
    process.send_signal(signal.SIGINT)
    out = process.communicate(timeout=300)[0]
    assert process.returncode == 130
    assert "made-up/multidds-s/seed-1: stopped" in out
    assert f"To go on: multidds experiment {path} --parallel 1 --only '*/multidds-s/seed-1'" in out
    assert "Stopped and saved after step" in (cwd / "runs/cut/logs/made-up.multidds-s.seed-1.log").read_text()
    first = saved(run)
    assert not finished(run)

    process = start(cwd, *arguments)
    wait_for(lambda: saved(run) > first)
    process.kill()
    process.communicate()
    wait_for(lambda: free(run))
    assert not finished(run)  # the child was not left to train on
    assert first < saved(run) < STEPS

    out = multidds("experiment", *arguments, cwd=cwd).stdout
    assert "made-up/multidds-s/seed-1: done" in out
    assert best(run) == best(cwd / "runs/e/made-up/multidds-s/seed-1")


@pytest.mark.slow
def test_runs_that_fail_are_told_and_the_others_go_on(done):
    cwd, _ = done
    shutil.copytree(cwd / "runs/e/made-up/uniform/seed-1", cwd / "runs/f/made-up/other/seed-1")
    text = EXPERIMENT.replace("runs/e", "runs/f").replace(f"max_steps = {STEPS}", "max_steps = 6")
    text = (
        text[: text.index("[[blocks]]")].replace("parallel", "evaluate = false\nparallel")
        + f"""
    [settings.no-data]
    recipe = "{RECIPE}"
    set = {{data = {{folder = "data/none", train = "data/none.{{lang}}"}}}}
    [methods.other]
    set = {{train = {{lr = 0.5}}, mixture = {{method = "static", prior = "uniform"}}}}
    [methods.blown]
    set = {{train = {{lr = 1e6, warmup = 0, max_steps = 40}}}}
    [[blocks]]
    name = "main"
    settings = ["made-up"]
    methods = ["blown", "other", "uniform"]
    seeds = [1]
    [[blocks]]
    name = "no data"
    settings = ["no-data"]
    methods = ["uniform"]
    seeds = [1]
    """
    )
    write(cwd, text, "f.toml")
    result = multidds("experiment", "f.toml", cwd=cwd, check=False)
    assert result.returncode == 1
    assert result.stderr == ""
    failed = [line for line in result.stdout.splitlines() if line.startswith("failed: ")]
    assert len(failed) == 3
    for line, name, reason in zip(
        failed,
        ("made-up/blown/seed-1", "made-up/other/seed-1", "no-data/uniform/seed-1"),
        ("the loss or its gradient is not finite", "other settings: train.max_steps, train.lr", "no such file"),
        strict=True,
    ):
        assert line.startswith(f"failed: {name}: ")
        assert reason in line
    assert failed[0].endswith("(log: runs/f/logs/made-up.blown.seed-1.log)")
    assert failed[2].endswith("(log: runs/f/logs/prepare.no-data.log)")
    assert not (cwd / "runs/f/logs/made-up.other.seed-1.log").exists()  # nothing was started for it
    assert not (cwd / "runs/f/no-data").exists()
    assert finished(cwd / "runs/f/made-up/uniform/seed-1")
    assert "Next:" not in result.stdout


@pytest.mark.slow
def test_a_run_of_another_process_is_left_to_it(done, monkeypatch, capsys):
    fcntl = pytest.importorskip("fcntl")
    cwd, _ = done
    monkeypatch.chdir(cwd)
    monkeypatch.setattr(local_process, "_GRACE", 0.0)
    path = write(cwd, EXPERIMENT.replace("runs/e", "runs/locked"), "locked.toml")
    run = plan(path, load_experiment(path))[0]
    run.folder.mkdir(parents=True)
    with (run.folder / "records.jsonl").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        runner = Runner([run], 1)
        runner.run()
        monkeypatch.setattr(local_process, "_GRACE", 60.0)
        assert local_process.Local().first_of([Job(run, stages=["train"])]) is None
    (job,) = runner.jobs
    assert job.state == "failed"
    assert "is being trained by another process" in job.reason
    assert "is being trained by another process" in capsys.readouterr().out


def test_a_dry_run_prints_commands_that_a_shell_can_run(done):
    cwd, _ = done
    path = write(cwd, EXPERIMENT.replace("runs/e", "runs/dry dry"), "dry.toml")
    before = everything(cwd)
    out = multidds("experiment", path, "--dry-run", "--only", "*/uniform/seed-1", cwd=cwd).stdout
    assert everything(cwd) == before
    lines = out.splitlines()
    assert [line for line in lines if line.startswith("#")] == [
        "# made-up/uniform/seed-1: train and evaluate",
    ]
    commands = [shlex.split(line) for line in lines if not line.startswith("#")]
    assert [command[:2] for command in commands] == [["multidds", x] for x in ("prepare", "train", "evaluate")]
    overrides = [part for before, part in zip(commands[1], commands[1][1:], strict=False) if before == "--set"]
    (planned,) = [run for run in plan(path, load_experiment(path)) if run.name == "made-up/uniform/seed-1"]
    assert load_config(RECIPE, overrides) == planned.config
    assert commands[1][commands[1].index("--folder") + 1] == "runs/dry dry/made-up/uniform/seed-1"
    multidds(*commands[0][1:], cwd=cwd)
    assert "# made-up/uniform/seed-1: done" in multidds("experiment", "e.toml", "--dry-run", cwd=cwd).stdout


def test_overrides_and_another_folder_hold_for_every_run(done):
    cwd, _ = done
    given = ("--set", "train.max_steps=7", "--folder", "runs/other")
    out = multidds("experiment", "e.toml", "--dry-run", *given, cwd=cwd).stdout
    trained = [shlex.split(line) for line in out.splitlines() if line.startswith("multidds train")]
    assert trained
    assert all("train.max_steps=7" in words for words in trained)
    assert all(any(word.startswith("runs/other/") for word in words) for words in trained)
    refused = multidds("experiment", "e.toml", "--dry-run", "--set", "train.seed=7", cwd=cwd, check=False)
    assert refused.returncode == 2
    assert "train.seed" in refused.stderr


# ---------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("change", "to", "message"),
    [
        ('methods = ["uniform"]', 'methods = ["unifrm"]', "'again': there is no method 'unifrm'. Did you mean 'uni"),
        ('settings = ["made-up"]', 'settings = ["made"]', "there is no setting 'made'. Did you mean 'made-up'?"),
        ("[methods.uniform]", "[methods.uniform", "e.toml: not valid TOML"),
        ("parallel", "paralel", "e.toml: has no key 'paralel'. Did you mean 'parallel'?"),
        ("seeds = [ 1 ]", "sedes = [1]", "[blocks.1] has no key 'sedes'. Did you mean 'seeds'?"),
        ("[methods.multidds-s]", "[methods.multidds-s]\nste = {}", "[methods.multidds-s] has no key 'ste'. Did you"),
        ("seeds = [ 1 ]", "seeds = [true]", "but it is True"),
        ("seeds = [ 1 ]", "seeds = []", "[blocks.1] seeds: "),
        ('folder = "runs/e"', "", "needs the key 'folder'."),
        ("recipes/tiny.toml", "recipes/tny.toml", "[settings.made-up]: "),
        ("recipes/tiny.toml", "recipes/tny.toml", "tny.toml: there is no such file."),
        ("[methods.multidds-s]", '[methods."a/b"]', "[methods] 'a/b' becomes the name of a folder"),
        ("[methods.multidds-s]", '[methods.".."]', "[methods] '..' becomes the name of a folder"),
        ("max_steps = 80", "max_step = 80", "[train] has no key 'max_step'. Did you mean 'max_steps'?"),
        ('prior = "uniform"', 'prior = "unform"', "[methods.uniform] in [settings.made-up]: "),
        ("set = {mixture = {", "set = {mixtur = {", "has no section 'mixtur'. Did you mean 'mixture'?"),
        ("train = {tokens", "train = [1]\nvocabulary = {tokens", "--set train=[1]: expected section.key=value."),
        ("pool = 4", "seed = 4", "set: train.seed is set by the seeds of a block; leave it out."),
        ('prior = "uniform"}', 'prior = "uniform"}, data = {max_length = 50}', "share [data] folder = "),
        ("[methods.uniform]", "[methods.uniform]\nset.data.x = 1\n[methods.y]", "[data] has no key 'x'"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_file_is_one_line_before_anything_starts(tmp_path, change, to, message):
    assert change in EXPERIMENT
    path = write(tmp_path, EXPERIMENT.replace(change, to))
    with pytest.raises(UserError) as error:
        plan(path, load_experiment(path))
    assert message in str(error.value)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_other_mistakes_of_the_command_line_are_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, EXPERIMENT)
    for arguments, message in (
        (["no.toml"], "no.toml: there is no such file"),
        (["."], "is a folder; give the experiment"),
        (["e.toml", "--only", "x*"], "--only x*: matches none of the 2 runs, such as made-up/uniform/seed-1"),
    ):
        assert message in mistake("experiment", *arguments)
    assert not (tmp_path / "runs").exists()


def test_an_experiment_without_test_sets_cannot_be_evaluated(tmp_path):
    recipe = RECIPE.read_text().replace('test = "data', '# test = "data')
    write(tmp_path, recipe, "r.toml")
    path = write(tmp_path, EXPERIMENT.replace(str(RECIPE), "r.toml"))
    with pytest.raises(UserError, match=r"has no \[data\] test to evaluate on; add it, or say evaluate = false"):
        plan(path, load_experiment(path))


def test_names_whose_logs_would_be_one_file_are_refused(tmp_path):
    text = EXPERIMENT[: EXPERIMENT.index("[[blocks]]")]
    for setting in ("a", "a.b"):
        text += f'[settings."{setting}"]\nrecipe = "{RECIPE}"\n'
    for method in ("c", "b.c"):
        text += f'[methods."{method}"]\n'
    text += '[[blocks]]\nname = "x"\nsettings = ["a", "a.b"]\nmethods = ["c", "b.c"]\nseeds = [1]\n'
    path = write(tmp_path, text)
    with pytest.raises(UserError, match=r"a/b.c/seed-1 and a.b/c/seed-1 would share .*; rename a setting or method"):
        plan(path, load_experiment(path))


# ---------------------------------------------------------------------------------------------- values as TOML

SCALARS = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.dates(min_value=datetime.date(1000, 1, 1))
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=12))
@example("\x7f\x00\"\\'\n\u2028")
@example({"": {"a.b": [1e-05, 1e22, -0.0, math.inf]}, "a-b": True})
def test_a_value_written_as_toml_is_read_as_the_same(value):
    text = toml_literal(value)
    assert "\n" not in text
    assert repr(tomllib.loads(f"value = {text}")["value"]) == repr(value)  # so that nan is nan, and 1 is not 1.0


def test_what_toml_does_not_know_is_not_written():
    with pytest.raises(TypeError, match="TOML has no NoneType"):
        toml_literal(None)


def test_nested_overrides_stop_at_the_values_of_keys():
    table = {"mixture": {"scorer": {"lr": 1.0}, "probabilities": {"a-b": 1.0}}, "train": {"lr": 0.1}}
    assert flat(table) == {
        "mixture.scorer.lr": 1.0,
        "mixture.probabilities": {"a-b": 1.0},
        "train.lr": 0.1,
    }


def test_a_run_is_finished_whatever_is_recorded_beside_its_last_validation(done, monkeypatch):
    cwd, _ = done
    monkeypatch.chdir(cwd)
    path = write(cwd, EXPERIMENT.replace("runs/e", "runs/recorded"), "recorded.toml")
    run = plan(path, load_experiment(path))[0]
    shutil.copytree(cwd / "runs/e" / run.name, run.folder)
    step, last = some_record("step", 3), some_record("validation", STEPS, finished=f"{STEPS} steps")
    for records, remaining in (
        ([step], ["train", "evaluate"]),
        ([step, last], []),
        ([step, last, some_record("examples", STEPS)], []),
        ([step, last, some_record("step", STEPS + 1)], ["train", "evaluate"]),  # it was made longer
        ([step, last | {"finished": "no better dev loss in 3 validations"}], []),
    ):
        write_records(run.folder, records)
        assert remaining_stages(run) == remaining


# ---------------------------------------------------------------------------------------------- the experiments we ship


RUNS = {"paper": 40, "cpu": 32, "demo": 4, "tiny": 4, "study": 99, "dirty": 15}
EXPERIMENTS = {
    path.stem: path
    for path in sorted((ROOT / "experiments").rglob("*.toml"))
    if "[[blocks]]" in path.read_text(encoding="utf-8")
}


def test_no_experiment_is_forgotten():
    assert EXPERIMENTS.keys() == RUNS.keys()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_all_runs_of_our_experiments_resolve(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    runs = plan(EXPERIMENTS[name], load_experiment(EXPERIMENTS[name]))
    assert len(runs) == RUNS[name]
    for run in runs:
        average = run.config.mixture.method == "moving-average"
        assert not average or (run.config.train.mixing, run.config.train.accumulate) == ("batch", 1)


def test_the_experiment_of_the_paper_has_the_runs_of_the_paper(monkeypatch):
    monkeypatch.chdir(ROOT)
    path = ROOT / "experiments" / "paper" / "paper.toml"
    runs = plan(path, load_experiment(path))
    settings = [f"{direction}-{group}" for direction in ("m2o", "o2m") for group in ("related", "diverse")]
    expected = {
        f"{setting}/{method}/seed-1"
        for setting in settings
        for method in ("uniform", "temperature-5", "proportional", "multidds", "multidds-s")
    }
    for direction in ("m2o", "o2m"):
        expected |= {f"{direction}-diverse/{method}/seed-1" for method in ("low", "high")}
        expected |= {f"{direction}-diverse/{m}/seed-{n}" for m in ("multidds", "multidds-s") for n in (1, 2, 3, 4)}
        expected |= {f"{direction}-related/{method}/seed-1" for method in ("moving-average", "multidds-batch")}
    assert len(expected) == 20 + 4 + 12 + 4
    assert {run.name for run in runs} == expected
    for run in runs:
        mixture, train = run.config.mixture, run.config.train
        assert (train.max_epochs, train.max_steps, train.seed) == (40, 0, run.seed)
        assert mixture.step_ahead == (0.001 if mixture.method == "multidds" else 0.0)
        assert (mixture.priority, mixture.switch_epoch) == (
            (run.method, 10) if run.method in ("low", "high") else ("regular", 0)
        )
        one_pair = run.method in ("moving-average", "multidds-batch")
        assert (train.mixing, train.accumulate) == (("batch", 1) if one_pair else ("example", 2))
        assert f"{run.config.data.direction}".startswith("many" if "m2o" in run.name else "one")
