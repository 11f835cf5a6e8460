import csv
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from made_runs import RELATED, make_run, paper_runs, read_lines, report
from toy_runs import mistake

from multidds._base.errors import UserError
from multidds._base.escaping import text_of_csv
from multidds.commands.cli import run
from multidds.nmt import report as application
from multidds.nmt.evaluation.significance import compare
from multidds.nmt.report import tables
from multidds.nmt.report.runs import Setting
from multidds.report.run import find_runs, groups_of

HOSTILE = "<script>alert(1)</script> & \\input{x} [red]"


def settings_of(folders):
    return [Setting(name, members) for name, members in groups_of(find_runs(folders, application.read))]


def one_setting(folders):
    (setting,) = settings_of(folders)
    return setting


def settings_table(title, made):
    """A table of a finished report, read back from its CSV file."""
    with (made / "tables" / f"{title}.csv").open(encoding="utf-8", newline="") as file:
        columns, *rows = [list(map(text_of_csv, row)) for row in csv.reader(file)]
    return [dict(zip(columns, row, strict=True)) for row in rows]


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    return paper_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def made(runs, tmp_path_factory):
    """The report on them."""
    return report([runs], tmp_path_factory.mktemp("report") / "report").page.parent


def test_the_runs_of_these_tests_have_the_keys_of_real_ones(tiny, tmp_path):
    made = make_run(tmp_path / "by-hand", ["mirror-base", "shift-base"], method="multidds-s")
    real, by_hand = (read_lines(run) for run in (tiny / "runs" / "tiny", made))
    for kind in ("start", "step", "validation"):
        keys = [next(set(record) for record in records if record["kind"] == kind) for records in (real, by_hand)]
        assert keys[0] == keys[1], kind
    real, by_hand = (read_lines(run, "mixture.jsonl") for run in (tiny / "runs" / "tiny", made))
    for key in ("run", "reward", "eval_loss"):  # of a start, an update and a validation
        keys = [next(set(line) for line in lines if key in line) for lines in (real, by_hand)]
        assert keys[0] - {"noise", "signal", "worth", "worth_error", "held"} == keys[1], key  # not of the paper's rule
    for file in ("config.json", "scores.json"):
        keys = [set(json.loads((run / file).read_text())) for run in (tiny / "runs" / "tiny", made)]
        assert keys[1] <= keys[0], file
    sentence, *shares, note = report([tiny / "runs" / "tiny"], tmp_path / "report").summaries
    assert len(shares) == 1 + len(json.loads((tiny / "runs" / "tiny" / "config.json").read_text())["pairs"])
    assert note.startswith("Which dataset could be dropped?")
    assert re.match(r"prepared: tiny: 24 updates in 600 steps; .*\d+% of the draws.*: \w+-base \d+% → \d+%", sentence)


# ------------------------------------------------------------------------------------------ what runs are called


def test_a_method_is_called_what_its_folder_is_called(tmp_path):
    for folder in ("a/seed-1", "a/seed-2", "b", "c"):
        make_run(tmp_path / folder, RELATED, method="static" if folder == "c" else "learned")
    setting = one_setting([tmp_path])
    assert {method: [run.seed for run in runs] for method, runs in setting.methods.items()} == {
        "a": [1, 2],
        "b": [1],
        "c": [1],
    }
    assert setting.methods["a"][1].label == "a, seed 2"


def test_methods_of_one_name_are_called_by_their_folders(tmp_path):
    for folder in ("x/learned", "y/learned", "uniform"):
        make_run(tmp_path / folder, RELATED)
    setting = one_setting([tmp_path])
    assert set(setting.methods) == {str(tmp_path / "x/learned"), str(tmp_path / "y/learned"), "uniform"}


def test_a_run_that_is_given_twice_counts_once(tmp_path):
    make_run(tmp_path / "a", RELATED)
    assert len(find_runs([tmp_path / "a", tmp_path, tmp_path / "a"])) == 1


