"""Every script under benchmarks/ and experiments/, run in its shortest form."""

import json
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, multidds
from results_file import read_runs

SCRIPTS = {
    str(path.relative_to(ROOT))
    for folder in ("benchmarks", "experiments")
    for path in (ROOT / folder).rglob("*.py")
    if 'if __name__ == "__main__"' in path.read_text(encoding="utf-8")
}
BENCHMARKS = {  # script: its shortest forms, if it needs no data of ours
    "benchmarks/behaviour/behaviour.py": ["mixtures schedules"],
    "benchmarks/code_lines.py": [""],
    "benchmarks/faults/faults.py": ["--count 2 --kinds kill#-9,damaged#file --commands train"],
    "benchmarks/faults/trainers.py": ["--kills 3 --trainers Trainer,plain#loop"],
    "benchmarks/large_data.py": ["--tiny"],
    "benchmarks/many_datasets.py": [
        "scale --datasets 50",
        "text --datasets 8 --updates 2 --passes 6 --batch 4 --between 1 --warm 2",
        "moments --datasets 6 --updates 2 --batch 2 --between 1 --warm 2",
    ],
    "benchmarks/scaling.py": ["--tiny"],
    "benchmarks/processes.py": ["updates --turns 1"],  # "steps" is below
    "benchmarks/train_speed/train_speed.py": ["--tiny --only joeynmt"],
}
EXPERIMENTS = {
    "experiments/study/domains.py": [
        "--results results.jsonl --tiny --regime unwanted --method learned doge odm --seed 1 --steps 8"
    ],
    "experiments/study/pretrained.py": ["--results results.jsonl --tiny --method untrained learned --seed 1 --steps 2"],
    "experiments/study/readme_picture.py": ["--folder ."],
    "experiments/study/results.py": ["--check"],
    "experiments/study/trainers.py": ["--results results.jsonl --method learned by-hand-1 --seed 1 --steps 12"],
}
ELSEWHERE = {  # which a test below calls by name, or a nightly one
    "benchmarks/balancing_cost.py",
    "benchmarks/slurm.py",
    "experiments/study/collect.py",
    "experiments/dirty/damage_found.py",
    "experiments/dirty/damaged_corpus.py",
    "experiments/demo/corpus.py",
    "experiments/dirty/dirty_results.py",
    "experiments/dirty/highest_losses.py",
    "experiments/study/part_of_corpus.py",
}


def run(script, *arguments, cwd):
    """Runs a script as a user does, and returns what it prints."""
    command = [sys.executable, ROOT / script, *arguments]
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_no_script_is_forgotten():
    assert len(SCRIPTS) > 10, "the folders are elsewhere now"
    assert BENCHMARKS.keys() | EXPERIMENTS.keys() | ELSEWHERE == SCRIPTS


def forms(scripts):
    return [(script, form) for script, forms in scripts.items() for form in forms]


@pytest.mark.slow
@pytest.mark.parametrize(("script", "options"), forms(BENCHMARKS))
def test_a_benchmark_runs_in_its_shortest_form(script, options, tmp_path):
    printed = run(script, *(option.replace("#", " ") for option in options.split()), cwd=tmp_path)
    if script == "benchmarks/train_speed/train_speed.py":  # a peer that is not installed is shown with the reason
        assert "JoeyNMT" in printed
        assert "not measured: ModuleNotFoundError" in printed or "Against the fastest peer" in printed


@pytest.mark.nightly(part="results")
@pytest.mark.parametrize(("script", "options"), forms(EXPERIMENTS))
def test_an_experiment_runs_in_its_shortest_form(script, options, tmp_path):
    if options == "--check" and not (ROOT / "experiments" / "study" / "results.jsonl").exists():
        pytest.skip("the source distribution has no results")
    run(script, *options.split(), cwd=tmp_path)


@pytest.mark.slow
def test_balancing_is_measured_in_its_shortest_form(tmp_path):
    run("benchmarks/balancing_cost.py", "--tiny", "--json", "cost.json", cwd=tmp_path)
    found = json.loads((tmp_path / "cost.json").read_text(encoding="utf-8"))
    assert found["paper-2"]["passes"] > 0


