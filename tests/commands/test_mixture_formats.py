"""The mixture of a run, printed for other trainers and read back as they read it."""

import ast
import json
import subprocess
import sys
from itertools import islice

import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from made_runs import make_run, read_lines, write_mixture
from snippets import blocks
from surroundings import surroundings
from torch.utils.data import DataLoader
from toy_runs import Silent, mistake, small_config

from multidds import Balancer, Mixture
from multidds.commands.cli import run as run_command
from multidds.commands.mixture_formats import (
    FORMATS,
    average_mixture,
    final_mixture,
    history_json,
    mixture_at,
    written,
)
from multidds.mixture import Replay
from multidds.nmt.training.train import train

NAMES = ("aze-eng", "bel-eng", "tur-eng")


# ------------------------------------------------------------------------------------------ as the trainers read it


def read_json(text):
    return json.loads(text)


def read_fairseq(text):
    """--sampling-weights is evaluated as Python, --sampling-weights-from-file is read as JSON."""
    evaluated = eval(text, {"__builtins__": {}})
    assert evaluated == json.loads(text)
    assert all(key.startswith("main:") for key in evaluated)
    return {key.removeprefix("main:"): weight for key, weight in evaluated.items()}


def read_hf(text):
    names = {}
    exec(text, names)
    return dict(zip(names["names"], names["probabilities"], strict=True))


def read_megatron(text):
    """--data-args-path is split at spaces and newlines, as a shell splits the words of --data-path $(...)."""
    words = text.split()
    assert len(words) % 2 == 0
    assert all(path.endswith("_text_document") for path in words[1::2])
    return {words[i + 1].removesuffix("_text_document"): float(words[i]) for i in range(0, len(words), 2)}


def keywords(call):
    return {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}


def read_streaming(text):
    line, assigned = ast.parse(text).body
    assert ast.unparse(line) == "from streaming import Stream"
    assert assigned.targets[0].id == "streams"
    assert all(call.func.id == "Stream" for call in assigned.value.elts)
    return {keywords(call)["local"]: keywords(call)["proportion"] for call in assigned.value.elts}


def read_lhotse(text):
    line, assigned = ast.parse(text).body
    assert ast.unparse(line) == "from lhotse import CutSet"
    call = assigned.value
    if ast.unparse(call.func) == "CutSet.mux":
        sets, weights = call.args, keywords(call)["weights"]
    else:  # a single one cannot be muxed
        sets, weights = [call], [1.0]
    names = []
    for one in sets:
        assert ast.unparse(one.func).endswith(").repeat")
        (path,) = one.func.value.args
        assert ast.unparse(one.func.value.func) == "CutSet.from_file"
        names.append(path.value.removesuffix(".jsonl.gz"))
    return dict(zip(names, weights, strict=True))


READERS = {"json": read_json, "fairseq": read_fairseq, "hf": read_hf, "megatron": read_megatron,
           "streaming": read_streaming, "lhotse": read_lhotse}  # fmt: skip


@st.composite
def mixtures(draw):
    names = st.from_regex(r"\A(?!\.)[A-Za-z0-9._-]{1,12}\Z")
    weights = st.one_of(st.just(0.0), st.floats(1e-300, 1.0))
    drawn = draw(st.dictionaries(names, weights, min_size=1, max_size=50).filter(lambda d: sum(d.values()) > 1e-3))
    total = sum(drawn.values())
    return {name: weight / total for name, weight in drawn.items()}


@pytest.mark.claim(
    "Mixtures for other trainers",
    "any mixture of up to 50 datasets survives every format, read back as that trainer reads it",
)
@pytest.mark.parametrize("format_", sorted(FORMATS.keys() | READERS.keys()))
@given(mixture=mixtures())
def test_any_mixture_survives_every_format(format_, mixture):
    found = READERS[format_](written(mixture, format_, None))
    kept = mixture if format_ in ("json", "fairseq") else {name: p for name, p in mixture.items() if p > 0}
    assert list(found) == list(kept)
    assert all(found[name] == p or (format_ == "lhotse" and len(kept) == 1) for name, p in kept.items())
    assert all(p > 0 for name, p in found.items() if mixture[name] > 0)
    assert sum(found.values()) == pytest.approx(1, abs=1e-9)
    Mixture(found)