def test_the_main_method_is_the_one_of_the_default_and_of_the_priority(tmp_path):
    own = {"bel-eng": 1.0}
    methods = {"a": {"method": "shuffled"}, "b": {"method": "multidds-s"}, "c": {"method": "learned"}, "d": {}}
    for name, mixture in methods.items():
        make_run(tmp_path / "1" / name, RELATED, **mixture)
        make_run(tmp_path / "2" / name, RELATED, priority=own if name in "ab" else "regular", **mixture)
    assert one_setting([tmp_path / "1"]).main == "c"
    assert one_setting([tmp_path / "2"]).main == "b"


def test_settings_of_the_same_name_with_other_pairs_are_not_compared(tmp_path):
    make_run(tmp_path / "a", RELATED, "s")
    make_run(tmp_path / "b", RELATED[:3], "s")
    make_run(tmp_path / "c", RELATED, "other")
    names = [name for name, _ in groups_of(find_runs([tmp_path], application.read))]
    assert names == ["s (8 from aze-eng)", "s (3 from aze-eng)", "other"]


# ------------------------------------------------------------------------------------------ the figures in the tables


def test_statistics_are_those_of_the_records(runs, made):
    """Recomputed here from the files, with nothing of the report's own code."""
    scores = {path.parent: json.loads(path.read_text()) for path in runs.rglob("scores.json")}
    diverse = {path.name: facts for path, facts in scores.items() if path.parent.name == "o2m-diverse"}
    seeds = [facts for path, facts in scores.items() if path.parent == runs / "o2m-diverse" / "multidds-s"]
    averages = [statistics.fmean(pair["bleu"] for pair in facts["pairs"].values()) for facts in seeds]
    assert len(averages) == 2
    (row,) = (row for row in settings_table("methods.o2m-diverse", made) if row["pair"] == "average")
    assert float(row["multidds-s"]) == pytest.approx(sum(averages) / 2)
    proportional = diverse["proportional"]["pairs"]
    assert float(row["proportional"]) == pytest.approx(sum(pair["bleu"] for pair in proportional.values()) / 8)
    low = statistics.fmean(pair["bleu"] for pair in diverse["low"]["pairs"].values())
    assert float(row["low"]) == pytest.approx(low)

    rows = {Path(row["folder"]): row for row in settings_table("runs", made)}
    folder = runs / "o2m-diverse" / "multidds-s" / "seed-2"
    row, clock = rows[folder], read_lines(folder)[-1]["clock"]
    assert (row["method"], row["seed"], row["setting"]) == ("multidds-s", "2.0", "o2m-diverse")
    assert float(row["updates (% of steps)"]) == pytest.approx(100 * clock["updates"] / clock["steps"])


