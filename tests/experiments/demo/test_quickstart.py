"""`make demo` and every command of docs/quickstart.md, on a tiny scale and on wheels made here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from snippets import blocks
from wheels import make_wheels

QUICKSTART = ROOT / "docs" / "quickstart.md"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder like a clone, where the demo may write; its packages come from a folder."""
    folder = tmp_path_factory.mktemp("quickstart")
    for name in ("Makefile", "recipes", "experiments", "docs"):
        (folder / name).symlink_to(ROOT / name)
    make_wheels(folder / "wheels")
    return folder


def run(command, place):
    """A command of the page. Only what makes it small, offline and ready is added to it."""
    bin_folder = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(place / "wheels"),
    }
    if command == "make demo":
        command += f" SCALE=tiny CATALOGUES=wheels/list.toml BIN={bin_folder} READY="
    command = command.replace(".venv/bin/multidds", "multidds").replace("runs/demo/", "runs/demo-tiny/")
    done = subprocess.run(command, shell=True, cwd=place, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def demo(place):
    return run("make demo", place)


def test_the_demo_ends_with_the_table_the_page_and_an_invitation(demo, place):
    last = demo[demo.index("BLEU per language pair") :]
    for pair in ("aze-eng", "tur-eng", "bel-eng", "rus-eng", "average"):
        assert pair in last
    assert "runs/demo-tiny/report/report.html" in last
    assert "multidds translate runs/demo-tiny/untranslated/learned/seed-1 --from tur" in demo
    assert "by hand" in last
    assert (place / "runs/demo-tiny/report/report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_a_second_call_of_the_demo_uses_what_is_there(demo, place):
    kept = {path: path.stat().st_mtime_ns for part in ("data", "runs/demo-tiny/untranslated")
            for path in (place / part).rglob("*") if path.is_file()}  # fmt: skip
    again = run("make demo", place)
    assert again[again.index("BLEU per language pair") :] == demo[demo.index("BLEU per language pair") :]
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


@pytest.mark.slow
def test_every_command_of_the_quickstart_works(demo, place):
    demo_block, translate_block, own_block = blocks(QUICKSTART, "console")
    assert demo_block.strip() == "make demo"  # the fixture has run it
    assert run(translate_block.strip(), place).count("\n") == 1
    (section,) = blocks(QUICKSTART, "toml")
    recipe = (ROOT / "experiments" / "demo" / "catalogues.toml").read_text(encoding="utf-8")
    small = """
[vocabulary]
kind = "joint"
size = 120
[model]
encoder_layers = 1
decoder_layers = 1
width = 16
inner = 32
[train]
max_steps = 12
warmup = 5
tokens = 600
batch_tokens = 300
[mixture]
every = 5
probe_tokens = 300
[translate]
beam = 1
"""
    assert recipe.index("[data]") < recipe.index("[vocabulary]")
    (place / "mine.toml").write_text(section + small)
    (place / "data" / "mine").symlink_to(place / "data" / "catalogues-tiny")
    for command in own_block.strip().splitlines():
        run(command, place)
    assert (place / "report" / "report.html").exists()
