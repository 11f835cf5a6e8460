"""The documentation site: it builds without a warning, every link in it leads somewhere, and it needs no network."""

import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from urllib.parse import unquote, urlsplit

import pytest
from conftest import ROOT
from sphinx.util.inventory import InventoryFile

pytestmark = [pytest.mark.nightly(part="site")]

PUBLIC = (
    "multidds",
    "multidds.integrations.huggingface",
    "multidds.integrations.trl",
    "multidds.integrations.sentence_transformers",
    "multidds.integrations.lightning",
)


class Page(HTMLParser):
    """What a page links to, what it loads, and what can be linked to in it."""

    def __init__(self, file):
        super().__init__()
        self.links, self.loaded, self.anchors = [], [], {""}
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors.add(found.get("id", ""))
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload", "preconnect"):
            self.loaded.append(found["href"])
        elif "src" in found:
            self.loaded.append(found["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (built.returncode, built.stderr) == (0, "")
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {file.resolve(): Page(file) for file in site.rglob("*.html")}


def test_every_link_of_the_site_leads_somewhere(site, pages):
    count = 0
    for file, page in pages.items():
        for link in (*page.links, *page.loaded):
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            assert target.is_file(), f"{file.relative_to(site)}: {link}"
            if target in pages and parts.fragment:
                assert unquote(parts.fragment) in pages[target].anchors, f"{file.relative_to(site)}: {link}"
            count += 1
    assert count > 1000


def test_the_site_needs_no_network(site, pages):
    for file, page in pages.items():
        assert not [address for address in page.loaded if urlsplit(address).netloc], file.name
    for style in site.rglob("*.css"):
        assert "url(http" not in style.read_text(encoding="utf-8").replace('"', ""), style.name


def test_in_a_browser_no_code_is_cut_off(site):
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("Chromium is not installed (.ci/run installs Debian's)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for width in (1300, 1400, 1600):
            page = browser.new_page(viewport={"width": width, "height": 900})
            for file in sorted(site.glob("*.html")):
                page.goto(file.as_uri())
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (file.name, width)
                cut = (
                    "blocks => blocks.filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.textContent)"
                )
                assert page.locator("pre").evaluate_all(cut) == [], (file.name, width)


def test_every_public_name_is_in_the_reference(site):
    with (site / "objects.inv").open("rb") as file:
        documented = InventoryFile.load(file, "", lambda base, name: name)
    names = {name for kind in documented.values() for name in kind}
    for module in PUBLIC:
        public = getattr(import_module(module), "__all__", None) or ["balance"]
        missing = [name for name in public if f"{module}.{name}" not in names]
        assert not missing, (module, missing)
