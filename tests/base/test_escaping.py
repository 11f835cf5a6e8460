"""Names in files, on terminals, in figures and pages; and a run whose languages have such names."""

import json
import re
from urllib.parse import unquote

import made_up_languages
import pytest
from conftest import ROOT, multidds
from hypothesis import given
from hypothesis import strategies as st
from made_runs import make_run, read_lines, report
from odd_names import NAMES
from toy_runs import SMALL

from multidds._base.escaping import csv_text, file_name, printable, text_of_csv
from multidds.nmt.config.config import load_config

text = st.text(st.characters(), min_size=1)  # surrogates too


def read_back(file):
    return unquote(file.replace("=", "%"), errors="surrogatepass")


@given(text)
def test_a_file_name_is_plain_and_can_be_read_back(name):
    file = file_name(name)
    assert re.fullmatch(r"[A-Za-z0-9_=][A-Za-z0-9._=~-]*", file)
    assert len(file) <= 120
    assert not file.endswith(".")
    assert ("~" in file) or read_back(file) == name


@given(st.text(st.sampled_from("=+-@'\t\ra1 "), max_size=5))
def test_a_cell_of_csv_is_no_formula_and_can_be_read_back(name):
    assert text_of_csv(csv_text(name)) == name
    assert len(name) < 2 or csv_text(name)[0] not in "=+-@\t\r"
    assert text_of_csv("-1.5") == "-1.5"


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_any_name_can_be_written(name, tmp_path):
    (tmp_path / f"{file_name(name)}.train.source.offsets.npy.partial").write_text("x")
    assert len(file_name(name)) == 113 if len(name) > 120 else read_back(file_name(name)) == name


@given(st.lists(text, min_size=2, unique=True))
def test_different_names_have_different_files(names):
    names += [file_name(name) for name in names]  # a name may look like the file of another
    assert len({file_name(name) for name in names}) == len(set(names))


def test_plain_names_are_their_own_files():
    for name in ("aze-eng", "eng_Latn-zho_Hans", "m2o.related"):
        assert file_name(name) == name
    assert file_name("my set") == "my=20set"
    assert file_name("x" * 300)[:81] == "x" * 80 + "~"
    assert file_name("x" * 300) != file_name("x" * 301)


@given(text)
def test_what_is_printed_has_no_control_characters(name):
    assert printable(name).isprintable()


@pytest.mark.filterwarnings("error")
@pytest.mark.slow
def test_a_report_of_odd_names_shows_them_as_text(tmp_path):
    pairs = [f"{name}-eng" for name in NAMES[:10]]
    make_run(tmp_path / "a", pairs, "</title>\x1b]0;")
    make_run(tmp_path / "b", pairs, "</title>\x1b]0;", method="multidds-s")
    for folder, setting in (("c", "a b"), ("d", "a/b")):  # each with files of its own
        make_run(tmp_path / folder, pairs[:1], setting, updates=1, scored=False)
    page = report([tmp_path], tmp_path / "out").page.read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert page.count("</title>") == 1
    assert "&lt;script&gt;alert(1)&lt;/script&gt;-eng" in page
    assert "中文-eng" in page
    for place in re.findall(r'href="((?:tables|figures)/[^"]+)"', page):
        assert (tmp_path / "out" / unquote(place)).stat().st_size > 0
    for path in (tmp_path / "out" / "figures").glob("*.svg"):
        assert "\x1b" not in path.read_text(encoding="utf-8"), path


SOURCES, TARGET = ("中文/../x $y$", "<script>_&\x1b]0;"), "[my] set"


@pytest.mark.slow
def test_languages_of_any_code_are_prepared_trained_and_reported(tmp_path):
    lexicon = made_up_languages.words()
    for split, size in (("train", 300), ("dev", 20), ("test", 10)):
        lines = [" ".join(lexicon[(i * 7 + j * i) % len(lexicon)] for j in range(1 + i % 5)) for i in range(size)]
        rows = [f"{made_up_languages.mirror(line)}\t{made_up_languages.shift(line)}\t{line}\n" for line in lines]
        (tmp_path / f"{split}.tsv").write_text("".join(rows))
    pairs = ", ".join(f"{{source = {json.dumps(s)}, target = {json.dumps(TARGET)}}}" for s in SOURCES)
    columns = ", ".join(f"{json.dumps(code)} = {i}" for i, code in enumerate((*SOURCES, TARGET)))
    overrides = [*SMALL, f"data.pairs=[{pairs}]", "data.format=tsv", "data.header=false", f"data.columns={{{columns}}}"]
    overrides += [f"data.{split}={split}.tsv" for split in ("train", "dev", "test")]
    overrides += ["data.folder=prepared", "mixture.method=moving-average", "train.mixing=batch", "mixture.sketch=0"]
    recipe = ROOT / "recipes" / "tiny.toml"
    sets = [word for override in overrides for word in ("--set", override)]
    done = multidds("prepare", recipe, *sets, cwd=tmp_path)
    assert "\x1b" not in done.stdout
    multidds("train", recipe, "--run", "a", *sets, "--set", "train.max_steps=12", cwd=tmp_path)
    for steps in (6, 12):  # the moving averages of names like these come back from a checkpoint
        multidds("train", recipe, "--run", "b", *sets, "--set", f"train.max_steps={steps}", cwd=tmp_path)
    last = [read_lines(tmp_path / run)[-1] for run in "ab"]
    assert last[0]["mixture"] == last[1]["mixture"]
    assert set(last[0]["mixture"]) == set(load_config(recipe, overrides).data.names)
    done = multidds("evaluate", "a", cwd=tmp_path)
    assert "\x1b" not in done.stdout
    assert len(list((tmp_path / "a" / "hypotheses").iterdir())) == 2
    multidds("translate", "a", "--from", SOURCES[0], cwd=tmp_path, input="b\n")
    done = multidds("report", "a", cwd=tmp_path)
    assert "\x1b" not in done.stdout
    assert "<script>_" not in (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    multidds("mixture", "a", "--for", "hf", cwd=tmp_path)
    refused = multidds("mixture", "a", "--for", "megatron", cwd=tmp_path, check=False)
    assert "megatron splits names at ' ', but one is '中文/../x $y$-[my] set" in refused.stderr
