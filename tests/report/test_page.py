"""The page of a report, as a file and in a browser."""

import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from made_runs import RELATED, make_run, paper_runs, report, updates_of
from updates import updates

from multidds import Update
from multidds.history import save_history

HUNDRED = [f"l{i:02}-eng" for i in range(100)]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    return paper_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def made(runs, tmp_path_factory):
    """The report on them."""
    return report([runs], tmp_path_factory.mktemp("report") / "report").page.parent


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
    mixtures = [update["mixture"] for update in updates_of(runs / "m2o-related" / "multidds-s" / "seed-1")]
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
    tables = [update["relevance"] for update in updates_of(runs / "m2o-related" / "multidds-s" / "seed-1")]
    for number in (11, 0):
        heat.locator("input").fill(str(number))
        assert heat.locator("output").inner_text() == str(10 * (number + 1))
        names = heat.locator("tbody th").all_inner_texts()
        columns = heat.locator("thead th").all_inner_texts()
        cells = [float(text) for text in heat.locator("tbody td").all_inner_texts()]
        expected = [tables[number][dev][name][0] for dev in names for name in columns]
        assert cells == pytest.approx(expected, abs=0.006)


def relevant(folder, dev=("x",)):
    """A plain loop whose updates estimated relevance and worth, in which cosines of single updates say the contrary."""
    given = [
        replace(update, relevance={d: {"a": (1.0, 0.1), "b": (-0.1 * i, 0.2)} for d in dev},
                weights=dict.fromkeys(dev, 1.0), rewards={"a": -0.3, "b": 0.7}, worth={"a": (0.9 - i / 10, 0.1)})
        for i, update in enumerate(updates("ab"))
    ]  # fmt: skip
    for i in range(1, 6):
        save_history(given[:i], folder, passes={"a": float(i), "b": 0.1})


def test_the_heat_map_and_the_curve_show_the_same_relevance(tmp_path):
    relevant(tmp_path / "run", ("x", "y"))
    made = report([tmp_path / "run"], tmp_path / "out")
    page = made.page.read_text(encoding="utf-8")
    charts = [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', page)]
    (heat,) = (chart for chart in charts if "tables" in chart)
    assert heat["tables"][-1] == [[1.0, 0.1], [-0.4, 0.2]] * 2
    curve = page[page.index("Relevance over time") :]
    (lines,) = re.findall(r'<script type="application/json">(.*?)</script>', curve)[:1]
    assert {one["name"]: one["y"][-1] for one in json.loads(lines)["series"]} == {"a": 1.0, "b": -0.4}
    table = (tmp_path / "out" / "tables" / "mixture.run.csv").read_text()
    assert table.splitlines()[0].endswith("change (points),passes")  # no reward of the last update
    switched = page.index("<summary>Rewards: cosines of single updates</summary>")
    assert "<details" in page[switched - 60 : switched]
    assert "0 the average one" in page
    assert "<h3>Rewards" not in page


def test_the_worth_of_one_more_pass_stands_beside_the_passes(tmp_path):
    relevant(tmp_path / "run")
    page = report([tmp_path / "run"], tmp_path / "out").page.read_text(encoding="utf-8")
    worth, passes = page.index('">worth<'), page.index('">passes<')
    assert page.index("What is one more pass worth?") < worth < passes
    assert page.count("<figure", worth, passes) == 0  # in one figure
    assert "Passes over the data" not in page


@pytest.mark.slow
def test_in_a_browser_a_switch_shows_the_cosines_of_single_updates(opened, tmp_path):
    relevant(tmp_path / "run")
    page = opened(report([tmp_path / "run"], tmp_path / "out").page, 1000, "light")
    cosines = page.locator("details.row-of-charts")
    assert cosines.locator(".plot").is_hidden()
    cosines.locator("summary").click()
    assert cosines.locator(".plot").is_visible()


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
