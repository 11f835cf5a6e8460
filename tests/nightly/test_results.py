"""The page of results is what the files under results/ say, counted a second time and in another way."""

import json
import re
import subprocess
import sys
from collections import defaultdict
from statistics import correlation, fmean

import bleu_counts
import dirty_results
import pytest
import readme_picture
from conftest import ROOT

pytestmark = [
    pytest.mark.nightly(part="results"),
    pytest.mark.claim("The method", "the page of results is what the files of the runs say"),
]


RESULTS = ROOT / "results"
FILES = sorted([*RESULTS.glob("study/*.json"), *RESULTS.glob("domains/*.json")])
STATIC = {
    "proportional",
    "temperature-3",
    "temperature-5",
    "temperature-10",
    "uniform",
    "unimax",
    "proportional-to-uniform",
    "cooldown",
    "reverse-cooldown",
}


def runs():
    """[(setting, method, seed, dev score, test score, is it a loss)]"""
    for path in FILES:
        run, loss = json.loads(path.read_text()), path.parent.name == "domains"
        config = run["config"]
        about = (
            (f"domains, {config['regime']}", config["method"], config["seed"])
            if loss
            else (run["setting"], run["method"], run["seed"])
        )
        key = "loss" if loss else "bleu"
        yield (*about, *(fmean(one[key] for one in run[part].values()) for part in ("dev", "test")), loss)


def test_the_page_of_results_is_up_to_date():
    subprocess.run([sys.executable, ROOT / "experiments" / "results.py", "--check"], check=True)


def test_the_table_of_the_readme_is_that_of_the_files():
    """Counted a second time: the difference between the learned mixture and the fixed one that the row names."""
    subprocess.run([sys.executable, ROOT / "experiments" / "learned_results.py", "--check"], check=True)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"\n\| [^|]*(goal|data)[^|]* \| (\S+) \((.*?)\) \| \S+ \| \*\*(\S+)\*\* \| (\S+)% ± .* \| (\d) \|", text
    )
    assert len(rows) == 5
    found = defaultdict(dict)
    for path in RESULTS.glob("learned/*.json"):
        run = json.loads(path.read_text())
        config = run["config"]
        found[config["regime"], config["method"]][config["seed"]] = fmean(one["loss"] for one in run["test"].values())
    regimes = ("goal", "goal-elsewhere", "unwanted", "under-trained", "data-limited")
    for regime, (_, fixed, rival, learned, change, seeds) in zip(regimes, rows, strict=True):
        ours, theirs = found[regime, "learned"], found[regime, rival.replace(" ", "-")]
        common = ours.keys() & theirs.keys()
        assert int(seeds) == len(common)
        mine, other = (fmean(losses[seed] for seed in common) for losses in (ours, theirs))
        assert (float(fixed), float(learned)) == pytest.approx((other, mine), abs=6e-4)
        assert float(change) == pytest.approx(100 * (mine - other) / other, abs=0.06)


def test_the_summary_of_results_is_that_of_the_files():
    found = list(runs())
    (summary,) = re.findall(r"(?s)without learning\n\n(.*?)\n\n", (ROOT / "docs" / "results.md").read_text())
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in summary.splitlines()[2:]]
    assert {row[0] for row in rows} == {setting for setting, method, *_ in found if method == "anchored"}
    for setting, rival, gain, *_ in rows:
        here = [run for run in found if run[0] == setting]
        loss = here[0][5]

        def mean(method, column, seeds, here=here):
            return fmean(run[column] for run in here if run[1] == method and run[2] in seeds)

        def common(methods, here=here):
            return [
                seed for seed in range(1, 20) if all((method, seed) in {run[1:3] for run in here} for method in methods)
            ]

        static = {run[1] for run in here} & STATIC
        seeds = common(static)
        assert rival == (min if loss else max)(static, key=lambda method: mean(method, 3, seeds))
        both = common(["anchored", rival])
        ours, theirs = mean("anchored", 4, both), mean(rival, 4, both)
        assert f", {len(both)} seed" in gain
        expected = 100 * (theirs - ours) / theirs if loss else ours - theirs
        assert float(gain.split()[0].rstrip("%")) == pytest.approx(expected, abs=0.006)


def test_the_mean_gain_is_that_of_the_rows():
    page = (ROOT / "docs" / "results.md").read_text()
    (summary,) = re.findall(r"(?s)without learning\n\n(.*?)\n\n", page)
    gains = [float(row.split("|")[3].split()[0]) for row in summary.splitlines()[2:] if "%" not in row]
    (mean, count) = re.search(r"against its rivals: (\S+) BLEU .* over the (\d+) settings", page).groups()
    assert int(count) == len(gains)
    assert float(mean) == pytest.approx(fmean(gains), abs=0.011)


GAINS = sorted(RESULTS.glob("marginal-gains.*.json"))


@pytest.mark.parametrize("path", GAINS, ids=lambda path: path.stem)
def test_correlations_with_measured_gains_are_those_of_the_files(path):
    """Of the signal that the default uses, the first row of each table."""
    (shown,) = re.findall(
        rf"\n\*\*{path.name.split('.')[1]}\*\*, at .*?which the default uses \| (\S+), (\S+) \| (\S+), (\S+) ",
        (ROOT / "docs" / "results.md").read_text(),
        re.DOTALL,
    )
    expected = []
    for measure in ("loss", "expected"):
        found = []
        for moment in json.loads(path.read_text())["moments"]:
            one, other = moment["signals"]["loss | mean of cosines | averaged | all"]
            tables = [row for repeat in moment["gains"][measure] for row in repeat]  # of each repeat and dev set
            gains = [fmean(column) for column in zip(*tables, strict=True)]
            found.append(correlation([a + b for a, b in zip(one, other, strict=True)], gains))
        expected += [fmean(found), min(found)]
    assert list(map(float, shown)) == pytest.approx(expected, abs=0.006)


@pytest.mark.parametrize("path", [*FILES, *sorted(RESULTS.glob("learned/*.json"))], ids=lambda path: path.stem)
def test_a_file_of_results_is_whole_and_has_no_paths(path):
    text = path.read_text()
    run = json.loads(text)
    assert not re.search(r"/root|/home|/work|data/|runs/", text)
    assert run["versions"]["commit"]
    if path.parent.name == "study":
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
    results = json.loads(dirty_results.RESULTS.read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "dirty-data.md").read_text(encoding="utf-8")
    assert dirty_results.table(results) in page
    runs = results["runs"]

    def mean(of):
        found = [fmean(pair["bleu"] for pair in run["pairs"].values()) for name, run in runs.items() if of in name]
        assert len(found) == 3
        return fmean(found)

    clean, damaged, learned = (mean(of) for of in ("m2o/alike", "damaged/alike", "damaged/dds"))
    assert f"| {learned:.2f} |" in page
    assert f"{(learned - damaged) / (clean - damaged):.0%} |" in page
    for run in (run for name, run in runs.items() if "damaged/dds" in name):
        assert f"{run['found']['auc of trust']:.2f}" in page
