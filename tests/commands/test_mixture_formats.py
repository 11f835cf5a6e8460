"""The mixture of a run or a plan, printed for other tools and read back as they read it."""

import ast
import json
import shlex
import subprocess
import sys
from itertools import islice

import pytest
import yaml
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
from multidds.commands.mixture_formats import FORMATS, written
from multidds.commands.run_mixture import average_mixture, final_mixture, history_json, mixture_at
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


def read_trl(text):
    return {entry["path"]: entry["fraction"] for entry in yaml.safe_load(text)["datasets"]}


def read_llama_factory(text):
    """As `DataArguments` reads them: split at commas, then float."""
    read = yaml.safe_load(text)
    assert read["mix_strategy"] == "interleave_over"
    return dict(zip(read["dataset"].split(","), map(float, read["interleave_probs"].split(",")), strict=True))


def read_energon(text):
    read = yaml.safe_load(text)
    assert (read["__module__"], read["__class__"]) == ("megatron.energon", "MetadatasetV2")
    return {entry["path"]: entry["weight"] for entry in read["splits"]["train"]["blend"]}


def read_torchtitan(text):
    line, assigned = ast.parse(text).body
    assert ast.unparse(line) == "from torchtitan.components.data import DatasetMixConfig, WeightedDataset"
    assert assigned.value.func.id == "DatasetMixConfig"
    (datasets,) = assigned.value.keywords
    assert datasets.arg == "datasets"
    parts = [{keyword.arg: keyword.value for keyword in call.keywords} for call in datasets.value.elts]
    return {part["dataset"].slice.value: ast.literal_eval(part["weight"]) for part in parts}


class RayDataset:
    """What `Dataset.mix` of Ray Data takes."""

    def __init__(self, name):
        self.name = name

    def mix(self, *other, weights, stopping_condition):
        assert stopping_condition == "shortest"
        return dict(zip([self.name, *(one.name for one in other)], weights, strict=True))


class RayDatasets(dict):
    def __missing__(self, name):
        return RayDataset(name)


def read_ray(text):
    line, code = text.split("\n", 1)
    assert line == "from ray.data import MixStoppingCondition"
    condition = type("MixStoppingCondition", (), {"STOP_ON_SHORTEST": "shortest"})
    names = {"datasets": RayDatasets(), "MixStoppingCondition": condition}
    exec(code, names)
    return names["mixed"]


def read_ms_swift(text):
    """{name: examples}, split at the last '#' as `DatasetSyntax` does."""
    option, *words = shlex.split(text)
    assert option == "--dataset"
    return {name: int(count) for name, _, count in (word.rpartition("#") for word in words)}


def read_megatron_bridge(text):
    """{name: passes}."""
    line, sources, weights = ast.parse(text).body
    assert ast.unparse(line) == "from megatron.bridge.data.builders import HFDatasetSourceConfig"
    assert (sources.targets[0].id, weights.targets[0].id) == ("source", "source_weights")
    names = [keywords(call)["path_or_dataset"] for call in sources.value.elts]
    return dict(zip(names, ast.literal_eval(weights.value), strict=True))


READERS = {"json": read_json, "fairseq": read_fairseq, "hf": read_hf, "megatron": read_megatron, "trl": read_trl,
           "streaming": read_streaming, "lhotse": read_lhotse, "llama-factory": read_llama_factory,
           "energon": read_energon, "torchtitan": read_torchtitan, "ray": read_ray}  # fmt: skip
OF_EXAMPLES = {"ms-swift": read_ms_swift, "megatron-bridge": read_megatron_bridge}  # numbers of examples or passes


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
@pytest.mark.parametrize("format_", sorted((FORMATS.keys() | READERS.keys()) - OF_EXAMPLES.keys()))
@given(mixture=mixtures())
def test_any_mixture_survives_every_format(format_, mixture):
    found = READERS[format_](written(mixture, format_))
    kept = mixture if format_ in ("json", "fairseq") else {name: p for name, p in mixture.items() if p > 0}
    assert list(found) == list(kept)
    assert all(found[name] == p or (format_ == "lhotse" and len(kept) == 1) for name, p in kept.items())
    assert all(p > 0 for name, p in found.items() if mixture[name] > 0)
    assert sum(found.values()) == pytest.approx(1, abs=1e-9)
    Mixture(found)


