"""`[examples]`: weights of single sentence pairs in a training: their gradients, resuming, "
"processes, records."""

import json
import subprocess
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT
from made_runs import report
from toy_runs import Silent, Stopping, records, same_runs, small_config, torchrun

from multidds._base.errors import UserError
from multidds.nmt.batches.probe_batches import dev_batches
from multidds.nmt.batches.sentences import Sentences
from multidds.nmt.config.config import load_config
from multidds.nmt.noisy_pairs.lexicon import Lexicon
from multidds.nmt.noisy_pairs.noisy_pairs import Pairs
from multidds.nmt.noisy_pairs.pair_features import FEATURES, PairFeatures
from multidds.nmt.noisy_pairs.pair_weights import EDGES
from multidds.nmt.runs import checkpoints
from multidds.nmt.training.train import Training, train

DDS = (
    "examples.method=dds",
    "examples.every=2",
    "examples.learn=0.9",
    "examples.replay=2",
    "examples.probe_tokens=100",
)
TINY = ROOT / "recipes" / "tiny.toml"


def started(corpus, monkeypatch, tmp_path, *overrides):
    run = Training(small_config(corpus, monkeypatch, *overrides), tmp_path / "run")
    run.close()
    return run


@pytest.mark.parametrize("mixing", ["example", "batch"])
def test_until_the_scorers_are_ready_training_is_as_without_them(corpus, monkeypatch, tmp_path, mixing):
    for name, overrides in (("without", ()), ("with", (*DDS, "examples.every=4"))):
        config = small_config(corpus, monkeypatch, *overrides, f"train.mixing={mixing}", "train.max_steps=20")
        train(config, tmp_path / name, Stopping(after=10))
    model = [checkpoints.read(checkpoints.listed(tmp_path / name)[-1])[0] for name in ("without", "with")]
    for key, tensor in model[0].items():
        assert torch.equal(model[1][key], tensor)


@pytest.mark.parametrize("mixing", ["example", "batch"])
def test_a_pool_is_drawn_again_as_it_was_though_chances_have_moved(corpus, monkeypatch, tmp_path, mixing):
    run = started(corpus, monkeypatch, tmp_path, *DDS, f"train.mixing={mixing}", "train.pool=30")
    trusted = [0.9]

    def chances(origins):
        return [trusted[0] if i % 2 else 1.0 for _, i in origins]

    def steps(stream, count):
        return [[batch.origins for batch in stream.next(30)[0]] for _ in range(count)]

    whole, again = run.make_stream(chances), run.make_stream(chances)
    steps(whole, 40)  # ten into a pool
    trusted[0] = 0.2
    again.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert steps(again, 60) == steps(whole, 60)
    third = run.make_stream(chances)
    third.load_state_dict(json.loads(json.dumps(again.state_dict())))
    assert steps(third, 60) == steps(whole, 60)


@pytest.mark.parametrize("mixing", ["example", "batch"])
def test_pairs_are_trained_on_by_their_chances(corpus, monkeypatch, tmp_path, mixing):
    run = started(corpus, monkeypatch, tmp_path, *DDS, f"train.mixing={mixing}")
    name = next(iter(run.data))
    chance = {(n, i): 0.2 if n == name and i % 2 else 1.0 for n, s in run.data.items() for i in range(len(s))}
    run.stream = run.make_stream(lambda origins: [chance[origin] for origin in origins])
    kept = Counter()
    for _ in range(60):
        batches, _, _ = run.stream.next(8)
        kept.update(i % 2 for batch in batches for n, i in batch.origins if n == name)
    assert 0.1 < kept[1] / kept[0] < 0.32


def test_doubted_pairs_are_left_out_of_steps_that_are_as_large(corpus, monkeypatch, tmp_path):
    run = started(corpus, monkeypatch, tmp_path, *DDS)
    whole = started(corpus, monkeypatch, tmp_path / "whole")
    run.stream = run.make_stream(lambda origins: [0.01 if i % 3 else 1.0 for _, i in origins])
    sizes = [[stream.next(8)[2] for _ in range(16)] for stream in (run.stream, whole.stream)]
    assert sum(sizes[0]) == pytest.approx(sum(sizes[1]), rel=0.1)
    seen = [stream.passes for stream in (run.stream, whole.stream)]
    assert seen[0] == pytest.approx(seen[1], rel=0.2)  # the mixture says how much of each


def test_trust_is_the_product_of_what_both_scorers_say(corpus, monkeypatch, tmp_path):
    run = started(corpus, monkeypatch, tmp_path, *DDS, "examples.sharpness=3")
    for step in range(2, 14, 2):
        run.noisy_pairs.update(step)
    origins = [(name, i) for name in run.data for i in range(40)]
    both = [scorer.keep_probabilities([Pairs(origins)]) for scorer in run.noisy_pairs.scorers]
    assert len(both) == 2
    assert all(each.std() > 0.01 for each in both)
    expected = (both[0].double() * both[1].double()) ** 3
    assert run.noisy_pairs.chances(origins) == pytest.approx(expected.clamp_min(0.01).tolist())


