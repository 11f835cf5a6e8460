"""The language model over domains: its text, its methods, and short runs of it."""

import math
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import domains
import pytest
import torch
from domains import HAND, METHODS, OURS, RULES, Config
from domains_text import DOMAINS, REGIMES, UNWANTED, read_corpus
from results_file import read_runs

from multidds import Mixture

pytestmark = [pytest.mark.nightly(part="results")]

HELD_OUT = [name for name in DOMAINS if name not in UNWANTED]
WINDOWS = {name: 12 - i for i, name in enumerate(DOMAINS)}  # to train on


@pytest.fixture(scope="module")
def corpus():
    return read_corpus(WINDOWS, dev=2, test=3)


def config(method, steps=20, seed=1):
    return Config("under-trained", method, seed, steps, **domains.TINY)


# ------------------------------------------------------------------------------------------------- text


def test_no_file_and_no_window_is_in_two_splits(corpus):
    splits = {"train": corpus.train, "dev": corpus.dev, "test": corpus.test}
    for one, other in combinations(splits, 2):
        for domain in HELD_OUT:
            assert not set(corpus.files[one][domain]) & set(corpus.files[other][domain])
            rows = [{tuple(row.tolist()) for row in splits[name][domain]} for name in (one, other)]
            assert not rows[0] & rows[1]


def test_splits_have_their_sizes_and_windows_follow_each_other(corpus):
    assert {name: len(windows) for name, windows in corpus.train.items()} == WINDOWS
    assert {len(windows) for windows in corpus.dev.values()} == {2}
    assert {len(windows) for windows in corpus.test.values()} == {3}
    for windows in corpus.train.values():
        assert windows.shape[1] == 129
        assert torch.equal(windows[:-1, -1], windows[1:, 0])  # what is guessed last is read next


def test_held_out_text_does_not_depend_on_how_much_is_trained_on(corpus):
    more = read_corpus({name: 2 * size for name, size in WINDOWS.items()}, dev=2, test=3)
    assert all(torch.equal(more.test[name], corpus.test[name]) for name in HELD_OUT)
    assert all(torch.equal(more.dev[name], corpus.dev[name]) for name in HELD_OUT)
    assert more.digest != corpus.digest == read_corpus(WINDOWS, dev=2, test=3).digest


def test_every_domain_is_large_enough_for_all_regimes():
    for sizes in REGIMES.values():
        found = read_corpus(sizes)
        assert {name: len(windows) for name, windows in found.train.items()} == sizes
        assert max(sizes.values()) >= 40 * min(sizes.values())
        assert all(len(found.files["test"][domain]) >= 8 for domain in sizes if domain in HELD_OUT)


def test_text_that_nobody_asks_for_is_in_training_only(corpus):
    assert list(corpus.train) == list(WINDOWS)
    assert list(corpus.dev) == list(corpus.test) == HELD_OUT


def test_a_domain_that_is_too_small_is_named():
    with pytest.raises(ValueError, match="'fortran' has only .* bytes of train text on this machine and needs"):
        read_corpus({"fortran": 10**5}, dev=2, test=3)


# ---------------------------------------------------------------------------------------------- methods


def test_static_methods_start_and_stay_with_their_mixture():
    sizes = {"a": 1000, "b": 10}
    assert domains.prior(config("proportional"), sizes)["b"] == pytest.approx(10 / 1010)
    assert domains.prior(config("temperature-3"), sizes)["b"] == pytest.approx(1 / (1 + 100 ** (1 / 3)))
    assert domains.prior(config("uniform"), sizes)["b"] == 0.5
    many = config("unimax", steps=1000)  # 4,000 windows: sixteen passes over b are 160
    assert domains.prior(many, sizes)["b"] == pytest.approx(160 / 4000)
    for method in set(METHODS) - set(domains.SCHEDULED):
        assert domains.schedule(config(method), sizes) == []


