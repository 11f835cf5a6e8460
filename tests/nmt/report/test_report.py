import csv
import json
import re
import shutil
import statistics
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from made_runs import make_run, read_lines, report, write_records
from toy_runs import mistake

from multidds import Update
from multidds._base.errors import UserError
from multidds._base.escaping import text_of_csv
from multidds.history import save_history
from multidds.nmt.commands import cli
from multidds.nmt.config.config import MixtureSettings
from multidds.nmt.evaluation.significance import compare
from multidds.nmt.report import tables
from multidds.nmt.report.runs import find_runs, label_of, settings_of

RELATED = [f"{language}-eng" for language in ("aze", "bel", "glg", "slk", "tur", "rus", "por", "ces")]
DIVERSE = [f"eng-{language}" for language in ("bos", "mar", "hin", "mkd", "ell", "bul", "fra", "kor")]
HUNDRED = [f"l{i:02}-eng" for i in range(100)]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
HOSTILE = "<script>alert(1)</script> & \\input{x} [red]"


def one_setting(folders):
    (setting,) = settings_of(find_runs(folders)[0])
    return setting


def settings_table(title, made):
    """A table of a finished report, read back from its CSV file."""
    with (made / "tables" / f"{title}.csv").open(encoding="utf-8", newline="") as file:
        columns, *rows = [list(map(text_of_csv, row)) for row in csv.reader(file)]
    return [dict(zip(columns, row, strict=True)) for row in rows]


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """The paper's experiments on two of its settings, written by hand; and a hundred datasets."""
    folder = tmp_path_factory.mktemp("runs")
    step_ahead = {"method": "multidds", "step_ahead": 0.001}
    for setting, names in (("m2o-related", RELATED), ("o2m-diverse", DIVERSE)):
        made = folder / setting
        make_run(made / "uniform", names, setting, prior="uniform", quality=0.5)
        make_run(made / "temperature", names, setting, prior="temperature", quality=0.52)
        make_run(made / "proportional", names, setting, quality=0.55)
        for seed in (1, 2) if setting == "o2m-diverse" else (1,):
            make_run(made / f"multidds-{seed}", names, setting, seed=seed, quality=0.6, **step_ahead)
            make_run(made / f"multidds-s-{seed}", names, setting, seed=seed, method="multidds-s", quality=0.62)
    for priority in ("low", "high"):
        make_run(folder / "o2m-diverse" / priority, DIVERSE, "o2m-diverse", method="multidds-s", priority=priority,
                 switch_epoch=10)  # fmt: skip
    make_run(folder / "m2o-related" / "moving-average", RELATED, "m2o-related", method="moving-average", quality=0.58)
    return folder


@pytest.fixture(scope="session")
def made(runs, tmp_path_factory):
    """The report on them."""
    return report([runs], tmp_path_factory.mktemp("report") / "report").page.parent


def test_the_runs_of_these_tests_have_the_keys_of_real_ones(tiny, tmp_path):
    made = make_run(tmp_path / "by-hand", ["mirror-base", "shift-base"], method="multidds-s")
    real, by_hand = (read_lines(run) for run in (tiny / "runs" / "tiny", made))
    for kind in ("start", "step", "update", "validation"):
        keys = [next(set(record) for record in records if record["kind"] == kind) for records in (real, by_hand)]
        assert keys[0] == keys[1], kind
    for file in ("config.json", "scores.json"):
        keys = [set(json.loads((run / file).read_text())) for run in (tiny / "runs" / "tiny", made)]
        assert keys[1] <= keys[0], file
    (sentence,) = report([tiny / "runs" / "tiny"], tmp_path / "report").summaries
    assert re.match(
        r"prepared: learned: 24 updates in 600 steps; .*\d+% of the draws.*: \w+-base \d+% → \d+%", sentence
    )