@given(mixture=mixtures(), draws=st.floats(1, 1e9))
def test_counts_and_passes_make_the_draws_of_the_plan(mixture, draws):
    sizes = {name: 3.0 + place for place, name in enumerate(mixture)}
    counts = read_ms_swift(written(mixture, "ms-swift", None, sizes, draws))
    passes = read_megatron_bridge(written(mixture, "megatron-bridge", None, sizes, draws))
    kept = [name for name, p in mixture.items() if p > 0]
    assert list(counts) == list(passes) == kept
    assert all(counts[name] == max(1, round(mixture[name] * draws)) for name in kept)
    assert sum(passes[name] * sizes[name] for name in kept) == pytest.approx(draws)


# The documented example of each tool, with the place where it stands, and what makes the same of it.
DOCUMENTED = {
    # facebookresearch/fairseq fairseq/data/multilingual/multilingual_data_manager.py, help of --sampling-weights
    "fairseq": ({"main:en_XX-es_XX": 0.2, "main:en_xx-fr_XX": 0.8}, "main:{name}", {}, read_fairseq,
                '{ "main:en_XX-es_XX": 0.2, "main:en_xx-fr_XX": 0.8 }'),
    # huggingface/datasets docs/source/process.mdx: interleave_datasets([d1, d2, d3], probabilities=probabilities)
    "hf": ({"d1": 0.3, "d2": 0.5, "d3": 0.2}, None, {}, read_hf,
           'names = ["d1", "d2", "d3"]\nprobabilities = [0.3, 0.5, 0.2]'),
    # huggingface/trl trl/scripts/utils.py, usage of DatasetMixtureConfig; tests/test_utils.py has these fractions
    "trl": ({"trl-lib/a": 0.75, "trl-lib/b": 0.25}, "trl-lib/{name}", {}, yaml.safe_load,
            "datasets:\n  - path: trl-lib/a\n    fraction: 0.75\n  - path: trl-lib/b\n    fraction: 0.25"),
    # hiyouga/LLaMA-Factory src/llamafactory/hparams/data_args.py: names and probabilities are separated by commas
    "llama-factory": ({"identity": 0.25, "alpaca_en_demo": 0.75}, None, {}, yaml.safe_load,
                      "dataset: identity,alpaca_en_demo\nmix_strategy: interleave_over\n"
                      "interleave_probs: 0.25,0.75"),
    # modelscope/ms-swift README.md, "swift sft"
    "ms-swift": ({"AI-ModelScope/alpaca-gpt4-data-zh": 0.4, "swift/self-cognition": 0.6}, None,
                 {"draws": 1250}, shlex.split,
                 "--dataset 'AI-ModelScope/alpaca-gpt4-data-zh#500' 'swift/self-cognition#750'"),
    # NVIDIA/Megatron-LM megatron/core/datasets/utils.py, get_blend_from_list
    "megatron": ({"path/to/dataset_1_prefix": 0.3, "path/to/dataset_2_prefix": 0.7}, "path/to/{name}", {}, str.split,
                 "0.3 path/to/dataset_1_prefix 0.7 path/to/dataset_2_prefix"),
    # NVIDIA-NeMo/Megatron-Bridge docs/training/data-preparation.md; path_or_dataset is for datasets without a preset
    "megatron-bridge": ({"squad": 0.25, "gsm8k": 0.75}, None,
                        {"draws": 400, "sizes": {"squad": 100, "gsm8k": 150}}, read_megatron_bridge,
                        "from megatron.bridge.data.builders import HFDatasetSourceConfig\n"
                        'source=[HFDatasetSourceConfig(path_or_dataset="squad"),\n'
                        '        HFDatasetSourceConfig(path_or_dataset="gsm8k")]\nsource_weights=[1.0, 2.0]'),
    # NVIDIA/Megatron-Energon docs/source/basic/metadataset.md
    "energon": ({"coco": 0.625, "coyo": 0.25, "other": 0.125}, "./{name}", {}, read_energon,
                "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
                "      - weight: 0.625\n        path: ./coco\n      - weight: 0.25\n        path: ./coyo\n"
                "      - weight: 0.125\n        path: ./other\n  val:\n    path: ./coco"),
    # pytorch/torchtitan torchtitan/components/data/README.md
    "torchtitan": ({"books": 0.6, "code": 0.2, "math": 0.2}, None, {}, read_torchtitan,
                   "from torchtitan.components.data import DatasetMixConfig, WeightedDataset\n"
                   "pretraining_mix_ds = DatasetMixConfig(\n    datasets=(\n"
                   '        WeightedDataset(dataset=datasets["books"], weight=0.6),\n'
                   '        WeightedDataset(dataset=datasets["code"], weight=0.2),\n'
                   '        WeightedDataset(dataset=datasets["math"], weight=0.2),\n    ),\n)'),
    # mosaicml/streaming README.md, with `local` for `remote` as in docs/source/dataset_configuration
    "streaming": ({"c4": 0.4, "github": 0.1, "my_internal": 0.5}, "/datasets/{name}", {}, ast.unparse,
                  "from streaming import Stream\nstreams = [\n  Stream(local='/datasets/c4', proportion=0.4),\n"
                  "  Stream(local='/datasets/github', proportion=0.1),\n"
                  "  Stream(local='/datasets/my_internal', proportion=0.5),\n]"),
    # lhotse-speech/lhotse examples/03-combining-datasets.ipynb: CutSet.mux(cuts, cuts, weights=[..., ...])
    "lhotse": ({"libri": 0.9, "yesno": 0.1}, None, {}, read_lhotse,
               'from lhotse import CutSet\ncuts_train = CutSet.mux(\n'
               '    CutSet.from_file("libri.jsonl.gz").repeat(),\n    CutSet.from_file("yesno.jsonl.gz").repeat(),\n'
               "    weights=[0.9, 0.1],\n)"),
    # ray-project/ray doc/source/data/mixing-data.rst: ds1.mix(ds2, weights=[0.75, 0.25])
    "ray": ({"ds1": 0.75, "ds2": 0.25}, None, {}, read_ray,
            "from ray.data import MixStoppingCondition\n"
            'mixed = datasets["ds1"].mix(datasets["ds2"], weights=[0.75, 0.25],\n'
            "    stopping_condition=MixStoppingCondition.STOP_ON_SHORTEST)"),
}  # fmt: skip


