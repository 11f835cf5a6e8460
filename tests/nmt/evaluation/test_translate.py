import json
import shutil
import subprocess
import sys

import made_up_languages
import numpy as np
import pytest
import torch
from conftest import ROOT, multidds
from sacrebleu.metrics import BLEU
from toy_runs import Silent, mistake, small_config

from multidds._base.errors import UserError
from multidds.nmt.batches.batch import assemble
from multidds.nmt.batches.sentences import Sentences
from multidds.nmt.config.config import read_run
from multidds.nmt.evaluation import Translator
from multidds.nmt.evaluation.significance import compare
from multidds.nmt.model.transformer import make_model
from multidds.nmt.prepare import Prepared
from multidds.nmt.prepare.encode import Encoder
from multidds.nmt.runs import checkpoints
from multidds.nmt.training.train import train


def largest_difference(run, pair, split="dev", count=30):
    """Between the log-probabilities of PyTorch and of the exported model, over all target tokens."""
    config, _ = read_run(run)
    prepared = Prepared(config)
    model = make_model(config, prepared.vocabulary)
    weights, _ = checkpoints.read(run / "best.safetensors")
    model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in weights.items()})
    model.eval()
    translator = Translator(run, threads=1)
    sentences = Sentences(prepared, pair, split)
    worst = 0.0
    for i in range(count):
        batch = assemble([(sentences, i)])
        with torch.no_grad():
            ours = model.logits(batch).log_softmax(-1)[torch.arange(batch.tokens), batch.target_out].numpy()
        source = [prepared.vocabulary["source"][t] for t in batch.source.tolist()][:-1]  # </s> is added there
        target = [prepared.vocabulary["target"][t] for t in batch.target_out.tolist()][:-1]
        theirs = np.array(translator.model.score_batch([source], [target])[0].log_probs)
        worst = max(worst, float(np.abs(ours - theirs).max()))
    return worst


def test_made_up_languages_are_learned_by_the_commands(tiny):
    scores = json.loads((tiny / "runs" / "tiny" / "scores.json").read_text())
    assert all(pair["bleu"] > 90 for pair in scores["pairs"].values()), scores["pairs"]
    assert scores["average"]["bleu"] > 90
    assert scores["signatures"]["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a")
    references = (tiny / "data" / "made-up" / "mirror-base" / "test.base").read_text().splitlines()
    hypotheses = (tiny / "runs" / "tiny" / "hypotheses" / "mirror-base.txt").read_text().splitlines()
    assert BLEU().corpus_score(hypotheses, [references]).score == scores["pairs"]["mirror-base"]["bleu"]


def test_the_exported_model_is_the_trained_one(tiny, monkeypatch):
    monkeypatch.chdir(tiny)
    assert largest_difference(tiny / "runs" / "tiny", "mirror-base") < 1e-4


@pytest.mark.parametrize("norm", ["layer", "scale"])
@pytest.mark.parametrize("pairs", [["base-mirror", "base-shift"], ["mirror-base", "base-shift"]])
def test_other_directions_and_layer_norm_are_exported_exactly_too(corpus, monkeypatch, tmp_path, norm, pairs):
    config = small_config(corpus, monkeypatch, f"model.norm={norm}", "train.max_steps=8", pairs=pairs)
    train(config, tmp_path / "run", Silent())
    for pair in pairs:
        assert largest_difference(tmp_path / "run", pair, count=8) < 1e-4


def test_lines_in_lines_out(tiny):
    lines = (tiny / "data" / "made-up" / "shift-base" / "test.shift").read_text().splitlines()[:20]
    done = multidds("translate", "runs/tiny", "--from", "shift", cwd=tiny, input="\n".join(["", *lines, "", " "]))
    out = done.stdout.split("\n")
    assert len(out) == 24  # 23 lines, each ended
    assert out[0] == out[21] == out[22] == ""
    expected = [made_up_languages_backwards(line) for line in lines]
    assert sum(a == b for a, b in zip(out[1:21], expected, strict=True)) >= 15
    (tiny / "in.txt").write_text("\n".join(lines) + "\n")
    again = multidds("translate", "runs/tiny", "--from", "shift", "--to", "base", "--input", "in.txt", cwd=tiny)
    assert again.stdout.splitlines() == out[1:21]
    small = multidds("translate", "runs/tiny", "--from", "shift", "--int8", "--beam", "1", cwd=tiny, input=lines[0])
    assert len(small.stdout.splitlines()) == 1