@pytest.mark.claim("Mixtures for other trainers", "`interleave_datasets` accepts the names and probabilities")
def test_interleave_datasets_takes_the_names_and_probabilities(tmp_path):
    datasets = pytest.importorskip("datasets")
    run = make_run(tmp_path / "run", NAMES, method="multidds-s", scored=False)
    mixture = final_mixture(run)
    given = {}
    exec(written(mixture, "hf", None), given)
    by_name = {name: datasets.Dataset.from_dict({"name": [name] * 400}) for name in NAMES}
    mixed = datasets.interleave_datasets(
        [by_name[name] for name in given["names"]], given["probabilities"], seed=1, stopping_strategy="all_exhausted"
    )
    drawn = mixed["name"][:]
    for name, p in mixture.items():
        assert drawn.count(name) / len(drawn) == pytest.approx(p, abs=0.05)


@pytest.mark.claim(
    "Mixtures for other trainers", "Lhotse's `CutSet.mux` accepts the weights (run only if Lhotse is installed)"
)
def test_lhotse_muxes_with_the_weights(tmp_path):
    lhotse = pytest.importorskip("lhotse")
    from lhotse.testing.dummies import dummy_cut

    mixture = {"a": 0.3, "b": 0.7}
    for name, size in (("a", 20), ("b", 5)):
        cuts = [dummy_cut(i).with_id(f"{name} {i}") for i in range(size)]
        lhotse.CutSet.from_cuts(cuts).to_file(tmp_path / f"{name}.jsonl.gz")
    given = {}
    exec(written(mixture, "lhotse", f"{tmp_path}/{{name}}.jsonl.gz"), given)
    drawn = [cut.id[0] for cut in islice(given["cuts"], 2000)]
    assert drawn.count("a") / 2000 == pytest.approx(0.3, abs=0.05)


@pytest.mark.parametrize(
    ("format_", "template", "expected"),
    [
        ("fairseq", "mined:{name}", '{"mined:a": 0.25, "mined:b": 0.75}'),
        ("megatron", "/data/{name}/x", "0.25 /data/a/x\n0.75 /data/b/x"),
        ("hf", "org/{name}", 'names = ["org/a", "org/b"]\nprobabilities = [0.25, 0.75]'),
        ("streaming", "s3://x/{name}", 'Stream(remote="s3://x/b", proportion=0.75)'),
        ("lhotse", 'my "cuts"/{name}.jsonl', 'CutSet.from_file("my \\"cuts\\"/a.jsonl").repeat()'),
    ],
)
def test_datasets_are_called_what_the_other_trainer_calls_them(format_, template, expected):
    assert expected in written({"a": 0.25, "b": 0.75}, format_, template)


@pytest.mark.parametrize("format_", ["json", "fairseq", "hf", "streaming", "lhotse"])
def test_names_in_any_script_are_the_same_in_python(format_):
    template = "文/\N{OPEN FILE FOLDER}/é'\"\\{name}"
    code = written({"a": 0.25, "b": 0.75}, format_, template)
    strings = {node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)}
    assert {template.replace("{name}", name) for name in "ab"} <= strings


# ------------------------------------------------------------------------------------------ which mixture


def test_final_and_at_are_the_mixtures_on_record(tmp_path):
    run = make_run(tmp_path / "run", NAMES, method="multidds-s", updates=3, scored=False)
    start, *updates = [line["mixture"] for line in read_lines(run, "mixture.jsonl") if "mixture" in line]
    assert final_mixture(run) == updates[2]
    expected = {0: start, 9: start, 10: updates[0], 19: updates[0], 20: updates[1], 30: updates[2]}
    assert {step: mixture_at(run, step) for step in expected} == expected


@pytest.mark.claim(
    "Mixtures for other trainers", "the average over a run, the mixture at a step, static and unfinished runs"
)
def test_the_average_counts_each_mixture_by_its_steps(tmp_path):
    run = make_run(tmp_path / "run", NAMES, method="multidds-s", updates=3, scored=False)
    write_mixture(run, [*read_lines(run, "mixture.jsonl"), {"step": 37, "eval_loss": dict.fromkeys(NAMES, 1.0)}])
    with (run / "mixture.jsonl").open("a") as file:
        file.write('{"step": 40, "mix')  # still being written
    average = average_mixture(run)
    drawn_with = [mixture_at(run, step - 1) for step in range(1, 38)]  # step 1 is drawn with the mixture after 0 steps
    for name in NAMES:
        assert average[name] == pytest.approx(sum(mixture[name] for mixture in drawn_with) / 37)
    assert sum(average.values()) == pytest.approx(1, abs=1e-12)


def test_records_with_the_newlines_of_windows_are_read(tmp_path):
    run = make_run(tmp_path / "run", NAMES, method="multidds-s", scored=False)
    before = average_mixture(run)
    path = run / "mixture.jsonl"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert average_mixture(run) == before


