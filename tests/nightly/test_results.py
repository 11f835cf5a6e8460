"""The page of results is what the runs of the experiments say, counted a second time and in another way."""

import json
import re
import subprocess
import sys
from collections import defaultdict
from statistics import fmean

import bleu_counts
import dirty_results
import paper_scale
import pytest
import readme_picture
import study
from conftest import ROOT
from results_file import read_runs

RESULTS = {name: ROOT / "experiments" / name / "results.jsonl" for name in ("study", "paper", "dirty")}
LINES = {name: path.read_text().splitlines() if path.exists() else [] for name, path in RESULTS.items()}
RUNS = [*LINES["study"], *LINES["paper"]]

pytestmark = [
    pytest.mark.skipif(not RUNS, reason="the source distribution has no results"),
    pytest.mark.nightly(part="results"),
    pytest.mark.claim("The method", "the page of results is what the files of the runs say"),
]

FIXED = ("proportional", "temperature-3", "temperature-5", "uniform")
BLEU = {"untranslated", "goal-into-english", "goal-out-of-english", "into-english", "out-of-english", "tatoeba"}
PAGES = [ROOT / "README.md", ROOT / "docs" / "results.md"]


def score(run, part, goal):
    """The mean over the sets that count, of whichever measure the run has."""
    sets = [one for name, one in run[part].items() if goal in (None, name)]
    (key,) = {"bleu", "loss", "error"} & sets[0].keys() if "bleu" not in sets[0] else {"bleu"}
    return fmean(one[key] for one in sets)


@pytest.fixture(scope="module")
def runs():
    """{setting: {method: {seed: (dev score, test score)}}}, by a reading of its own."""
    found = defaultdict(lambda: defaultdict(dict))
    for run in map(json.loads, LINES["study"]):
        if "repetition" not in run["method"] and not re.search("-904-steps|-at-", run["method"]):
            goal = {"goal-into-english": "bel-eng", "goal-out-of-english": "eng-bel"}.get(run["setting"])
            scores = tuple(score(run, part, goal) for part in ("dev", "test"))
            found[run["setting"]][run["method"]][run["seed"]] = scores
    return {name: here for name, here in found.items() if "learned" in here and len(set(FIXED) & here.keys()) > 1}


def mean(scores, part, seeds):
    return fmean(scores[seed][part] for seed in seeds)


def rows_of(page, heading):
    """The rows of the table of a page whose head has these cells."""
    text = page.read_text(encoding="utf-8")
    head = text.index(f"| {heading} |")
    lines = text[head:].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def number(cell):
    return float(re.match(r"[-+]?[\d.]+", cell)[0])