# ------------------------------------------------------------------------------------------ what runs are called


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        ({"method": "static"}, "proportional"),
        ({"method": "static", "prior": "temperature", "temperature": 2.5}, "temperature 2.5"),
        ({"method": "static", "prior": "unimax"}, "UniMax 4"),
        ({"method": "multidds"}, "MultiDDS"),
        ({"method": "multidds", "step_ahead": 0.001}, "MultiDDS, step-ahead"),
        ({"method": "multidds", "step_ahead": 0.01}, "MultiDDS, step-ahead 0.01"),
        ({"method": "multidds-s", "priority": "low"}, "MultiDDS-S, low priority"),
        ({"method": "multidds-s", "priority": {"a-b": 1.0}}, "MultiDDS-S, own priority"),
        ({"method": "multidds-s", "prior": "uniform"}, "MultiDDS-S, from uniform"),
        ({}, "learned"),
        ({"prior": "temperature"}, "learned, from temperature 5"),
        ({"method": "shuffled"}, "shuffled rewards"),
        ({"method": "static", "prior": "planned"}, "planned"),
        ({"method": "static", "schedule": "proportional-to-uniform"}, "proportional to uniform"),
    ],
)
def test_a_method_is_called_what_its_config_says(settings, label):
    assert label_of(MixtureSettings(**settings)) == label


def test_runs_that_differ_in_more_than_their_label_are_told_apart(tmp_path):
    make_run(tmp_path / "a", RELATED, method="multidds-s")
    make_run(tmp_path / "b", RELATED, method="multidds-s", every=7)
    make_run(tmp_path / "c", RELATED, method="multidds-s", seed=2)
    make_run(tmp_path / "d", RELATED)
    assert one_setting([tmp_path]).labels == ["proportional", "MultiDDS-S", "MultiDDS-S (mixture.every = 7)"]


def test_a_run_that_is_there_twice_counts_once_and_is_named(tmp_path):
    for name in "ab":
        make_run(tmp_path / name, RELATED)
    setting = one_setting([tmp_path])
    assert [run.folder.name for run in setting.runs] == ["a"]
    note = tables.list_of_runs([setting]).notes[0]
    assert re.search(r"b repeats the method and seed of .*a, which stands", note)
    assert one_setting([tmp_path / "a", tmp_path / "a", tmp_path]).repeated[0].folder.name == "b"


def test_of_two_runs_alike_the_finished_one_stays(tmp_path):
    for name, finished in (("a", ""), ("b", "60 steps"), ("c", "60 steps")):
        make_run(tmp_path / name, RELATED, finished=finished)
    setting = one_setting([tmp_path])
    assert [run.folder.name for run in setting.runs] == ["b"]
    assert [run.folder.name for run in setting.repeated] == ["a", "c"]
    assert re.search(r"a repeats .*b, which is finished and stands", tables.list_of_runs([setting]).notes[0])


def test_settings_of_the_same_name_with_other_pairs_are_not_compared(tmp_path):
    make_run(tmp_path / "a", RELATED, "s")
    make_run(tmp_path / "b", RELATED[:3], "s")
    names = [setting.name for setting in settings_of(find_runs([tmp_path])[0])]
    assert names == ["s (8 pairs from aze-eng)", "s (3 pairs from aze-eng)"]


# ------------------------------------------------------------------------------------------ the figures in the tables


def test_statistics_are_those_of_the_records(runs, made):
    """Recomputed here from the files, with nothing of the report's own code."""
    scores = {path.parent: json.loads(path.read_text()) for path in runs.rglob("scores.json")}
    diverse = {path.name: facts for path, facts in scores.items() if path.parent.name == "o2m-diverse"}
    averages = [
        statistics.fmean(pair["bleu"] for pair in diverse[f"multidds-s-{seed}"]["pairs"].values()) for seed in (1, 2)
    ]
    (row,) = (row for row in settings_table("methods.o2m-diverse", made) if row["pair"] == "average")
    assert float(row["MultiDDS-S"]) == pytest.approx(sum(averages) / 2)
    proportional = diverse["proportional"]["pairs"]
    assert float(row["proportional"]) == pytest.approx(sum(pair["bleu"] for pair in proportional.values()) / 8)
    low = statistics.fmean(pair["bleu"] for pair in diverse["low"]["pairs"].values())
    assert float(row["MultiDDS-S, low priority"]) == pytest.approx(low)

    rows = {Path(row["folder"]).name: row for row in settings_table("runs", made) if row["setting"] == "o2m-diverse"}
    records = read_lines(runs / "o2m-diverse" / "multidds-s-2")
    row, clock = rows["multidds-s-2"], records[-1]["clock"]
    updates = [record["seconds"] for record in records if record["kind"] == "update"]
    assert float(row["updates (% of steps)"]) == pytest.approx(100 * sum(updates) / clock["steps"])