def test_stars_are_those_of_the_command_line_of_sacrebleu(runs, made):
    rows = {row["pair"]: row for row in settings_table("languages.m2o-related", made)}
    stars = []
    ours, theirs = runs / "m2o-related" / "multidds-s" / "seed-1", runs / "m2o-related" / "proportional"
    for pair in RELATED[:4]:
        command = [sys.executable, "-m", "sacrebleu", theirs / "references" / f"{pair}.txt", "-i",
                   theirs / "hypotheses" / f"{pair}.txt", ours / "hypotheses" / f"{pair}.txt", "-m", "bleu",
                   "--paired-bs", "--paired-bs-n", "1000", "--format", "json"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        baseline, system = json.loads(done.stdout)
        assert float(rows[pair]["p"]) == pytest.approx(system["BLEU"]["p_value"], abs=1e-9)
        assert float(rows[pair]["multidds-s"]) == pytest.approx(system["BLEU"]["score"], abs=0.005)
        assert float(rows[pair]["proportional"]) == pytest.approx(baseline["BLEU"]["score"], abs=0.005)
        stars.append(system["BLEU"]["p_value"] < 0.05)
    setting = next(setting for setting in settings_of([runs]) if setting.name == "m2o-related")
    table = tables.by_language(setting, compare)
    assert [row["baseline"].star or row["learned"].star for row in table.rows[:4]] == stars
    assert any(stars), "the test should see a star"


@pytest.mark.parametrize(
    ("ours", "theirs", "p", "marks"),
    [  # bold and star of the baseline, bold and star of the learned mixture
        (40.0, 50.0, 0.01, (True, True, False, False)),
        (60.0, 50.0, 0.01, (False, False, True, True)),
        (60.0, 50.0, 0.05, (False, False, True, False)),
        (50.0, 50.0, 0.9, (False, False, False, False)),
    ],
)
def test_the_better_one_is_bold_and_starred_whichever_it_is(tmp_path, ours, theirs, p, marks):
    make_run(tmp_path / "a", ["a-b"])
    make_run(tmp_path / "b", ["a-b"], method="multidds-s")
    compared = {"a-b": {"bleu": ours, "against": theirs, "p": p}}
    row = tables.by_language(one_setting([tmp_path]), lambda *folders: compared).rows[0]
    both = (row["baseline"], row["learned"])
    assert tuple(mark for cell in both for mark in (cell.bold, cell.star)) == marks


def test_the_best_baseline_is_the_static_method_with_the_best_average(runs):
    for setting in settings_of([runs]):
        means = {method: setting.bleu(method) for method in ("uniform", "temperature", "proportional")}
        assert setting.best_static() == max(means, key=means.get)


def test_what_learning_found_is_compared_with_leaving_data_out_by_hand(tmp_path):
    names = RELATED[:3]
    by_hand = dict(zip(names, (0.5, 0.5, 0.0), strict=True))
    make_run(tmp_path / "a", names, prior="uniform", quality=0.4)
    make_run(tmp_path / "b", names, prior="explicit", probabilities=by_hand, quality=0.8)
    make_run(tmp_path / "c", names, method="learned", quality=0.6)
    setting = one_setting([tmp_path])
    assert (setting.best_static(), setting.best_static(by_hand=True)) == ("a", "b")
    bleu = {method: setting.bleu(method) for method in "abc"}
    way = (bleu["c"] - bleu["a"]) / (bleu["b"] - bleu["a"])
    (sentence,) = tables.findings(setting)
    assert sentence == f"b, by hand: {bleu['b']:.2f} BLEU; c is {way:.0%} of the way from a to it."


def test_averages_follow_the_priority_and_say_so(tmp_path):
    """A mixture for one language is judged by that language, and so are the static ones beside it."""
    own = {"bel-eng": 2.0, "aze-eng": 1.0}
    make_run(tmp_path / "a", RELATED[:3], quality=0.5)
    make_run(tmp_path / "b", RELATED[:3], prior="uniform", quality=0.55, priority=own)
    make_run(tmp_path / "c", RELATED[:3], method="multidds-s", quality=0.7, priority=own)
    make_run(tmp_path / "d", RELATED[:3], method="learned", quality=0.6, priority=own)
    setting = one_setting([tmp_path])
    for name in "abcd":
        scores = json.loads((tmp_path / name / "scores.json").read_text())["pairs"]
        expected = (2 * scores["bel-eng"]["bleu"] + scores["aze-eng"]["bleu"]) / 3
        assert setting.bleu(name) == pytest.approx(expected)
    assert setting.main == "d"
    table = tables.by_language(setting, compare)
    assert table.rows[-1]["learned"].number == pytest.approx(setting.bleu("d"))
    assert "priority: aze-eng 1, bel-eng 2." in " ".join(table.notes)
    summary = tables.summary(setting, table)
    assert f"mean BLEU, weighted by the priority: d {setting.bleu('d'):.2f}, b " in summary
    assert summary.endswith("of 2 that count.")
    make_run(tmp_path / "e", RELATED[:3], method="multidds", priority={"glg-eng": 1.0})
    setting = one_setting([tmp_path])
    assert setting.weights == dict.fromkeys(RELATED[:3], 1.0)
    assert "alike: the runs have different priorities" in " ".join(tables.by_language(setting, compare).notes)


@pytest.mark.parametrize(("score", "stars"), [(0.99, 0), (1.01, 1)])
def test_scores_at_noise_level_get_no_star(tmp_path, score, stars):
    make_run(tmp_path / "a", ["a-b"])
    make_run(tmp_path / "b", ["a-b"], method="multidds-s")
    compared = {"a-b": {"bleu": score, "against": 0.1, "p": 0.001}}
    setting = one_setting([tmp_path])
    table = tables.by_language(setting, lambda *folders: compared)
    assert sum(cell.star for row in table.rows for cell in row.values()) == stars
    assert f"significantly better in {stars} and worse in 0 of 1" in tables.summary(setting, table)


def test_a_run_without_an_update_is_planned_not_learned(tmp_path):
    make_run(tmp_path / "uniform", ["a-b"])
    make_run(tmp_path / "learned", ["a-b"], method="learned", updates=0)
    setting = one_setting([tmp_path])
    compared = {"a-b": {"bleu": 12.0, "against": 11.0, "p": 0.5}}
    table = tables.by_language(setting, lambda *folders: compared)
    assert table.columns["learned"] == "learned (planned)"
    assert setting.methods["learned"][0].sentence().startswith("learned (planned): planned, no update yet")


def test_a_run_that_watches_is_no_learned_one(tmp_path):
    make_run(tmp_path / "uniform", ["a-b"])
    make_run(tmp_path / "watch", ["a-b"], method="watch")
    assert one_setting([tmp_path]).main is None


def test_averages_of_seeds_have_intervals(tmp_path):
    for seed, quality in ((1, 0.6), (2, 0.7), (3, 0.65)):
        make_run(tmp_path / "learned" / f"seed-{seed}", RELATED[:2], seed=seed, method="learned", quality=quality)
        make_run(tmp_path / "uniform" / f"seed-{seed}", RELATED[:2], seed=seed, quality=quality - 0.2)
    setting = one_setting([tmp_path])
    ours, theirs = (setting.bleu_by_seed(method) for method in ("learned", "uniform"))
    table = tables.by_language(setting, compare)
    half = 4.30 * statistics.stdev(ours) / 3**0.5
    assert table.rows[-1]["learned"].text == f"{statistics.fmean(ours):.2f} ± {half:.2f}"
    pooled = ((statistics.variance(ours) + statistics.variance(theirs)) / 2) ** 0.5
    difference = f"{statistics.fmean(ours) - statistics.fmean(theirs):+.2f} ± {2.78 * pooled * (2 / 3) ** 0.5:.2f}"
    assert table.rows[-1]["difference"].text == difference
    sentence = tables.summary(setting, table)
    assert f"({difference}); of the first seeds significantly" in sentence


def test_runs_of_the_same_settings_but_the_seed_are_seeds_of_one_method(tmp_path):
    for name, seed in (("a", 1), ("b", 2), ("c", 7)):
        make_run(tmp_path / name, RELATED[:2], seed=seed, method="learned")
    make_run(tmp_path / "other", RELATED[:2], seed=3, method="learned", train={"lr": 0.1})
    make_run(tmp_path / "uniform", RELATED[:2], seed=1)
    methods = one_setting([tmp_path]).methods
    assert {method: [run.seed for run in runs] for method, runs in methods.items()} == {
        "a": [1, 2, 7],
        "other": [1],
        "uniform": [1],
    }


def test_runs_without_scores_and_without_a_validation_are_named(tmp_path):
    make_run(tmp_path / "uniform", RELATED[:2])
    make_run(tmp_path / "learned", RELATED[:2], method="learned")
    make_run(tmp_path / "young", RELATED[:2], method="multidds", updates=2, scored=False, finished="")
    printed = report([tmp_path], tmp_path / "out").summaries
    assert "Not evaluated on the test sets: young." in printed
    assert "Without an evaluation yet: young." in printed
    assert "3 runs: learned, young, uniform." in printed


# ------------------------------------------------------------------------------------------ missing pieces, odd input


def test_what_has_no_content_is_left_out(tmp_path):
    make_run(tmp_path / "a", RELATED[:1], method="multidds-s", updates=1, scored=False, finished="")
    made = report([tmp_path / "a"], tmp_path / "out")
    page = made.page.read_text(encoding="utf-8")
    headings = re.findall(r"<h[23][^>]*>(.*?)</h[23]>", page)
    charts = ["Why these shares (a, step 10)?", "What the mixture did", "Which data helps which goal?"]
    assert headings == [*charts, "s: sentence pairs", "a: the mixture", "Runs", "The runs"]
    for word in ("No run", "It takes", "nothing to compare", "missing"):
        assert word not in page.replace("const missing", "").replace("what is missing", "")
    summary, _, share = made.summaries
    assert (
        summary == "s: a: 1 update in 10 steps; the plan moved 2% of the draws, learning 8% more: aze-eng 100% → 100%."
    )
    assert share.startswith("aze-eng 100%: reward 0.")


def test_a_score_of_zero_is_a_score(tmp_path):
    """A model that has hardly been trained gets it, as in `make demo SCALE=tiny`."""
    for name, mixture in (("a", {}), ("b", {"method": "multidds-s"})):
        make_run(tmp_path / name, RELATED[:1], **mixture)
    setting = one_setting([tmp_path])
    both = [setting.methods[name][0] for name in "ab"]
    for one in both:
        one.scores["pairs"][RELATED[0]]["bleu"] = 0.0
    compared = {RELATED[0]: {"bleu": 0.0, "against": 0.0, "p": 1.0}}
    table = tables.by_language(setting, lambda *folders: compared)
    assert tables.summary(setting, table).startswith("s: b 0.00 BLEU on average, a 0.00 (+0.00)")
    assert [row["BLEU"].text for row in tables.list_of_runs([setting.methods[name][0] for name in "ab"]).rows] == [
        "0.00",
        "0.00",
    ]


def test_a_run_in_progress_is_read_up_to_its_last_whole_line(tmp_path):
    folder = make_run(tmp_path / "a", RELATED, method="multidds-s", finished="")
    for name, begun in (("records.jsonl", '{"kind": "step", "st'), ("mixture.jsonl", '{"step": 130, "mix')):
        with (folder / name).open("a") as file:
            file.write(begun)
        assert one_setting([folder]).methods["a"][0].finished == ""
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content + b"\n")
        with pytest.raises(UserError, match=rf"{name}:\d+: is damaged or of another version"):
            find_runs([folder], application.read)
        (folder / name).write_bytes(content)