@pytest.mark.claim("Mixtures for other trainers", "every format is the documented example of its tool, with its source")
@pytest.mark.parametrize("tool", sorted(FORMATS.keys() - {"json"}))
def test_a_format_is_the_documented_example_of_its_tool(tool):
    filled, template, more, read, documented = DOCUMENTED[tool]
    prefix = (template or "{name}").removesuffix("{name}")
    text = written({name.removeprefix(prefix): p for name, p in filled.items()}, tool, template, **more)
    parse = ast.parse if read is ast.unparse else lambda same: same
    assert read(parse(text)) == read(parse(documented))


def test_a_tool_that_cuts_datasets_is_told_what_is_lost(tmp_path):
    """As `get_dataset` of TRL cuts them; with the real one, where it is installed and knows fractions."""
    sizes, shares = {"web": 1200, "topics": 15}, {"web": 0.625, "topics": 0.375}
    text = written(shares, "trl", f"{tmp_path}/{{name}}", sizes, 640)
    assert text.startswith("# Cut, never repeated: 40 of 1,215 examples. Lost: ")
    assert "web 1,175." in text.partition("\n")[0]
    assert "topics" not in text.partition("\n")[0].replace(str(tmp_path), "")
    assert "16 epochs make 640 draws." in text
    assert "smallest for its share" in written(shares, "ray")
    utils = pytest.importorskip("trl.scripts.utils")
    for name, size in sizes.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.jsonl").write_text(f'{{"text": "{name}"}}\n' * size)
    mixed = utils.get_dataset(utils.DatasetMixtureConfig(**yaml.safe_load(text)))["train"]["text"][:]
    assert {name: mixed.count(name) for name in sizes} == {"web": 25, "topics": 15}


