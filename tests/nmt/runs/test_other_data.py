"""Runs that go on with other data (`--changed-data`), and the vocabulary kept for them "
"(`[vocabulary] keep`)."""

import json
import shutil
import subprocess

import made_up_languages
import numpy as np
import pytest
import torch
from conftest import ROOT, multidds
from made_runs import read_lines
from toy_runs import SMALL, Silent, records, same_runs, torchrun

from multidds.nmt.commands.export_mixture import average_mixture, final_mixture, history_json
from multidds.nmt.commands.verify import verify
from multidds.nmt.common.errors import DamagedError, UserError
from multidds.nmt.config.config import load_config, read_run
from multidds.nmt.evaluation.evaluate import evaluate
from multidds.nmt.prepare import Prepared, prepare
from multidds.nmt.prepare.vocabulary import load_vocabulary, model_digests
from multidds.nmt.report import report
from multidds.nmt.runs import checkpoints
from multidds.nmt.training.length import in_parts, within_budget
from multidds.nmt.training.train import Training, train

HINT = "Where the data were changed on purpose, --changed-data goes on with them."
OLD, GROWN = "mirror-base shift-base", "shift-base loud-base"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """The made-up languages, shorter, and one of capital letters, which no vocabulary of theirs has."""
    folder = tmp_path_factory.mktemp("text")
    made_up = folder / "data" / "made-up"
    made_up_languages.write(made_up)
    for path in made_up.glob("*/*"):
        lines = path.read_text().splitlines()[: 300 if "train" in path.name else 20]
        path.write_text("".join(line + "\n" for line in lines))
    shutil.copytree(made_up / "shift-base", made_up / "loud-base")
    for path in (made_up / "loud-base").glob("*.shift"):
        path.with_suffix(".loud").write_text(path.with_suffix(".base").read_text().upper())
        path.unlink()
    return folder


@pytest.fixture(autouse=True)
def here(text, monkeypatch):
    monkeypatch.chdir(text)


def recipe(pairs, folder, *overrides, keep=""):
    """A prepared recipe of these language pairs, with the vocabulary of another."""
    listed = ", ".join(f'"{pair}"' for pair in pairs.split())
    sets = [f"data.pairs=[{listed}]", f"data.folder=data/{folder}", f"vocabulary.keep={keep}", "vocabulary.size=60"]
    config = load_config(ROOT / "recipes" / "tiny.toml", [*SMALL, *sets, *overrides])
    prepare(config, processes=1)
    return config


def old(*overrides):
    return recipe(OLD, "old", *overrides)


def new(*overrides, pairs=GROWN):
    return recipe(pairs, pairs.replace(" ", "+"), *overrides, keep="data/old")


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---------------------------------------------------------------------------------------------- the vocabulary


@pytest.mark.claim(
    "Changed data in the translation application",
    "a kept vocabulary stays where it is and grows at its end; old text has the same tokens",
)
def test_a_kept_vocabulary_stays_as_it_is_and_grows_at_its_end():
    first, second = Prepared(old()), Prepared(new())
    before, after = load_vocabulary(first.folder), load_vocabulary(second.folder)
    assert after["source"][: len(before["source"])] == before["source"]
    assert after["target"] == before["target"]  # base has its model already
    added = after["source"][len(before["source"]) :]
    assert added
    assert not set(added) & set(before["source"])
    assert {piece for piece in added if piece.strip("▁").isupper()}
    assert model_digests(first.folder).items() < model_digests(second.folder).items()  # mirror's too, for later
    for side in ("source", "target"):
        for one, other in zip(
            first.arrays("shift-base", "train", side), second.arrays("shift-base", "train", side), strict=True
        ):
            assert np.array_equal(one, other)


@pytest.mark.claim(
    "Changed data in the translation application",
    "what was kept and grown is not made again, also when the folder keeps its own",
)
def test_what_was_kept_and_grown_is_not_made_again():
    config = new()
    assert not prepare(config, processes=1)
    made = contents(config.data.folder)
    itself = load_config(ROOT / "recipes" / "tiny.toml", [
        *SMALL, 'data.pairs=["shift-base", "loud-base"]', "data.folder=data/itself", "vocabulary.keep=data/itself",
        "vocabulary.size=60",
    ])  # fmt: skip
    shutil.copytree("data/old", "data/itself")
    assert prepare(itself, processes=1)  # the folder whose vocabulary is kept is replaced by what is made of it
    assert not prepare(itself, processes=1)
    assert load_vocabulary(itself.data.folder) == load_vocabulary(config.data.folder)
    shutil.move("data/old", "data/away")
    try:
        assert not prepare(config, processes=1)
        with pytest.raises(
            UserError, match="keep = 'data/old': there is no vocabulary.json; give a folder of prepared"
        ):
            prepare(load_config(ROOT / "recipes" / "tiny.toml", ["vocabulary.keep=data/old", "data.folder=data/x"]))
    finally:
        shutil.move("data/away", "data/old")
    assert contents(config.data.folder) == made