def test_scores_stay_when_they_are_learned_also_where_the_training_grows(corpus, monkeypatch, tmp_path):
    run = started(corpus, monkeypatch, tmp_path, *DDS)
    for step in (2, 4, 6, 8, 11):  # nine tenths of twelve steps
        run.noisy_pairs.update(step)
    longer = started(corpus, monkeypatch, tmp_path / "longer", *DDS, "train.max_steps=100")
    longer.noisy_pairs.load_state_dict(run.noisy_pairs.state_dict())
    before = longer.noisy_pairs.chances([("mirror-base", i) for i in range(9)])
    longer.noisy_pairs.update(20)
    longer.noisy_pairs.update(22)
    assert longer.noisy_pairs.chances([("mirror-base", i) for i in range(9)]) == before


def test_a_training_too_short_to_learn_from_is_refused(corpus, monkeypatch, tmp_path):
    with pytest.raises(UserError, match=r"\[examples\] learn = 0.25 of 12 steps is too short for 4 updates, one every"):
        started(corpus, monkeypatch, tmp_path, *DDS, "examples.learn=0.25")


def test_without_contrast_there_is_one_scorer(corpus, monkeypatch, tmp_path):
    run = started(corpus, monkeypatch, tmp_path, *DDS, "examples.contrast=0")
    assert len(run.noisy_pairs.scorers) == 1


def test_scorers_learn_from_all_that_the_mixture_draws(corpus, monkeypatch, tmp_path):
    run = started(corpus, monkeypatch, tmp_path, *DDS, "train.max_steps=300", "train.max_epochs=1000")
    seen = []
    for scorer in run.noisy_pairs.scorers:
        monkeypatch.setattr(scorer, "update", lambda batches: seen.append(batches) or SimpleNamespace(skipped=None))
    for step in range(1, 301):
        run.noisy_pairs.update(step)
    assert len(seen) == 135  # every second one, in the first nine tenths
    drawn = Counter(name for batches in seen for batch in batches for name, _ in batch.origins)
    total = sum(drawn.values())
    for name, share in run.mixture.probabilities.items():
        assert drawn[name] / total == pytest.approx(share, abs=4 * (share / total) ** 0.5)


@pytest.mark.parametrize("method", [DDS, (*DDS, "train.mixing=batch")])
@pytest.mark.slow
def test_a_resumed_training_with_weights_is_the_same(corpus, monkeypatch, tmp_path, method):
    config = small_config(corpus, monkeypatch, *method, "train.validate_every=6", "train.max_steps=20")
    train(config, tmp_path / "whole", Silent())
    train(config, tmp_path / "parts", Stopping(after=7))
    train(config, tmp_path / "parts", Silent())
    same_runs(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.slow
def test_two_processes_weigh_as_one_does(text, monkeypatch, tmp_path):
    overrides = (*DDS, "examples.sharpness=1", "examples.probe_tokens=2000", "model.dropout=0", "train.tokens=300")
    command, environment = torchrun(tmp_path / "two", *overrides)
    done = subprocess.run(command, cwd=text, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    train(small_config(text, monkeypatch, *overrides), tmp_path / "one", Silent())
    (one,), (two,) = ([r for r in records(tmp_path / name) if r["kind"] == "examples"] for name in ("one", "two"))
    assert one["weight"] == pytest.approx(two["weight"], rel=0.05)  # other batches: 2 to 4% apart, by the mixture
    assert len(one["lowest"]) == len(two["lowest"]) == 8
    states = [checkpoints.read(checkpoints.listed(tmp_path / name)[-1])[0] for name in ("one", "two")]
    a, b = (state["examples.scorer.1.replay.rewards"] for state in states)
    shares = np.linspace(0.05, 0.95, 19)
    assert np.corrcoef(np.quantile(a, shares), np.quantile(b, shares))[0, 1] > 0.98


def test_records_say_which_sentence_pairs_are_trusted(corpus, monkeypatch, tmp_path):
    config = small_config(corpus, monkeypatch, *DDS)
    train(config, tmp_path / "run", Silent())
    (record,) = [r for r in records(tmp_path / "run") if r["kind"] == "examples"]
    assert record["step"] == 12
    state, _ = checkpoints.read(checkpoints.listed(tmp_path / "run")[-1])
    for name in config.data.names:
        weights = state[f"examples.weights.{name}"].numpy()
        seen = weights[weights >= 0]
        assert record["weight"][name] == pytest.approx(seen.mean(), rel=1e-5)
        edges = [-np.inf, *EDGES, np.inf]
        counts = [int(((seen >= a) & (seen < b)).sum()) for a, b in pairwise(edges)]
        assert record["histogram"][name] == counts
    everything = sorted(w for name in config.data.names for w in state[f"examples.weights.{name}"].tolist() if w >= 0)
    assert [e["weight"] for e in record["lowest"]] == pytest.approx(everything[:8])
    assert [e["weight"] for e in record["highest"]] == pytest.approx(everything[:-9:-1])
    first = record["lowest"][0]
    many, base = first["dataset"].split("-")
    lines = [(corpus / f"data/made-up/{many}-base/train.{side}").read_text().splitlines() for side in (many, base)]
    assert (first["source"], first["target"]) in list(zip(*lines, strict=True))


def test_contrast_takes_off_the_gradient_behind_other_sources(corpus, monkeypatch, tmp_path):
    run = started(corpus, monkeypatch, tmp_path, *DDS, "model.dropout=0")
    draw, gradients, values = dev_batches(run.config, run.dev, contrast=True), [], []
    (own, shuffled), *_ = draw(torch.Generator().manual_seed(0))
    assert torch.equal(own.target_out, shuffled.target_out)
    assert sorted(own.source.tolist()) == sorted(shuffled.source.tolist())
    assert not torch.equal(own.source, shuffled.source)
    for parts in ([(own, shuffled)], [(own, None)], [(shuffled, None)]):
        loss = run.noisy_pairs.dev_loss(run.model, parts, contrast=0.5)
        values.append(loss.item())
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(run.model.parameters()))]))
    assert values[0] == pytest.approx(values[1], rel=1e-6)
    difference = gradients[0] - (gradients[1] - 0.5 * gradients[2])
    assert difference.norm() < 1e-5 * gradients[0].norm()