@pytest.mark.claim("Mixtures for other trainers", "`interleave_datasets` accepts the names and probabilities")
def test_interleave_datasets_takes_the_names_and_probabilities(tmp_path):
    datasets = pytest.importorskip("datasets")
    run = make_run(tmp_path / "run", NAMES, method="multidds-s", scored=False)
    mixture = final_mixture(run)
    given = {}
    exec(written(mixture, "hf"), given)
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


@pytest.mark.parametrize("format_", ["json", "fairseq", "hf", "streaming", "lhotse", "torchtitan", "ray"])
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
    assert read_fairseq(names["for_fairseq"]) == pytest.approx(read_fairseq(written(average, "fairseq")))
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
        (["--at", "20", "--for", "megatron"], written(mixture_at(run, 20), "megatron")),
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


def test_sizes_and_length_complete_a_learned_mixture(tmp_path, capsys):
    run = make_run(tmp_path / "run", NAMES, method="multidds-s", scored=False)
    sizes = dict.fromkeys(NAMES, 50.0)
    words = [f"{name}=50" for name in NAMES]
    run_command(["mixture", str(run), *words, "--steps", "10", "--batch", "8", "--for", "megatron-bridge"])
    expected = written(final_mixture(run), "megatron-bridge", None, sizes, 80)
    assert capsys.readouterr().out == expected + "\n"


def test_a_plan_is_printed_for_a_tool(capsys):
    sizes = {"a": 12_000, "b": 150}
    words = ["plan", "a=12000", "b=150", "--steps", "200", "--batch", "32", "--goal", "b"]
    run_command([*words, "--for", "trl", "--data", "org/{name}"])
    table = Mixture.table(sizes, 6400, {"b": 1})
    assert capsys.readouterr().out == written(table.shares["planned"], "trl", "org/{name}", sizes, 6400) + "\n"
    assert "Give --for" in mistake(*words, "--data", "{name}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "nothing: is no history of a mixture: there is none of mixture.jsonl, trainer_state.json"),
        (["run", "--at", "121"], "--at 121: run has records of steps 0 to 120."),
        (["run", "--at", "-1"], "--at -1: run has records of steps 0 to 120."),
        (["run", "--for", "megatro"], "--for megatro: is unknown. Did you mean 'megatron'?"),
        (["run", "--for", "x"], "There are json, fairseq, hf, trl, "),
        (["run", "--format", "hf"], "--format was removed. Use --for hf."),
        (["run", "--data", "data"], "--data data: must contain {name}, which stands for the name of a dataset."),
        (["run", "--for", "megatron", "--data", "a b/{name}"], "megatron splits names at ' '"),
        (["run", "--for", "llama-factory", "--data", "a,{name}"], "llama-factory splits names at ','"),
        (["run", "--for", "ms-swift"], "--for ms-swift: writes numbers of examples. Give --steps and --batch."),
        (["run", "--for", "megatron-bridge", "--steps", "1", "--batch", "1"], "Give sizes, --steps and --batch."),
        (["run", "--for", "trl", "x=5"], "are missing; there are 'x'"),
        (["run", "--for", "trl", "--steps", "5"], "--steps and --batch: both are needed"),
        (["run", "--average", "--at", "3"], "--average, --at and --history: give one of them."),
        (["run", "--history", "--for", "hf"], "--history: is JSON, with the run's own names"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "run", NAMES, method="multidds-s", scored=False)
    assert message in mistake("mixture", *arguments)