@pytest.mark.slow
def test_benchmarks_of_a_prepared_recipe_run(text):
    recipe = ROOT / "recipes" / "tiny.toml"
    multidds("prepare", recipe, cwd=text)
    assert "an agreement: " in run("benchmarks/processes.py", "steps", recipe, "--turns", "1", cwd=text)


DIRTY = """
folder = "runs"

[settings.catalogues-m2o]
recipe = "{recipe}"
set.data = {{ {data} }}

[settings.catalogues-damaged]
recipe = "{recipe}"
set.data = {{ {damaged} }}

[methods.alike]
set = {{ {tiny} }}

[methods.dds]
set = {{ {tiny}, examples = {{ method = "dds", every = 2, learn = 0.9, replay = 2, probe_tokens = 100 }} }}

[[blocks]]
name = "clean"
settings = ["catalogues-m2o"]
methods = ["alike"]
seeds = [1]

[[blocks]]
name = "damaged"
settings = ["catalogues-damaged"]
methods = ["alike", "dds"]
seeds = [1]
"""


def data_of(corpus):
    """The section of a recipe for a corpus of two made-up languages."""
    files = {part: f"{corpus}/{{many}}-eng/{part}.{{lang}}" for part in ("train", "dev", "test")}
    settings = {"folder": f"prepared/{corpus}", "pairs": ["mirror-eng", "shift-eng"], **files}
    return ", ".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())


@pytest.mark.nightly(part="results")
def test_the_experiment_on_damaged_data_runs_from_text_to_table(corpus, tmp_path):
    for path in (corpus / "data" / "made-up").glob("*-base/*"):
        copy = tmp_path / "whole" / path.parent.name.replace("base", "eng") / path.name.replace("base", "eng")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    languages = ["--languages", "mirror,shift"]
    run(
        "experiments/study/part_of_corpus.py",
        "whole",
        "clean",
        "--every",
        10,
        "--held-out",
        10,
        *languages,
        cwd=tmp_path,
    )
    run("experiments/dirty/damaged_corpus.py", "clean", "damaged", "--damaged", "shift", *languages, cwd=tmp_path)
    assert (tmp_path / "damaged" / "shift-eng" / "train.damage").read_text().split().count("copy") == 30
    model = "model = { encoder_layers = 1, decoder_layers = 1, width = 16, inner = 32, heads = 2 }"
    train = "train = { max_steps = 12, tokens = 400, batch_tokens = 200, validate_every = 4 }"
    tiny = f'{model}, {train}, vocabulary = {{ size = 60 }}, mixture = {{ method = "static" }}'
    recipe = ROOT / "recipes" / "tiny.toml"
    settings = {"recipe": recipe, "data": data_of("clean"), "damaged": data_of("damaged"), "tiny": tiny}
    (tmp_path / "dirty.toml").write_text(DIRTY.format(**settings))
    multidds("experiment", "dirty.toml", cwd=tmp_path)
    run("experiments/dirty/highest_losses.py", "dirty.toml", cwd=tmp_path)
    printed = run("experiments/dirty/dirty_results.py", "damaged", "runs", "--results", "dirty.jsonl", cwd=tmp_path)
    assert "| damaged, a third with the highest losses left out |" in printed
    judged = json.loads(
        run("experiments/dirty/damage_found.py", "damaged", "runs/catalogues-damaged/dds/seed-1", cwd=tmp_path)
    )
    found = read_runs(tmp_path / "dirty.jsonl")["catalogues-damaged", "dds", 1]["found"]
    assert judged["auc of trust"] == pytest.approx(found["auc of trust"], rel=1e-5)
    run("experiments/study/collect.py", "runs", "results.jsonl", cwd=tmp_path)
    collected = read_runs(tmp_path / "results.jsonl")["catalogues-m2o", "alike", 1]
    assert collected["steps"] == 12
    assert collected["test"].keys() == collected["dev"].keys() == collected["sentences"].keys()