def test_stars_are_those_of_the_command_line_of_sacrebleu(runs, made):
    rows = {row["pair"]: row for row in settings_table("languages.m2o-related", made)}
    stars = []
    ours, theirs = runs / "m2o-related" / "multidds-s-1", runs / "m2o-related" / "proportional"
    for pair in RELATED[:4]:
        command = [sys.executable, "-m", "sacrebleu", theirs / "references" / f"{pair}.txt", "-i",
                   theirs / "hypotheses" / f"{pair}.txt", ours / "hypotheses" / f"{pair}.txt", "-m", "bleu",
                   "--paired-bs", "--paired-bs-n", "1000", "--format", "json"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        baseline, system = json.loads(done.stdout)
        assert float(rows[pair]["p"]) == pytest.approx(system["BLEU"]["p_value"], abs=1e-9)
        assert float(rows[pair]["MultiDDS-S"]) == pytest.approx(system["BLEU"]["score"], abs=0.005)
        assert float(rows[pair]["proportional"]) == pytest.approx(baseline["BLEU"]["score"], abs=0.005)
        stars.append(system["BLEU"]["p_value"] < 0.05)
    setting = next(setting for setting in settings_of(find_runs([runs])[0]) if setting.name == "m2o-related")
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
    for setting in settings_of(find_runs([runs])[0]):
        means = {label: setting.mean_bleu(label) for label in ("uniform", "temperature 5", "proportional")}
        assert setting.best_baseline == max(means, key=means.get)


def test_what_learning_found_is_compared_with_leaving_data_out_by_hand(tmp_path):
    names = RELATED[:3]
    by_hand = dict(zip(names, (0.5, 0.5, 0.0), strict=True))
    make_run(tmp_path / "a", names, prior="uniform", quality=0.4)
    make_run(tmp_path / "b", names, prior="explicit", probabilities=by_hand, quality=0.8)
    make_run(tmp_path / "c", names, method="learned", quality=0.6)
    setting = one_setting([tmp_path])
    assert setting.best_baseline == "uniform"
    assert setting.best_by_hand == f"without {names[2]}"
    bleu = {label: setting.mean_bleu(label) for label in setting.labels}
    way = (bleu["learned"] - bleu["uniform"]) / (bleu[setting.best_by_hand] - bleu["uniform"])
    (sentence,) = tables.findings(setting)
    assert f"{way:.0%} of the way from uniform" in sentence
    lines = read_lines(tmp_path / "c")
    for line in lines:
        if line["kind"] == "update" and line["step"] >= 30:
            line["mixture"] = dict(zip(names, (0.6, 0.39, 0.01), strict=True))
    write_records(tmp_path / "c", lines)
    found, _ = tables.findings(one_setting([tmp_path]))
    assert f"from {names[2]} from step 30 on" in found


def test_averages_follow_the_priority_and_say_so(tmp_path):
    """A mixture for one language is judged by that language, and so are the static ones beside it."""
    own = {"bel-eng": 2.0, "aze-eng": 1.0}
    make_run(tmp_path / "a", RELATED[:3], quality=0.5)
    make_run(tmp_path / "b", RELATED[:3], prior="uniform", quality=0.55, priority=own)
    make_run(tmp_path / "c", RELATED[:3], method="multidds-s", quality=0.7, priority=own)
    make_run(tmp_path / "d", RELATED[:3], method="learned", quality=0.6, priority=own)
    setting = one_setting([tmp_path])
    for name, run in {run.folder.name: run for run in setting.runs}.items():
        scores = json.loads((tmp_path / name / "scores.json").read_text())["pairs"]
        expected = (2 * scores["bel-eng"]["bleu"] + scores["aze-eng"]["bleu"]) / 3
        assert run.bleu == pytest.approx(expected)
    assert tables.main_method(setting) == "learned, own priority"
    table = tables.by_language(setting, compare)
    learned = next(run for run in setting.runs if run.folder.name == "d")
    assert table.rows[-1]["learned"].number == pytest.approx(learned.bleu)
    assert "priority: aze-eng 1, bel-eng 2." in " ".join(table.notes)
    summary = tables.summary(setting, table)
    assert f"mean BLEU, weighted by the priority: learned, own priority {learned.bleu:.2f}, uniform" in summary
    assert summary.endswith("of 2 that count.")
    make_run(tmp_path / "e", RELATED[:3], method="multidds", priority={"glg-eng": 1.0})
    setting = one_setting([tmp_path])
    assert setting.weights == dict.fromkeys(RELATED[:3], 1.0)
    assert "alike: the runs have different priorities" in " ".join(tables.by_language(setting, compare).notes)


# ------------------------------------------------------------------------------------------ missing pieces, odd input


def test_what_has_no_content_is_left_out(tmp_path):
    make_run(tmp_path / "a", RELATED[:1], method="multidds-s", updates=1, scored=False, finished="")
    made = report([tmp_path / "a"], tmp_path / "out")
    page = made.page.read_text(encoding="utf-8")
    headings = re.findall(r"<h[23][^>]*>(.*?)</h[23]>", page)
    assert headings == ["What the mixture did", "Which data helps which goal?", "s: sentence pairs", "Runs", "The runs"]
    for word in ("No run", "It takes", "nothing to compare", "missing"):
        assert word not in page.replace("const missing", "").replace("what is missing", "")
    assert made.summaries == [
        "s: MultiDDS-S: 1 update in 10 steps; the plan moved 2% of the draws, learning 8% more: aze-eng 100% → 100%."
    ]


def test_a_score_of_zero_is_a_score(tmp_path):
    """A model that has hardly been trained gets it, as in `make demo SCALE=tiny`."""
    for name, mixture in (("a", {}), ("b", {"method": "multidds-s"})):
        make_run(tmp_path / name, RELATED[:1], **mixture)
    setting = one_setting([tmp_path])
    for run in setting.runs:
        run.scores["pairs"][RELATED[0]]["bleu"] = 0.0
    compared = {RELATED[0]: {"bleu": 0.0, "against": 0.0, "p": 1.0}}
    table = tables.by_language(setting, lambda *folders: compared)
    assert tables.summary(setting, table).startswith("s: MultiDDS-S 0.00 BLEU on average, proportional 0.00 (+0.00)")
    assert [row["BLEU"].text for row in tables.list_of_runs([setting]).rows] == ["0.00", "0.00"]


def test_a_run_in_progress_is_read_up_to_its_last_whole_line(tmp_path):
    folder = make_run(tmp_path / "a", RELATED, method="multidds-s", finished="")
    with (folder / "records.jsonl").open("a") as file:
        file.write('{"kind": "update", "st')
    assert one_setting([folder]).runs[0].finished == ""
    with (folder / "records.jsonl").open("a") as file:
        file.write("\n")
    with pytest.raises(UserError, match=r"records.jsonl:\d+: is damaged or of another version"):
        find_runs([folder])


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


def test_text_of_a_config_is_escaped_everywhere(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "a", RELATED[:2], HOSTILE)
    make_run(tmp_path / "b", RELATED[:2], HOSTILE, method="multidds-s")
    cli.report([Path("a"), Path("b")], Path("out"))
    assert HOSTILE in capsys.readouterr().out  # rich markup is shown, not obeyed
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


# ------------------------------------------------------------------------------------------ the page


class Checked(HTMLParser):
    """Counts ids and remembers what a page asks the network for."""

    def __init__(self):
        super().__init__()
        self.ids, self.asked = Counter(), []

    def handle_starttag(self, tag, attributes):
        for key, value in attributes:
            if key == "id":
                self.ids[value] += 1
            if key in ("src", "srcset", "action") or (key == "href" and tag == "link"):
                self.asked.append(value)


def test_the_page_is_one_small_file_that_asks_the_network_for_nothing(made):
    text = (made / "report.html").read_text(encoding="utf-8")
    assert len(text.encode()) < 5_000_000
    page = Checked()
    page.feed(text)
    assert [url for url in page.asked if not url.startswith("data:")] == []
    assert "@import" not in text
    assert re.findall(r"url\((?!#)", text) == []
    assert [name for name, count in page.ids.items() if count > 1] == []
    anchors = set(re.findall(r'href="#([^"]+)"', text))
    assert anchors <= set(page.ids)
    for target in re.findall(r'href="((?:tables|figures)/[^"]+)"', text):
        assert (made / target).stat().st_size > 0


def test_reports_are_the_same_byte_for_byte(tmp_path):
    run = make_run(tmp_path / "run", RELATED[:2], updates=3, method="multidds-s", scored=False)
    for name in ("one", "two"):
        report([run], tmp_path / name)
    for path in (tmp_path / "one").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes(), path


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (.ci/run installs Debian's)")
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync"]  # fmt: skip
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser):
    """A function that opens a page at a width and a colour scheme; script errors and requests fail the test."""
    problems = []

    def open_page(path, width, scheme):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on(
            "request",
            lambda request: problems.append(request.url) if not request.url.startswith(("file:", "data:")) else None,
        )
        page.goto(path.as_uri())
        return page

    yield open_page
    assert problems == []


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (800, "dark"), (1400, "dark")])
@pytest.mark.slow
def test_in_a_browser_every_chart_can_be_read(opened, made, width, scheme):
    page = opened(made / "report.html", width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width  # nothing makes the page scroll sideways
    charts = page.locator(".chart")
    assert charts.count() > 15
    for found in charts.evaluate_all("""charts => charts.map(chart => {
            const outer = chart.closest("figure").getBoundingClientRect();
            const texts = [...chart.querySelectorAll("span, b, p")].filter(t => t.textContent && !t.closest(".wide"));
            const labels = [...chart.querySelectorAll(".x")].map(t => t.getBoundingClientRect());
            return {kind: chart.className, legend: chart.querySelectorAll(".legend li").length,
                    drawn: chart.querySelectorAll("path, tbody td").length,
                    ticks: chart.querySelectorAll(".x").length,
                    smallest: Math.min(...texts.map(t => parseFloat(getComputedStyle(t).fontSize))),
                    inside: texts.every(t => { const box = t.getBoundingClientRect();
                                               return box.left >= outer.left - 1 && box.right <= outer.right + 1; }),
                    apart: labels.every((box, i) => i === 0 || box.left > labels[i - 1].right),
                    width: outer.width, title: chart.closest("section, figure").textContent.slice(0, 60)};
        })"""):
        assert found["drawn"] >= 1, found
        assert found["legend"] >= 1 or "heat" in found["kind"], found
        assert found["ticks"] >= 2 or "heat" in found["kind"], found
        assert found["smallest"] >= 11, found
        assert found["inside"], found
        assert found["apart"], found
        assert found["width"] >= 300, found
    colours = page.evaluate("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]")
    bright = [sum(map(int, re.findall(r"\d+", colour)[:3])) / 3 for colour in colours]
    assert (bright[0] < 60) == (scheme == "dark")
    assert abs(bright[0] - bright[1]) > 150


@pytest.mark.slow
def test_in_a_browser_a_pointer_and_keys_show_the_values(opened, runs, made):
    page = opened(made / "report.html", 1000, "light")
    plot, tip = page.locator(".chart.area .plot").first, page.locator("#tip")
    assert tip.is_hidden()
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 0.99 * box["width"], box["y"] + 20)
    records = read_lines(runs / "m2o-related" / "multidds-s-1")
    mixtures = [record["mixture"] for record in records if record["kind"] == "update"]
    step, *rows = tip.inner_text().split("\n")
    assert step == "step 110"  # a mixture holds until the next one
    shown = dict(zip(rows[::2], rows[1::2], strict=True))
    assert {name: float(share.rstrip("%")) for name, share in shown.items()} == pytest.approx(
        {name: 100 * share for name, share in mixtures[-2].items()}, rel=0.05, abs=0.06
    )
    page.mouse.move(2, 2)
    assert tip.is_hidden()
    plot.focus()
    page.keyboard.press("ArrowRight")
    assert tip.inner_text().startswith("step 120")
    page.keyboard.press("ArrowLeft")
    assert tip.inner_text().startswith("step 110")