def test_a_static_run_has_one_mixture(tmp_path):
    run = make_run(tmp_path / "run", NAMES, scored=False)
    start = read_lines(run, "mixture.jsonl")[0]["mixture"]
    assert final_mixture(run) == mixture_at(run, 120) == start
    assert average_mixture(run) == pytest.approx(start)
    assert json.loads(history_json(run)) == [[0, start]]
    new = make_run(tmp_path / "new", NAMES, updates=0, scored=False)
    assert average_mixture(new) == final_mixture(new) == mixture_at(new, 0)


@pytest.mark.claim("Mixtures for other trainers", "the history of a real run replays to its final mixture")
def test_the_history_of_a_real_run_replays_to_its_final_mixture(corpus, monkeypatch, tmp_path):
    config = small_config(corpus, monkeypatch)
    train(config, tmp_path / "run", Silent())
    history = json.loads(history_json(tmp_path / "run"))
    assert [step for step, _ in history] == [0, 5, 10]
    mixture = Mixture.uniform(config.data.names)
    replay = Replay(mixture, history)
    for step in range(1, 13):
        replay.step()
        assert mixture.probabilities == mixture_at(tmp_path / "run", step)


@pytest.mark.claim("Mixtures for other trainers", "the code for any loop gives the same, and replays it")
def test_the_code_of_the_page_gives_the_same_and_replays_it(tmp_path):
    names = surroundings() | {"max_steps": 25}
    names["mixture"] = Mixture.proportional(names["sizes"])
    names["balancer"] = Balancer(names["mixture"], names["model"], names["loss"], train=names["probe_loaders"],
                                 dev=names["dev_loaders"], every=10)  # fmt: skip
    names["loaders"] = {name: DataLoader(d, batch_size=8) for name, d in names["datasets"].items()}
    out, way_in = blocks(ROOT / "docs" / "elsewhere.md", "python")
    exec(out, names)
    run = make_run(tmp_path / "run", tuple(names["sizes"]), updates=0, scored=False)
    lines = [{"step": step, "mixture": mixture} for step, mixture in names["history"]]
    write_mixture(run, [*lines, {"step": 25, "eval_loss": {"en": 1.0}}])
    average = average_mixture(run)
    assert [step for step, _ in names["history"]] == [0, 10, 20]
    assert names["average"] == pytest.approx(average)
    assert json.loads(names["for_replay"]) == json.loads(history_json(run))
    assert read_fairseq(names["for_fairseq"]) == pytest.approx(read_fairseq(written(average, "fairseq", None)))
    assert names["for_hf"]["probabilities"] == pytest.approx(list(average.values()))
    assert (
        names["for_megatron"].split()[1::2] == written(average, "megatron", "data/{name}_text_document").split()[1::2]
    )
    exec(way_in, names)
    assert names["mixture"].probabilities == names["final"] == final_mixture(run)


# ------------------------------------------------------------------------------------------ the command


def test_the_command_prints_the_mixture_only_and_needs_no_torch(tmp_path, capsys):
    run = make_run(tmp_path / "run", NAMES, method="multidds-s", scored=False)
    for arguments, expected in [
        ([], json.dumps(final_mixture(run))),
        (["--average"], json.dumps(average_mixture(run))),
        (["--at", "20", "--format", "megatron"], written(mixture_at(run, 20), "megatron", None)),
        (["--history"], history_json(run)),
    ]:
        run_command(["mixture", str(run), *arguments])
        assert capsys.readouterr().out == expected + "\n"
    code = (
        f"import sys; sys.argv = ['multidds', 'mixture', {str(run)!r}]; from multidds.__main__ import main\n"
        "try: main()\nexcept SystemExit: pass\nprint(sorted({'torch', 'pydantic', 'matplotlib'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.endswith("\n[]\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "nothing: is no history of a mixture: there is none of mixture.jsonl, trainer_state.json"),
        (["run", "--at", "121"], "--at 121: run has records of steps 0 to 120."),
        (["run", "--at", "-1"], "--at -1: run has records of steps 0 to 120."),
        (["run", "--format", "megatro"], "--format megatro: is unknown. Did you mean 'megatron'?"),
        (["run", "--format", "x"], "There are 'json', 'fairseq', 'hf', 'megatron', 'streaming', 'lhotse'."),
        (["run", "--data", "data"], "--data data: must contain {name}, which stands for the name of a dataset."),
        (["run", "--format", "megatron", "--data", "a b/{name}"], "Megatron splits its list of paths at spaces"),
        (["run", "--average", "--at", "3"], "--average, --at and --history: give one of them."),
        (["run", "--history", "--format", "hf"], "--history: is JSON, with the run's own names"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "run", NAMES, method="multidds-s", scored=False)
    assert message in mistake("mixture", *arguments)
