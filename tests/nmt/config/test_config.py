import re
import sys
import tomllib

import pytest
from conftest import ROOT

from multidds._base.errors import UserError
from multidds.nmt.config.config import Config, load_config, parse_config
from multidds.nmt.config.config_diff import changed_keys

RECIPES = [*sorted((ROOT / "recipes").glob("*.toml")), ROOT / "experiments" / "demo" / "catalogues.toml"]
REFERENCE = ROOT / "recipes" / "reference.toml"
MINIMAL = """
[data]
folder = "prepared"
pairs = ["aze-eng", "bel-eng"]
train = "{many}/train.{lang}"
dev = "{many}/dev.{lang}"
"""


@pytest.fixture(autouse=True)
def usual_recursion_limit():
    """Some libraries raise the limit when they are imported, and nested values are then read."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


def config(text=MINIMAL, *overrides, tmp_path):
    path = tmp_path / "r.toml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, overrides)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_every_recipe_is_valid(path):
    load_config(path)


def test_every_key_stands_with_a_comment_in_the_reference():
    text = REFERENCE.read_text(encoding="utf-8")
    table = tomllib.loads(text)
    for section, field in Config.model_fields.items():
        for key in field.annotation.model_fields:
            assert key in table[section], f"[{section}] {key}"
    for line in text.splitlines():
        if "=" in line and not line.startswith("#"):
            assert "#" in line, line


def test_the_reference_has_the_defaults_and_the_other_recipes_what_differs():
    own = {"folder", "pairs", "train", "dev", "test"}  # keys without a default
    reference = tomllib.loads(REFERENCE.read_text(encoding="utf-8"))
    given = {key: value for key, value in reference["data"].items() if key in own}
    assert load_config(REFERENCE) == parse_config({"data": given}, "the defaults")
    assert len(RECIPES) > 5
    for path in RECIPES:
        if path != REFERENCE:
            for section, keys in tomllib.loads(path.read_text(encoding="utf-8")).items():
                repeated = {key for key, value in keys.items() if value == reference[section][key]}
                assert repeated <= own, f"{path.name}: [{section}] {repeated}"


def test_directions_are_read_off_the_pairs(tmp_path):
    for pairs, direction in (
        ('["aze-eng", "bel-eng"]', "many-to-one"),
        ('["eng-aze", "eng-bel"]', "one-to-many"),
        ('["aze-eng", "eng-aze"]', "many-to-many"),
        ('["aze-eng"]', "many-to-one"),
        ('[{source = "pt-br", target = "eng"}]', "many-to-one"),
        ('["../x y-中文"]', "many-to-one"),
    ):
        read = config(MINIMAL.replace('["aze-eng", "bel-eng"]', pairs), tmp_path=tmp_path)
        assert read.data.direction == direction


def test_overrides_are_toml_or_bare_words(tmp_path):
    read = config(
        MINIMAL,
        "train.lr=2e-3",
        'mixture.method="static"',
        "mixture.prior=uniform",
        "mixture.scorer.floor=0",
        "mixture.priority={aze-eng = 1.0}",
        "data.header=false",
        tmp_path=tmp_path,
    )
    assert read.train.lr == 2e-3
    assert (read.mixture.method, read.mixture.prior, read.mixture.scorer.floor) == ("static", "uniform", 0)
    assert read.mixture.priority == {"aze-eng": 1.0}
    assert read.data.header is False


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.max_step=5"], "[train] has no key 'max_step'. Did you mean 'max_steps'?"),
        (["trian.lr=5"], "has no section 'trian'. Did you mean 'train'?"),
        (["mixture.schedule=cooldown"], "[mixture] a schedule needs method = 'static', but it is 'learned'."),
        (["mixture.scorer.lrr=5"], "[mixture.scorer] has no key 'lrr'. Did you mean 'lr'?"),
        (["train.lr=fast"], "[train] lr: input should be a valid number"),
        (["train.max_epochs=1.5"], "[train] max_epochs: input should be a valid integer"),
        (["train.lr=-1"], "[train] lr: input should be greater than 0, but it is -1."),
        (["train.lr=nan"], "[train] lr: input should be a finite number"),
        (["model.dropout=1.0"], "[model] dropout: input should be less than 1, but it is 1.0."),
        (["model.heads=3"], "width must be even and a multiple of heads, but it is 512 with 3 heads"),
        (
            ["mixture.method=multidds2"],
            "[mixture] method: input should be 'static', 'learned', 'watch', 'shuffled', 'multidds', ",
        ),
        (["mixture.priority=lwo"], "got 'lwo'. Did you mean 'low'?"),
        (["mixture.priority=bel-eng"], "or weights such as {bel-eng = 1.0}, got 'bel-eng'."),
        (["mixture.priority={aze-en=1}"], "there is no language pair 'aze-en'. Did you mean 'aze-eng'?"),
        (["mixture.priority={xx-eng=1}"], "there is no language pair 'xx-eng'. There are 'aze-eng', "),
        (["mixture.priority={aze-eng=0}"], "[mixture] priority: at least one must be above 0"),
        (["mixture.priority={aze-eng=-1}"], "must not be negative, nor above 1e100, but 'aze-eng' is -1"),
        (["mixture.prior=explicit", "mixture.probabilities={aze-eng=1}"], "'bel-eng' is missing; there are 'aze-eng'"),
        (["train.batch_tokens=100"], "[train] batch_tokens = 100 is smaller than the longest sentence, 152 tokens"),
        (["mixture.probe_tokens=9"], "[mixture] probe_tokens = 9 is smaller than the longest sentence"),
        (["train.tokens=200"], "tokens (per step) must be at least batch_tokens, but they are 200 and 4800"),
        (['data.pairs=["azeeng"]'], "'azeeng' is not a language pair; write 'source-target'"),
        (['data.pairs=["a-b-c"]'], "where a code has a hyphen"),
        (['data.pairs=["aze-eng", "aze-eng"]'], "[data] the language pair 'aze-eng' is there twice"),
        (['data.pairs=["eng-eng"]'], "translates a language into itself"),
        (['data.pairs=[{source="", target="eng"}]'], "source: string should have at least 1 character"),
        (
            ['data.pairs=["A-eng", "a-eng"]'],
            "[data] 'A-eng' and 'a-eng' differ only in case, which not all file systems",
        ),
        (['data.pairs=["x-A", "y-a"]'], "[data] 'A' and 'a' differ only in case"),
        (["data.pairs=[]"], "[data] pairs: tuple should have at least 1 item"),
        (['train.max_steps="5"'], "[train] max_steps: input should be a valid integer"),
        (["train.max_steps=true"], "[train] max_steps: input should be a valid integer"),
        (["model.width=64.0"], "[model] width: input should be a valid integer"),
        (["data.header=1"], "[data] header: input should be a valid boolean"),
        (["data.max_ratio=0.5"], "max_ratio must be 0 (off) or at least 1, but it is 0.5"),
        (["train.max_epochs=99999999999"], "[train] max_epochs: input should be less than or equal to 1000000000"),
        (["vocabulary.size=99999999999"], "[vocabulary] size: input should be less than or equal to 1000000"),
        (["lr=5"], "--set lr=5: expected section.key=value."),
        (["train.max_steps=" + 5000 * "9"], "--set train.max_steps: the value is no number"),
        (["mixture.priority=" + 900 * "[" + 900 * "]"], "--set mixture.priority: the value is no number or text"),
        (["mixture.priority={aze-eng=1e308, bel-eng=1e308}"], "nor above 1e100, but 'aze-eng' is 1e+308"),
        (["mixture.probe_budget=1e-320"], "is too small for any probe"),
        (["train=5"], "--set train=5: expected section.key=value."),
        (["data.pairs.x.y=5"], "'pairs' is not a section"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(overrides, message, tmp_path):
    with pytest.raises(UserError) as error:
        config(MINIMAL, *overrides, tmp_path=tmp_path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_missing_or_no_toml_is_one_line(tmp_path):
    with pytest.raises(UserError, match="no.toml: there is no such file"):
        load_config(tmp_path / "no.toml")
    with pytest.raises(UserError, match="is a folder; give the recipe"):
        load_config(tmp_path)
    with pytest.raises(UserError, match="r.toml: not valid TOML"):
        config("[data\n", tmp_path=tmp_path)
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="b.toml: not valid TOML"):
        load_config(tmp_path / "b.toml")
    with pytest.raises(UserError, match="r.toml: needs the section 'data'"):
        config("", tmp_path=tmp_path)
    with pytest.raises(UserError, match=r"\[data\] needs the key 'train'"):
        config('[data]\nfolder = "x"\npairs = ["a-b"]\n', tmp_path=tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = " + 900 * "[" + 900 * "]", "not valid TOML: maximum recursion depth"),
        ("x = " + 5000 * "9", "not valid TOML: Exceeds the limit"),
    ],
)
def test_a_file_that_no_person_wrote_is_one_line_too(text, message, tmp_path):
    (tmp_path / "odd.toml").write_text(text)
    with pytest.raises(UserError, match=re.escape(message)):
        load_config(tmp_path / "odd.toml")


def test_changed_keys_are_named(tmp_path):
    old = config(tmp_path=tmp_path)
    assert changed_keys(old, old) == []
    new = config(MINIMAL, "train.lr=1", "mixture.scorer.lr=1", tmp_path=tmp_path)
    assert changed_keys(old, new) == ["train.lr", "mixture.scorer"]


def test_a_long_value_is_shown_in_part():
    table = {"data": {"folder": "x", "pairs": ["a-b"], "train": "t", "dev": "d", "max_ratio": "0 # " * 2000}}
    with pytest.raises(UserError, match=r"max_ratio: .* valid number, but it is '0 # .*\.\.\..* # '\.$") as found:
        parse_config(table, "r.toml")
    assert len(str(found.value)) < 200