def test_schedules_go_where_their_names_say():
    sizes = {"a": 1000, "b": 10}
    proportional, five = (Mixture.temperature(sizes, tau).probabilities for tau in (1, 5))
    assert domains.schedule(config("cooldown"), sizes) == [(0, five), (10, proportional)]
    assert domains.prior(config("cooldown"), sizes).probabilities == five
    assert domains.schedule(config("reverse-cooldown"), sizes) == [(0, proportional), (10, five)]
    history = dict(domains.schedule(config("proportional-to-uniform", steps=40), sizes))
    assert history[0] == proportional
    assert history[5]["b"] == pytest.approx(0.75 * proportional["b"] + 0.25 * 0.5)
    assert history[20] == pytest.approx({"a": 0.5, "b": 0.5})
    assert max(history) == 20


@pytest.mark.parametrize("method", [method for method in METHODS if method not in HAND])  # of one regime each
def test_a_short_run_of_every_method_is_whole(corpus, method):
    lines = []
    found = domains.run(config(method), corpus, lines.append)
    assert len(lines) == 2
    learned = method in (*RULES, *OURS)
    assert len(found["updates"]) == (2 if learned and method != "learned-in-budget" else 0)  # the plan alone: 20 steps
    drawn = sum(passes * WINDOWS[name] for name, passes in found["curve"][-1]["passes"].items())
    assert drawn == pytest.approx(20 * 4)
    for split in ("dev", "test"):
        for one in found[split].values():
            assert 0 < one["loss"] < 6
            assert math.exp(-one["loss"]) <= one["expected_accuracy"] <= 1  # Jensen
            assert 0 <= one["accuracy"] <= 1
    moved = found["curve"][-1]["mixture"] != domains.prior(config(method), WINDOWS).probabilities
    assert moved == (learned or method in domains.SCHEDULED)


def test_a_run_is_a_function_of_its_config(corpus):
    runs = [domains.run(config("multidds-s", seed=seed), corpus, lambda line: None) for seed in (1, 1, 2)]
    assert runs[0]["updates"] == runs[1]["updates"] != runs[2]["updates"]
    assert runs[0]["test"] == runs[1]["test"] != runs[2]["test"]


def test_the_shuffled_control_probes_every_dataset_under_another_name(corpus, monkeypatch):
    given = {}
    monkeypatch.setattr(domains, "batches_of", lambda windows, size: windows)
    monkeypatch.setattr(domains, "Balancer", lambda *_, train, **__: given.update(train))
    domains.balancer(config("shuffled"), Mixture.uniform(WINDOWS), torch.nn.Linear(1, 1), corpus)
    assert list(given) == list(WINDOWS)
    origin = {name: next(n for n in WINDOWS if given[name] is corpus.train[n]) for name in WINDOWS}
    assert set(origin.values()) == set(WINDOWS)
    assert all(name != other for name, other in origin.items())


# ---------------------------------------------------------------------------------------------- results


def test_runs_are_skipped_where_their_line_is_there(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(domains, "read_corpus", lambda sizes: corpus)
    real = domains.run
    short = lambda asked, corpus: real(config(asked.method, asked.steps, asked.seed), corpus)  # noqa: E731
    monkeypatch.setattr(domains, "run", short)
    file = tmp_path / "results.jsonl"
    arguments = ["--results", str(file), "--regime", "under-trained", "--method", "uniform", "multidds-s"]
    arguments += ["--steps", "4", "--seed", "1", "2"]
    domains.main(arguments)
    methods = ("uniform-4-steps", "multidds-s-4-steps")
    assert set(read_runs(file)) == {("under-trained", method, seed) for method in methods for seed in (1, 2)}
    text = file.read_text()
    assert str(tmp_path) not in text
    monkeypatch.setattr(domains, "run", None)
    domains.main(arguments)
    assert file.read_text() == text


def test_processes_that_write_at_once_lose_no_line(tmp_path):
    file = tmp_path / "results.jsonl"
    write = "import sys, results_file as f, pathlib\nfor i in range(50): f.add_run(pathlib.Path(sys.argv[1]), ('s', "
    write += "sys.argv[2], i), {'text': 'x' * 10_000, 'value': 1 / 3})"
    folder = str(Path(domains.__file__).parent)
    started = [
        subprocess.Popen([sys.executable, "-c", write, file, method], env=os.environ | {"PYTHONPATH": folder})
        for method in ("a", "b", "a")
    ]
    assert [process.wait() for process in started] == [0, 0, 0]
    runs = read_runs(file)
    assert len(file.read_text().splitlines()) == len(runs) == 100
    assert {run["value"] for run in runs.values()} == {0.333333}