def made_up_languages_backwards(text):
    return "".join(chr(ord(c) - 1) if c != " " else c for c in text)


def test_long_lines_are_split_or_refused_and_never_cut(tiny, monkeypatch):
    monkeypatch.chdir(tiny)
    words = made_up_languages.words()
    rng = np.random.default_rng(0)
    line = made_up_languages.shift(" ".join(words[i] for i in rng.integers(0, len(words), 150)))
    translator = Translator(tiny / "runs" / "tiny", threads=1)
    for text in (line, line.replace(" ", ". "), line.replace(" ", ""), "b " * 61):
        parts = list(translator.parts(*translator.tokens([text], "shift", "base")))
        assert len(parts) > 1
        assert [piece for part in parts for piece in part] == translator.tokens([text], "shift", "base")[0]
        assert all(0 < len(part) <= 60 for part in parts)
    assert all(part[0].startswith("▁") for part in translator.parts(*translator.tokens([line], "shift", "base")))
    done = multidds("translate", "runs/tiny", "--from", "shift", cwd=tiny, input=line + "\n")
    assert len(done.stdout.splitlines()) == 1
    assert len(done.stdout.split()) > 9
    refused = multidds(
        "translate", "runs/tiny", "--from", "shift", "--long-lines", "refuse", cwd=tiny, input="b\n" + line, check=False
    )
    assert refused.returncode == 2
    assert "standard input:2: has more than 60 tokens; --long-lines split" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs/tiny"], "--from is needed: one of mirror, shift."),
        (["runs/tiny", "--from", "xx"], "--from xx: the model was not trained for that; there are mirror, shift."),
        (
            ["runs/tiny", "--from", "shift", "--to", "xx"],
            "--to xx: the model was not trained for that; there are base",
        ),
        (["runs/nothing", "--from", "shift"], "runs/nothing: is not a run (there is no config.json)."),
        (["runs/tiny", "--from", "shift", "--long-lines", "cut"], "--long-lines: invalid choice: 'cut'"),
        (["runs/tiny", "--from", "shift", "--input", "no.txt"], "no.txt: there is no such file."),
    ],
)
def test_a_mistake_in_translating_is_one_line(tiny, monkeypatch, arguments, message):
    monkeypatch.chdir(tiny)
    assert message in mistake("translate", *arguments)


def test_invalid_utf8_on_standard_input_is_one_line(tiny):
    command = [sys.executable, "-m", "multidds", "translate", "runs/tiny", "--from", "shift"]
    done = subprocess.run(command, cwd=tiny, input=b"ok\n\xff\n", capture_output=True)
    assert done.returncode == 2
    assert b"standard input:2: not valid UTF-8" in done.stderr


def test_the_exported_folder_serves_itself(tiny):
    """The code of its README, in its folder, without this package."""
    folder = tiny / "runs" / "tiny" / "export"
    readme = (folder / "README.md").read_text(encoding="utf-8")
    code = readme.split("```python\n")[1].split("```")[0].replace('"..."', '"b"')
    assert "multidds" not in code
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.strip()