def test_another_vocabulary_to_keep_is_other_data():
    config = new()
    with pytest.raises(UserError, match=r"was prepared with other settings \(vocabulary.keep\)"):
        Prepared(config.model_copy(update={"vocabulary": config.vocabulary.model_copy(update={"keep": ""})}))
    plain = old()
    assert "keep" not in Prepared(plain).manifest["settings"]["vocabulary"]  # as of versions that did not have the key
    with pytest.raises(UserError, match=r"was prepared with other settings \(vocabulary.keep\)"):
        Prepared(plain.model_copy(update={"vocabulary": plain.vocabulary.model_copy(update={"keep": "data/x"})}))


def test_one_model_for_all_languages_encodes_a_new_one_too():
    joint = ("vocabulary.kind=joint", "vocabulary.size=70")
    recipe(OLD, "joint", *joint)
    after = recipe(GROWN, "joint-grown", *joint, keep="data/joint")
    assert load_vocabulary(after.data.folder) == load_vocabulary(after.data.folder.with_name("joint"))
    assert Prepared(after).sizes == {"shift-base": 300, "loud-base": 300}
    with pytest.raises(UserError, match="has one model for all languages, but .* kind = 'per-language'"):
        recipe(GROWN, "wrong", keep="data/joint")
    with pytest.raises(UserError, match="has a model per language, but .* kind = 'joint'"):
        recipe(GROWN, "wrong", *joint, keep="data/old")


def test_a_damaged_model_is_not_kept(tmp_path):
    old()
    shutil.copytree("data/old", tmp_path / "copy")
    (tmp_path / "copy" / "shift.spm.model").write_bytes(b"x")
    with pytest.raises(DamagedError, match="shift.spm.model: is damaged .* restore it from a copy"):
        recipe(GROWN, "damaged", keep=tmp_path / "copy")


# ---------------------------------------------------------------------------------------------- the training


METHODS = [
    "anchored train.average=5", "multidds-s mixture.priority=low", "moving-average", "static",
    "static mixture.schedule=proportional-to-uniform",
]  # fmt: skip