@pytest.mark.slow
def test_in_a_browser_the_slider_goes_through_the_alignment(opened, runs, made):
    page = opened(made / "report.html", 1000, "dark")
    heat = page.locator(".chart.heat").first
    tables = [r["alignment"] for r in read_lines(runs / "m2o-related" / "multidds-s-1") if r["kind"] == "update"]
    for number in (11, 0):
        heat.locator("input").fill(str(number))
        assert heat.locator("output").inner_text() == str(10 * (number + 1))
        names = heat.locator("tbody th").all_inner_texts()
        columns = heat.locator("thead th").all_inner_texts()
        cells = [float(text) for text in heat.locator("tbody td").all_inner_texts()]
        places = [RELATED.index(name) for name in columns]
        expected = [tables[number]["cosines"][RELATED.index(name)][i] for name in names for i in places]
        assert cells == pytest.approx(expected, abs=0.006)


@pytest.mark.slow
def test_in_a_browser_hostile_names_are_text(opened, tmp_path):
    names = ["<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", '"&amp;']
    for run in ("a", "b"):
        given = [
            Update(step=10 * i, mixture=dict(zip(names, (0.2 + i / 50, 0.5 - i / 50, 0.3), strict=True)),
                   rewards=dict.fromkeys(names, 0.1), dev_losses=dict.fromkeys(names, 1.0), train_losses={}, weights={},
                   alignment=None, seconds=0.1) for i in (1, 2, 3)
        ]  # fmt: skip
        (tmp_path / run).mkdir()
        save_history(given, tmp_path / run, start=given[0].mixture)
    page = opened(report([tmp_path], tmp_path / "out").page, 800, "light")
    plot = page.locator(".chart.area .plot").first
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 50, box["y"] + 50)
    assert all(name in page.locator("#tip").inner_text() for name in names)
    assert set(names) <= set(page.locator(".legend span").all_inner_texts())
    assert page.locator("img").count() == 0