@pytest.mark.slow
def test_significance_is_that_of_sacrebleu_itself(tiny, monkeypatch):
    """Our p-values and stars against the command line of sacreBLEU on the same files."""
    other = tiny / "runs" / "other"
    if not other.exists():
        multidds(
            "train", ROOT / "recipes" / "tiny.toml", "--run", "runs/other", "--set", "train.max_steps=300", cwd=tiny
        )
    done = multidds("evaluate", "runs/other", "--against", "runs/tiny", cwd=tiny)
    assert "* better, p < 0.05" in done.stdout
    monkeypatch.chdir(tiny)
    ours = compare(tiny / "runs" / "other", tiny / "runs" / "tiny")
    for pair, both in ours.items():
        files = [f"runs/{run}/hypotheses/{pair}.txt" for run in ("tiny", "other")]
        reference = f"data/made-up/{pair}/test.base"
        command = [
            sys.executable,
            "-m",
            "sacrebleu",
            reference,
            "-i",
            *files,
            "-m",
            "bleu",
            "--paired-bs",
            "-f",
            "json",
        ]
        out = subprocess.run(command, cwd=tiny, capture_output=True, text=True, check=True).stdout
        theirs = json.loads(out)[1]["BLEU"]
        assert round(both["bleu"], 1) == pytest.approx(float(theirs["score"]), abs=0.051)
        assert both["p"] == pytest.approx(theirs["p_value"], abs=1e-3)


def test_translation_reads_the_very_tokens_of_training(tiny, monkeypatch):
    """Also for letters that one language's model does not know and another's does."""
    monkeypatch.chdir(tiny)
    config, _ = read_run(tiny / "runs" / "tiny")
    prepared = Prepared(config)
    translator = Translator(tiny / "runs" / "tiny", threads=1)
    for language in ("mirror", "shift"):
        encoder = Encoder.load(config, prepared.folder, language, "source")
        for text in ("ma zz ab", "abc\u0436 </s> <s>", "<2base> \u2581", *words_of(tiny, language)):
            expected = [prepared.vocabulary["source"][i] for i in encoder.encode([text])[0]]
            assert translator.tokens([text], language, "base") == [expected]


def words_of(tiny, language):
    return (tiny / "data" / "made-up" / f"{language}-base" / f"test.{language}").read_text().splitlines()[:20]


def test_a_run_can_be_moved_and_translates_without_its_data(tiny, tmp_path):
    shutil.copytree(tiny / "runs" / "tiny", tmp_path / "moved", ignore=shutil.ignore_patterns("export"))
    line = words_of(tiny, "shift")[0]
    there, here = (
        multidds("translate", run, "--from", "shift", cwd=cwd, input=line).stdout
        for run, cwd in ((tmp_path / "moved", tmp_path), ("runs/tiny", tiny))
    )
    assert there == here


def test_a_refused_line_has_its_number_also_far_down(tiny, monkeypatch):
    monkeypatch.chdir(tiny)
    translator = Translator(tiny / "runs" / "tiny", threads=1)
    lines = translator.translate(["b"] * 2500 + ["b " * 200], "shift", "base", long_lines="refuse", where="text")
    with pytest.raises(UserError, match="text:2501: has more than 60 tokens"):
        list(lines)


def test_only_trained_directions_are_taken(corpus, monkeypatch, tmp_path):
    config = small_config(corpus, monkeypatch, "train.max_steps=2", pairs=["mirror-base", "base-mirror"])
    train(config, tmp_path / "run", Silent())
    translator = Translator(tmp_path / "run", threads=1)
    assert translator.direction("mirror", None) == ("mirror", "base")
    assert translator.direction(None, "mirror") == ("base", "mirror")
    with pytest.raises(UserError, match="--from mirror: the model was not trained for that; there are base"):
        translator.direction("mirror", "mirror")
    with pytest.raises(UserError, match="--from is needed: one of mirror, base"):
        translator.direction(None, None)


def test_evaluating_again_uses_what_is_there(tiny):
    before = (tiny / "runs" / "tiny" / "scores.json").stat().st_mtime_ns
    multidds("evaluate", "runs/tiny", cwd=tiny)
    assert (tiny / "runs" / "tiny" / "scores.json").stat().st_mtime_ns == before


def test_runs_without_a_pair_in_common_cannot_be_compared(tiny, corpus, monkeypatch, tmp_path):
    config = small_config(corpus, monkeypatch, "train.max_steps=2", pairs=["base-mirror", "base-shift"])
    train(config, tmp_path / "run", Silent())
    with pytest.raises(UserError, match="have no language pair in common"):
        compare(tiny / "runs" / "tiny", tmp_path / "run")