@pytest.mark.claim(
    "Changed data in the translation application",
    "a run goes on: model, optimizer, mixture, draws; new rows fresh, with empty moments; every method, both ways of mixing; killed before its next checkpoint",
)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mixing", ["example", "batch"])
def test_a_run_goes_on_with_other_data(method, mixing, tmp_path):
    settings = [*f"mixture.method={method}".split(), f"train.mixing={mixing}", "mixture.prior=proportional"]
    run = tmp_path / "run"
    train(old(*settings, "train.max_steps=9"), run, Silent())
    tensors, state = checkpoints.read(checkpoints.listed(run)[-1])
    shares = state["mixture"]["probabilities"]
    config, before = new(*settings, "train.max_steps=20"), contents(run)
    with pytest.raises(UserError, match=f"other settings: data.folder, data.pairs, vocabulary.keep. .* {HINT}"):
        train(config, run, Silent())
    assert contents(run) == before

    changed = Training(config, run, changed_data=True)
    changed.close()
    embedding = changed.model.source_embedding.weight
    known = tensors["model.source_embedding.weight"]
    assert torch.equal(embedding[: len(known)], known)
    assert (embedding[len(known) :] != 0).all()
    assert torch.equal(changed.model.target_embedding.weight, tensors["model.target_embedding.weight"])
    moments = changed.optimizer.state[embedding]["exp_avg_sq"]
    assert torch.equal(moments[: len(known)], tensors["optimizer.exp_avg_sq.source_embedding.weight"])
    assert (moments[len(known) :] == 0).all()
    assert changed.optimizer.state[embedding]["step"] == 9
    assert changed.mixture["loud-base"] == pytest.approx(0.5)  # as large as the one that is still there
    at = changed.progress
    assert (at.step, at.best, at.waited, at.epoch) == (9, None, 0, at.sentences // 600)
    assert changed.stream.state_dict()["steps"] == 0  # the pool under way was of other sentences
    assert state["stream"]["steps"] > 0 or "schedule" in method
    if "schedule" not in method:
        drawn = changed.stream.state_dict()["before"]["examples"]
        assert drawn["shift-base"] > 0
        assert drawn["loud-base"] == 0

    show = Silent()  # the checkpoint is still that of the old data, as after a kill: no flag is needed any more
    train(config, run, show)
    assert "the data have changed  added: loud-base  left out: mirror-base" in show.lines
    lines = records(run)
    (change,) = [line for line in lines if line["kind"] == "data"]
    assert change["step"] == 9
    assert change["mixture"].keys() == {"shift-base", "loud-base"}
    at_once = lines[lines.index(change) + 1]
    assert (at_once["kind"], at_once["step"], at_once["best"]) == ("validation", 9, True)
    assert at_once["dev_loss"].keys() == {"shift-base", "loud-base"}
    assert {line["step"] for line in lines if line["kind"] == "update"} == (
        set() if "static" in method else {5, 10, 15, 20}
    )
    assert lines[-1]["finished"] == "20 steps"
    assert shares.keys() == {"mirror-base", "shift-base"}
    facts = read_run(run)
    assert facts[0] == config
    assert facts[1]["data"] == Prepared(config).fingerprint
    assert facts[1]["earlier"] == [Prepared(old(*settings)).fingerprint]


@pytest.mark.claim(
    "Changed data in the translation application", "a dataset that is left out; changed text of the same pairs"
)
def test_a_dataset_that_is_left_out_leaves_the_shares_of_the_others_alike(tmp_path):
    pairs = "mirror-base shift-base loud-base"
    three = recipe(pairs, "three", "mixture.method=multidds-s", "mixture.scorer.lr=5")
    train(three, tmp_path / "run", Silent())
    learned = final_mixture(tmp_path / "run")
    two = recipe(
        OLD, "two", "mixture.method=multidds-s", "mixture.scorer.lr=5", "train.max_steps=14", keep="data/three"
    )
    run = Training(two, tmp_path / "run", changed_data=True)
    run.close()
    assert learned["mirror-base"] / learned["shift-base"] != pytest.approx(1, abs=0.01)
    assert run.mixture["mirror-base"] / run.mixture["shift-base"] == pytest.approx(
        learned["mirror-base"] / learned["shift-base"]
    )
    assert run.model.source_embedding.weight.shape[0] == len(Prepared(three).vocabulary["source"])


@pytest.mark.claim(
    "Changed data in the translation application", "a dataset that is left out; changed text of the same pairs"
)
def test_changed_text_of_the_same_pairs_goes_on(text, tmp_path):
    shutil.copytree("data/made-up", tmp_path / "made-up")
    places = [f"data.{split}={tmp_path}/made-up/{{many}}-base/{split}.{{lang}}" for split in ("train", "dev", "test")]
    train(recipe(OLD, "places", *places), tmp_path / "run", Silent())
    for path in (tmp_path / "made-up" / "shift-base").glob("train.*"):
        path.write_text("".join(line + "\n" for line in path.read_text().splitlines()[:-40]))
    shutil.copytree("data/places", "data/places-before")
    longer = recipe(OLD, "places", *places, "train.max_steps=20", keep=tmp_path / "run")
    with pytest.raises(UserError, match=f"other settings: vocabulary.keep. .* {HINT}"):
        train(longer, tmp_path / "run", Silent())
    train(longer, tmp_path / "run", Silent(), changed_data=True)
    assert [line["left_out"] + line["added"] for line in read_lines(tmp_path / "run") if line["kind"] == "data"] == [[]]
    assert read_run(tmp_path / "run")[1]["pairs"]["shift-base"]["train"]["pairs"] == 260
    # The same recipe, prepared where the text is otherwise: only the data differ.
    for path in (tmp_path / "made-up" / "shift-base").glob("train.*"):
        path.write_text("".join(line + "\n" for line in path.read_text().splitlines()[:-40]))
    again = recipe(OLD, "places", *places, "train.max_steps=24", keep=tmp_path / "run")
    with pytest.raises(UserError, match=f"was started on other data than is in data/places now; .* {HINT}"):
        train(again, tmp_path / "run", Silent())
    train(again, tmp_path / "run", Silent(), changed_data=True)
    assert len(read_run(tmp_path / "run")[1]["earlier"]) == 2


@pytest.mark.claim(
    "Changed data in the translation application", "`verify`, `evaluate`, `report` and `mixture` afterwards"
)
def test_after_a_change_everything_else_works(tmp_path):
    run = tmp_path / "run"
    train(old(), run, Silent())
    evaluate(run)
    config = new("train.max_steps=20")
    train(config, run, Silent(), changed_data=True)
    assert not any(one.damage for one in verify(run))
    scores = evaluate(run)
    assert scores["pairs"].keys() == {"shift-base", "loud-base"}
    report([run], tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text()
    assert "loud-base" in page
    assert "mirror-base" in page  # the course of the mixture has all
    assert final_mixture(run).keys() == {"shift-base", "loud-base"}
    assert average_mixture(run).keys() == {"mirror-base", "shift-base", "loud-base"}
    history = json.loads(history_json(run))
    assert {tuple(mixture) for _, mixture in history} == {("mirror-base", "shift-base", "loud-base")}
    assert all(sum(mixture.values()) == pytest.approx(1) for _, mixture in history)


@pytest.mark.claim(
    "Changed data in the translation application",
    "afterwards it resumes exactly; with nothing changed, the flag changes nothing",
)
def test_a_changed_run_that_is_cut_off_ends_as_one_that_is_not(tmp_path):
    settings = ["mixture.method=moving-average", "mixture.priority=low", "train.average=4"]
    train(old(*settings, "train.max_steps=9"), tmp_path / "one", Silent())
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    train(new(*settings, "train.max_steps=20"), tmp_path / "one", Silent(), changed_data=True)
    train(new(*settings, "train.max_steps=14"), tmp_path / "two", Silent(), changed_data=True)
    run = Training(new(*settings, "train.max_steps=20"), tmp_path / "two")
    assert run.changed is None  # from its checkpoint on, it is a run like any other
    run.close()
    train(new(*settings, "train.max_steps=20"), tmp_path / "two", Silent())
    found = [records(tmp_path / name) for name in ("one", "two")]
    found[1] = [line for line in found[1] if not (line["kind"] == "validation" and line["finished"] == "14 steps")]
    for lines in found:
        for line in lines:
            line.pop("best", None)
    assert found[0] == found[1]
    one, two = (checkpoints.read(checkpoints.listed(tmp_path / name)[-1])[0] for name in ("one", "two"))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.claim("Changed data in the translation application", "two processes go on as one does")
def test_two_processes_go_on_as_one_does(tmp_path):
    plain = ("model.dropout=0", "train.mixing=example", "mixture.method=multidds-s", "train.max_steps=9")
    train(old(*plain), tmp_path / "one", Silent())
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    config = new(*plain[:-1], "train.max_steps=16")
    train(config, tmp_path / "one", Silent(), changed_data=True)
    sets = (*plain[:-1], "train.max_steps=16", "data.folder=data/shift-base+loud-base", "vocabulary.keep=data/old")
    command, environment = torchrun(
        tmp_path / "two", *sets, "vocabulary.size=60", 'data.pairs=["shift-base", "loud-base"]'
    )
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert f"multidds: {tmp_path}/two: was started with other settings" in done.stderr
    assert HINT in done.stderr
    done = subprocess.run([*command, "--changed-data"], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    one, two = ([line for line in records(tmp_path / name) if line["kind"] != "step"] for name in ("one", "two"))
    assert [(line["kind"], line["step"]) for line in one] == [(line["kind"], line["step"]) for line in two]
    for a, b in zip(one, two, strict=True):
        assert a["mixture"] == pytest.approx(b["mixture"], abs=1e-4)
        assert a.get("passes") == b.get("passes")
    done = subprocess.run(
        [*command, "--set", "train.max_steps=18"], env=environment, capture_output=True, text=True, timeout=300
    )
    assert "Finished after 18 steps" in done.stdout


@pytest.mark.claim(
    "Changed data in the translation application",
    "afterwards it resumes exactly; with nothing changed, the flag changes nothing",
)
def test_the_flag_changes_nothing_where_nothing_has_changed(tmp_path):
    config = old("train.max_steps=9")
    train(config, tmp_path / "one", Silent())
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    longer = old("train.max_steps=15")
    train(longer, tmp_path / "one", Silent())
    train(longer, tmp_path / "two", Silent(), changed_data=True)
    same_runs(tmp_path / "one", tmp_path / "two")
    assert "earlier" not in read_run(tmp_path / "two")[1]


def test_a_checkpoint_that_does_not_name_its_data_is_of_the_first(tmp_path):
    run = tmp_path / "run"
    train(old("train.max_steps=8"), run, Silent())
    for path in checkpoints.listed(run):
        tensors, state = checkpoints.read(path)
        del state["data"]  # as before there was a choice
        checkpoints.write(path, tensors, state)
    longer = Training(old("train.max_steps=12"), run)
    assert longer.changed is None
    longer.close()
    for flag in (True, False):
        changed = Training(new("train.max_steps=12"), run, changed_data=flag)
        assert changed.changed is not None
        changed.close()


@pytest.mark.claim(
    "Changed data in the translation application", "weights of sentence pairs are carried by name and size"
)
def test_weights_of_sentence_pairs_are_kept_where_their_data_are(tmp_path):
    dds = (
        "examples.method=dds",
        "examples.every=2",
        "examples.learn=0.9",
        "examples.replay=2",
        "examples.probe_tokens=100",
    )
    run = tmp_path / "run"
    train(old(*dds), run, Silent())
    tensors = checkpoints.read(checkpoints.listed(run)[-1])[0]
    config = new(*dds, "train.max_steps=20")
    changed = Training(config, run, changed_data=True)
    changed.close()
    kept = changed.examples.state_dict()["tensors"]
    assert torch.equal(kept["weights.shift-base"], tensors["examples.weights.shift-base"])
    assert (kept["weights.shift-base"] >= 0).any()
    assert (kept["weights.loud-base"] == -1).all()
    assert "weights.mirror-base" not in kept
    learned = [key for key in tensors if ".network." in key]
    assert learned
    assert all(torch.equal(kept[key.removeprefix("examples.")], tensors[key]) for key in learned)
    wanted, known = kept["scorer.0.direction.0"], tensors["examples.scorer.0.direction.0"]  # of the source embedding
    assert torch.equal(wanted[: len(known)], known)
    assert wanted.shape == changed.model.source_embedding.weight.shape
    assert (wanted[len(known) :] == 0).all()
    train(config, run, Silent())
    assert read_lines(run)[-1]["kind"] == "examples"
    fewer = recipe(GROWN, "fewer", *dds, "train.max_steps=24", "data.max_length=20", keep="data/old")
    changed = Training(fewer, run, changed_data=True)
    changed.close()
    again = changed.examples.state_dict()["tensors"]["weights.shift-base"]
    assert len(again) == Prepared(fewer).sizes["shift-base"] < 300
    assert (again == -1).all()


def test_a_new_target_language_goes_on_with_what_is_known_of_pairs(tmp_path):
    """A tag among the sources, and longer embeddings of targets."""
    dds = (
        "examples.method=dds",
        "examples.every=2",
        "examples.learn=0.9",
        "examples.replay=2",
        "examples.probe_tokens=100",
    )
    places = [f"data.{split}=data/made-up/{{many}}-base/{split}.{{lang}}" for split in ("train", "dev", "test")]
    before = recipe("base-mirror base-shift", "o2m", *dds, *places)
    train(before, tmp_path / "run", Silent())
    tensors = checkpoints.read(checkpoints.listed(tmp_path / "run")[-1])[0]
    after = recipe(
        "base-mirror base-shift base-loud", "o2m-grown", *dds, *places, "train.max_steps=20", keep="data/o2m"
    )
    run = Training(after, tmp_path / "run", changed_data=True)
    run.close()
    vocabulary = Prepared(after).vocabulary
    assert "<2loud>" in vocabulary["source"]
    found, grown = run.examples.state_dict()["tensors"], 0
    for key, known in ((k.removeprefix("examples."), t) for k, t in tensors.items() if ".direction." in k and t.ndim):
        assert torch.equal(found[key][: len(known)], known)
        grown += found[key].shape != known.shape
        assert (found[key][len(known) :] == 0).all()
    assert grown >= 2
    train(after, tmp_path / "run", Silent())
    assert read_lines(tmp_path / "run")[-1]["step"] == 20


# ---------------------------------------------------------------------------------------------- what is refused


def refused(config, run, message, **options):
    before = contents(run)
    with pytest.raises(UserError, match=message):
        train(config, run, Silent(), **{"changed_data": True, **options})
    assert contents(run) == before


@pytest.mark.claim(
    "Changed data in the translation application", "what cannot go on is refused, and nothing is touched"
)
def test_what_cannot_go_on_is_refused_and_nothing_is_lost(tmp_path):
    run = tmp_path / "run"
    train(old(), run, Silent())
    more = "train.max_steps=20"
    refused(
        new(), run, "is finished after 12 steps, also with the changed data; raise train.max_steps or train.max_epochs"
    )
    refused(new(more, pairs="loud-base"), run, "none of its language pairs is still there; begin a new run")
    places = [f"data.{split}=data/made-up/shift-base/{split}.{{lang}}" for split in ("train", "dev", "test")]
    both = recipe("shift-base base-shift", "tagged", more, *places, keep="data/old")
    refused(both, run, "trained for one target language, but they have several target languages. Only with several")
    other = recipe(GROWN, "learned-anew", more)
    refused(other, run, rf"another vocabulary than its own. Set \[vocabulary\] keep = '{run}' in the recipe, and run")
    refused(new(more, "mixture.every=7"), run, "other settings: mixture.every. Choose another --run")
    refused(new(more, "mixture.priority=low"), run, "other settings: mixture.priority. Choose another --run")
    refused(new(more, "train.lr=0.1"), run, "train.max_epochs may grow.$", changed_data=False)
    train(old(more), run, Silent())  # as if nobody had tried


def test_numbers_by_pair_change_with_the_pairs(tmp_path):
    explicit = ("mixture.prior=explicit", "mixture.method=multidds-s")
    shares = "mixture.probabilities={%s}"
    before = old(*explicit, shares % "mirror-base = 0.5, shift-base = 0.5", "mixture.priority={mirror-base = 1.0}")
    train(before, tmp_path / "run", Silent())
    after = new(
        *explicit, shares % "shift-base = 0.7, loud-base = 0.3", "mixture.priority={loud-base = 1.0}",
        "train.max_steps=20",
    )  # fmt: skip
    run = Training(after, tmp_path / "run", changed_data=True)
    run.close()
    assert run.mixture.probabilities == pytest.approx({"shift-base": 0.7, "loud-base": 0.3})
    assert run.balancer.priority == {"loud-base": 1.0}


def test_a_model_of_an_earlier_vocabulary_is_not_exported_with_the_new_one(tmp_path):
    run = tmp_path / "run"
    train(old(), run, Silent())
    Training(new("train.max_steps=20"), run, changed_data=True).close()  # killed before its first validation
    with pytest.raises(UserError, match="its data have changed since its best model; go on with the training first"):
        evaluate(run)
    train(new("train.max_steps=20"), run, Silent())
    assert evaluate(run)["pairs"].keys() == {"shift-base", "loud-base"}


def test_more_pairs_than_before_stay_within_the_budget():
    def made(count, **settings):
        table = [*SMALL, "data.pairs=[" + ", ".join(f'"l{i}-base"' for i in range(count)) + "]"]
        table += [
            "mixture.method=anchored",
            "mixture.probe_budget=0.1",
            "mixture.probe_tokens=4000",
            "train.tokens=9600",
        ]
        return load_config(ROOT / "recipes" / "tiny.toml", [*table, *(f"mixture.{k}={v}" for k, v in settings.items())])

    first = within_budget(made(18), 20_000)
    assert not in_parts(first)
    assert within_budget(made(18), 20_000, first) == first
    more = within_budget(made(20), 20_000, first)
    assert not in_parts(more)
    assert more.mixture.every > first.mixture.every
    assert more.mixture.probe_tokens == first.mixture.probe_tokens
    assert within_budget(made(20), 20_000, more) == more


def test_the_command_says_what_it_does(tmp_path):
    old()
    new()
    sets = [part for override in (*SMALL, "vocabulary.size=60") for part in ("--set", override)]
    first = ["--set", "data.folder=data/old"]
    after = ["--set", "data.folder=data/shift-base+loud-base", "--set", "vocabulary.keep=data/old"]
    after += ["--set", 'data.pairs=["shift-base", "loud-base"]', "--set", "train.max_steps=16"]
    command = ["train", ROOT / "recipes" / "tiny.toml", "--run", tmp_path / "run", *sets]
    multidds(*command, *first, cwd=".")
    done = multidds(*command, *after, cwd=".", check=False)
    assert done.returncode == 2
    assert HINT in " ".join(done.stderr.split())
    done = multidds(*command, *after, "--changed-data", cwd=".")
    assert "the data have changed" in done.stdout
    assert "Finished after 16 steps" in done.stdout
    multidds("verify", tmp_path / "run", cwd=".")