@pytest.mark.slow
def test_in_a_browser_tables_sort_by_numbers_and_back(opened, made):
    page = opened(made / "report.html", 1000, "light")
    table = page.locator(f"[id='languages.{'m2o-related'}'] table")
    column = 4
    cells = f"tbody tr td:nth-child({column})"
    assert table.locator("tbody tr").last.locator("td").first.inner_text() == "average"
    button = table.locator(f"thead th:nth-child({column}) button")
    for direction in ("ascending", "descending"):
        button.click()
        values = [float(text.rstrip("*")) for text in table.locator(cells).all_inner_texts()][:-1]
        assert values == sorted(values, reverse=direction == "descending")
        assert table.locator(f"thead th:nth-child({column})").get_attribute("aria-sort") == direction
        assert table.locator("tbody tr").last.locator("td").first.inner_text() == "average"
    table.locator("thead th:nth-child(1) button").click()
    names = table.locator("tbody tr td:nth-child(1)").all_inner_texts()[:-1]
    assert names == sorted(names)


@pytest.fixture(scope="module")
def hundred(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hundred")
    make_run(folder / "a", HUNDRED, "hundred", updates=6, scored=False)
    make_run(folder / "b", HUNDRED, "hundred", updates=30, scored=False, method="multidds-s")
    return report([folder / "a", folder / "b"], folder / "out").page


@pytest.mark.parametrize("width", [360, 1400])
@pytest.mark.slow
def test_in_a_browser_a_hundred_datasets_stay_readable(opened, hundred, width):
    assert hundred.stat().st_size < 5_000_000
    page = opened(hundred, width, "light")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".chart.area .legend").first.locator("li").count() == 9  # what moved most, and all others