def test_mistakes_are_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "a", RELATED[:1], scored=False)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for arguments, message in [
        (["nowhere"], "nowhere: there is no such folder"),
        (["empty"], "empty: is not a run"),
        (["a", "-o", "a"], "a: is a run; .*-o"),
        (["a", "-o", "file"], "file: is not a folder; .*-o"),
    ]:
        assert re.match(message, mistake("report", *arguments))


def test_a_run_of_the_version_before_is_one_line(tmp_path, monkeypatch):
    folder = make_run(tmp_path / "a", RELATED, method="multidds-s")
    (folder / "mixture.jsonl").unlink()
    assert re.search("a: is not a run, and there is none below it.*mixture.jsonl", mistake("report", folder))


def test_text_of_a_config_is_escaped_everywhere(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "a", RELATED[:2], HOSTILE)
    make_run(tmp_path / "b", RELATED[:2], HOSTILE, method="multidds-s")
    run(["report", "a", "b", "-o", "out"])
    assert HOSTILE in capsys.readouterr().out
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert all(re.fullmatch(r"[\w.=-]+", path.name) for path in (tmp_path / "out").rglob("*"))


def test_text_of_a_config_is_no_formula_in_csv(tmp_path):
    setting = "=HYPERLINK(1)"
    make_run(tmp_path / "a", RELATED[:2], setting)
    make_run(tmp_path / "b", RELATED[:2], setting, method="multidds-s")
    report([tmp_path], tmp_path / "out")
    content = [path.read_text(encoding="utf-8") for path in (tmp_path / "out" / "tables").glob("*.csv")]
    assert any("'=HYPERLINK" in text for text in content)
    assert not any(re.search(r"(^|,|\n)\"?=", text) for text in content)
    assert {row["setting"] for row in settings_table("runs", tmp_path / "out")} == {setting}