def test_the_pages_of_results_are_up_to_date():
    subprocess.run([sys.executable, ROOT / "experiments" / "study" / "results.py", "--check"], check=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_table_of_results_is_that_of_the_files(page, runs):
    rows = rows_of(page, "setting | best fixed mixture | MultiDDS-S")
    settings = [name for name in study.SETTINGS if name in runs]
    assert len(rows) == len(settings) >= 10
    for setting, (_, fixed, paper, learned, gain, by_hand, seeds) in zip(settings, rows, strict=True):
        here = runs[setting]
        more_is_better = "BLEU" in learned
        choose = max if more_is_better else min
        there = [method for method in FIXED if method in here]
        shared = set.intersection(*(set(here[method]) for method in there))
        rival = choose(there, key=lambda method: mean(here[method], 0, shared))
        assert rival.replace("-", " ") in fixed
        ours = here["learned-in-budget"] if "learned-in-budget" in here else here["learned"]
        both = ours.keys() & here[rival].keys()
        assert int(seeds) == len(both)
        mine, theirs = mean(ours, 1, both), mean(here[rival], 1, both)
        scale = 100 if "%" in learned else 1
        near = 0.006 if more_is_better else 0.051 if scale == 100 else 0.0006
        fixed, learned = fixed.replace("*", ""), learned.replace("*", "")
        assert (number(learned), number(fixed)) == pytest.approx((scale * mine, scale * theirs), abs=near)
        expected = mine - theirs if more_is_better else 100 * (theirs - mine) / theirs
        assert number(gain) == pytest.approx(expected, abs=0.051)
        if "multidds-s" in here:
            known = mean(here["multidds-s"], 1, here["multidds-s"])
            assert number(paper.replace("*", "")) == pytest.approx(scale * known, abs=near)
        else:
            assert paper == "not run"
        known = [method for method in here if method.startswith(("by-hand", "left-out", "bel-and-rus"))]
        if not known:
            assert by_hand == "none made"
            continue
        shared = set.intersection(*(set(here[method]) for method in known))
        best = choose(known, key=lambda method: mean(here[method], 0, shared))
        assert number(by_hand) == pytest.approx(scale * mean(here[best], 1, here[best]), abs=near)


def test_the_levels_of_the_readme_are_those_of_the_files(runs):
    """How far behind the best mixture of a setting the plan and the default are, in per cent of its test score."""
    behind = defaultdict(list)
    for setting, here in runs.items():
        names = [*FIXED, "planned", "multidds-s", "learned-in-budget" if "learned-in-budget" in here else "learned"]
        names = [name for name in names if name in here]
        sign = 1 if setting in BLEU else -1
        means = {name.removesuffix("-in-budget"): sign * mean(here[name], 1, here[name]) for name in names}
        for name, value in means.items():
            behind[name].append(100 * (max(means.values()) - value) / abs(max(means.values())))
    plan, learn, _ = rows_of(ROOT / "README.md", " | costs | measured")
    for row, name in ((plan, "planned"), (learn, "learned")):
        average, worst = map(float, re.search(r"regret\S* ([\d.]+)% \(worst (\d+)%\)", row[2]).groups())
        assert average == pytest.approx(fmean(behind[name]), abs=0.051)
        assert worst == pytest.approx(max(behind[name]), abs=0.51)


def test_the_averages_of_the_paper_at_this_scale_are_those_of_the_files():
    rows = {row[0]: row[1:] for row in rows_of(PAGES[1], "mixture | into English, related | paper")}
    settings = ("catalogues-m2o", "catalogues-diverse-m2o", "catalogues-o2m", "catalogues-diverse-o2m")
    published = {"proportional": (24.88, 26.68, 15.49, 16.79), "MultiDDS-S": (25.52, 27.00, 17.32, 18.24)}
    runs = {(run["setting"], run["method"], run["seed"]): run for run in map(json.loads, LINES["paper"])}
    for name, of_paper in published.items():
        assert [number(cell) for cell in rows[name][1::2]] == list(of_paper)
        for setting, cell in zip(settings, rows[name][::2], strict=True):
            assert number(cell) == pytest.approx(score(runs[setting, name.lower(), 1], "test", None), abs=0.006)


def test_the_published_averages_of_the_paper_are_those_of_its_scores():
    for facts in paper_scale.PUBLISHED["settings"].values():
        for method, scores in facts["bleu"].items():
            assert fmean(scores.values()) == pytest.approx(facts["average"][method], abs=0.05)


@pytest.mark.parametrize("line", RUNS or [""], ids=range(len(RUNS) or 1))
def test_a_line_of_results_is_whole_and_has_no_paths(line):
    run = json.loads(line)
    assert not re.search(r"/root|/home|/work|data/|runs/", line)
    assert run["versions"]["commit"]
    if "sentences" in run:
        for name, sentences in run["sentences"].items():
            assert bleu_counts.bleu_of_counts(sentences) == pytest.approx(run["test"][name]["bleu"], abs=1e-3)
            assert len(sentences) == run["test"][name]["sentences"]


def test_counts_of_sentences_give_the_bleu_of_sacrebleu():
    from sacrebleu.metrics.bleu import BLEU

    hypotheses = ["the cat sat on a mat", "hello there", "", "a b c d e f", "nothing right"]
    references = ["the cat sat on the mat", "hello there , you", "something", "a b c d e f g", "all wrong here"]
    counts = bleu_counts.counts_of(hypotheses, references)
    assert bleu_counts.bleu_of_counts(counts) == pytest.approx(BLEU().corpus_score(hypotheses, [references]).score)
    assert bleu_counts.bleu_of_counts(counts[1:3]) == pytest.approx(
        BLEU().corpus_score(hypotheses[1:3], [references[1:3]]).score
    )


def test_an_interval_holds_the_difference_and_is_nothing_between_equals():
    good, bad = [[4, 3, 2, 1, 5, 5]] * 30, [[3, 2, 1, 0, 5, 5]] * 15 + [[4, 3, 2, 1, 5, 5]] * 15
    assert bleu_counts.interval([{"a": good}], [{"a": good}], draws=50) == (0, 0)
    low, high = bleu_counts.interval([{"a": good}], [{"a": bad}], draws=200)
    difference = bleu_counts.bleu_of_counts(good) - bleu_counts.bleu_of_counts(bad)
    assert 0 < low < difference < high


@pytest.mark.parametrize("kind", readme_picture.INKS)
def test_the_picture_of_the_readme_is_what_its_command_draws(kind):
    drawn = (ROOT / "docs" / f"mixture-{kind}.svg").read_text(encoding="utf-8")
    assert len(drawn) < 60_000
    again = readme_picture.picture(readme_picture.INKS[kind])
    words = [re.findall(r"<text[^>]*>([^<]*)</text>", text) for text in (drawn, again)]
    assert words[0] == words[1]
    assert "tables  65→9%" in words[0]
    assert readme_picture.INKS[kind] in drawn


def test_the_table_of_damaged_translations_is_that_of_the_file():
    page = (ROOT / "docs" / "dirty-data.md").read_text(encoding="utf-8")
    assert dirty_results.table(read_runs(dirty_results.RESULTS)) in page
    runs = list(map(json.loads, LINES["dirty"]))

    def mean(*of):
        chosen = [run for run in runs if (run["setting"], run["method"]) == of]
        found = [fmean(pair["bleu"] for pair in run["pairs"].values()) for run in chosen]
        assert len(found) == 3
        return fmean(found)

    clean, damaged, learned = (
        mean(f"catalogues-{setting}", method)
        for setting, method in (("m2o", "alike"), ("damaged", "alike"), ("damaged", "dds"))
    )
    assert f"| {learned:.2f} |" in page
    assert f"{(learned - damaged) / (clean - damaged):.0%} |" in page
    judged = [run["found"] for run in runs if "found" in run]
    assert len(judged) == 3
    assert all(f"{found['auc of trust']:.2f}" in page for found in judged)