def test_the_numbers_of_a_sentence_pair_are_what_they_are_called(corpus, monkeypatch, tmp_path):
    run = started(corpus, monkeypatch, tmp_path)
    name, sentences = next(iter(run.data.items()))
    numbers = PairFeatures(run.data, run.vocabulary)
    rows = dict(zip(FEATURES, numbers.rows((name, i) for i in range(5)).T.tolist(), strict=True))
    source, target = sentences.text(3, run.vocabulary)
    ratios = np.log(sentences.target_lengths / sentences.source_lengths)
    assert rows["distance from the usual ratio"][3] == pytest.approx(abs(ratios[3] - ratios.mean()))
    words = target.lower().split()
    assert rows["target words in the source"][3] == pytest.approx(np.mean([w in source.split() for w in words]))
    fits = [Lexicon(run.data).fit(name, i) for i in range(5)]
    assert list(zip(rows["target fits source"], rows["source fits target"], strict=True)) == fits


def test_a_copy_is_seen_as_one(corpus, monkeypatch, tmp_path):
    run = started(corpus, monkeypatch, tmp_path)
    numbers = PairFeatures(run.data, run.vocabulary)
    name, sentences = next(iter(run.data.items()))
    texts = {0: ("one two", "two"), 1: ("Same, text", "same , TEXT")}
    monkeypatch.setattr(sentences, "text", lambda i, vocabulary: texts[i])
    rows = dict(zip(FEATURES, numbers.rows([(name, 0), (name, 1)]).T.tolist(), strict=True))
    assert rows["same text"] == [0.0, 1.0]
    assert rows["target words in the source"] == [1.0, 1.0]
    assert rows["source words in the target"] == [0.5, 1.0]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("examples.method=paper", r"\[examples\] method: input should be 'none' or 'dds'"),
        ("examples.probe_tokens=20", r"\[examples\] probe_tokens = 20 is smaller than the longest sentence, 62 tokens"),
    ],
)
def test_settings_that_cannot_be_are_refused(override, message):
    with pytest.raises(UserError, match=message):
        load_config(TINY, [override])


@pytest.mark.slow
def test_the_report_shows_weights_and_pairs_as_escaped_text(corpus, monkeypatch, tmp_path):
    texts = ("<b>bold & 1</b>", "<script>alert(1)</script>")
    monkeypatch.setattr(Sentences, "text", lambda self, i, vocabulary: texts)
    train(small_config(corpus, monkeypatch, *DDS), tmp_path / "run", Silent())
    report([tmp_path / "run"], tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "the sentence pairs with the highest and lowest weights" in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 16
    assert "<script>alert(1)" not in page
    assert "<b>bold" not in page
    (table,) = (tmp_path / "out" / "tables").glob("*.pairs.*.csv")
    assert texts[0] in table.read_text(encoding="utf-8")
    (weights,) = (tmp_path / "out" / "tables").glob("*.examples.*.csv")
    rows = [line.split(",") for line in weights.read_text(encoding="utf-8").splitlines()]
    assert rows[0][:3] == ["dataset", "mean weight", "below 0.1"]
    (record,) = [r for r in records(tmp_path / "run") if r["kind"] == "examples"]
    assert [float(count) for count in rows[1][2:]] == next(iter(record["histogram"].values()))
