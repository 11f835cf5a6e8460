import hashlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import catalogues
import packages
import pytest
import wheels
from catalogues import SCRIPTS, language_of, read_all
from conftest import ROOT
from corpus import RELATED, build
from hypothesis import given
from hypothesis import strategies as st
from odd_toml import changed, one_line
from packages import read_list
from pairs import clean, normalised, split, tidy

from multidds._base.errors import UserError

SCRIPT = ROOT / "experiments" / "demo" / "corpus.py"
FOUR = "aze,bel,tur,rus"
RUSSIAN = "CYRILLIC"


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A folder with wheels and their list: what the registry is to users."""
    folder = tmp_path_factory.mktemp("shelf")
    wheels.make_wheels(folder)
    return folder


@pytest.fixture(scope="module")
def made(shelf, tmp_path_factory):
    """The corpus, by the command line."""
    folder = tmp_path_factory.mktemp("made") / "corpus"
    done = command(folder, shelf)
    return folder, done.stdout


def offline(shelf):
    return {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(shelf), "PIP_CONFIG_FILE": os.devnull}


def command(folder, shelf, *arguments, languages=FOUR, check=True):
    given = ["--languages", languages, "--list", shelf / "list.toml", *arguments]
    arguments = [sys.executable, SCRIPT, folder, *given]
    done = subprocess.run(list(map(str, arguments)), capture_output=True, text=True, env=offline(shelf))
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def refused(folder, shelf, *arguments, **kwargs):
    """The one line that a user gets."""
    done = command(folder, shelf, *arguments, check=False, **kwargs)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("experiments/demo/corpus.py: ")
    return done.stderr


def everything(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def cached(tmp_path, members, kind="gettext", spoil=lambda path: None):
    """A folder whose cache has one wheel already, and the list for it: no pip, and any content."""
    (tmp_path / "wheels").mkdir(parents=True)
    wheel = wheels.make_wheel(tmp_path / "wheels", "odd", "1.0", members)
    spoil(wheel)
    return tmp_path / "corpus", wheels.write_list(tmp_path / "list.toml", [(wheel, kind)])


def found(tmp_path, members, kind="gettext", language="rus"):
    """The pairs that are read from a wheel, and what was skipped."""
    wheel = wheels.make_wheel(tmp_path, "odd", "1.0", members)
    package = read_list(wheels.write_list(tmp_path / "list.toml", [(wheel, kind)])).package[0]
    try:
        read, skipped = read_all([(package, wheel)], [language])
    except UserError as error:
        assert "no translations" in str(error)
        return [], []
    return read[language], skipped


# ------------------------------------------------------------------------------------------ the whole corpus


def test_the_corpus_is_aligned_lines_with_counts_and_licences(made):
    folder, printed = made
    manifest = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
    assert sorted(manifest["languages"]) == sorted(FOUR.split(","))
    for language, facts in manifest["languages"].items():
        assert facts["read"] == facts["kept"] == wheels.SIZES[language]
        for name in ("train", "dev", "test"):
            sides = [(folder / f"{language}-eng" / f"{name}.{code}").read_text("utf-8") for code in ("eng", language)]
            english, other = (side.splitlines() for side in sides)
            assert len(english) == len(other) == facts[name]
            assert all(wheels.translated(a, language) == b for a, b in zip(english, other, strict=True))
            assert f"{facts[name]:,}" in printed
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "| phrases | 1.0 | MIT | gettext |" in text
    assert "The text belongs to its projects: phrases MIT, words MIT." in printed


def test_untranslated_training_pairs_are_copies_of_their_source_and_nothing_else_differs(made, shelf, tmp_path):
    whole, _ = made
    one, *others = FOUR.split(",")
    command(tmp_path / "broken", shelf, "--untranslated", one)
    before, after = everything(whole), everything(tmp_path / "broken")
    text = f"{one}-eng/train"
    assert after[f"{text}.eng"] == after[f"{text}.{one}"] == before[f"{text}.{one}"]
    differing = {name for name in before if before[name] != after[name]}
    assert differing == {f"{text}.eng", "corpus.json", "README.md"}
    assert f"on purpose: {one}" in after["README.md"].decode()
    refused_line = refused(tmp_path / "none", shelf, "--untranslated", "deu")
    assert "deu" in refused_line
    assert others[0] in refused_line


def test_no_held_out_english_sentence_is_in_any_training_file(made):
    folder, _ = made
    sets = {
        name: {normalised(t) for path in folder.glob(f"*-eng/{name}.eng") for t in path.read_text("utf-8").splitlines()}
        for name in ("train", "dev", "test")
    }
    assert all(sets.values())
    assert not sets["train"] & (sets["dev"] | sets["test"])
    assert not sets["dev"] & sets["test"]


def test_the_corpus_is_the_same_bytes_every_time_and_made_only_once(made, shelf, tmp_path):
    folder = made[0]
    printed = made[1].partition("Downloading words 2.0\n")[2]
    before, times = everything(folder), {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    assert command(folder, shelf, languages="rus,bel,tur,aze").stdout == printed
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*")} == times
    command(tmp_path / "again", shelf)
    assert everything(tmp_path / "again") == before


def test_another_request_rebuilds_and_an_edited_file_is_mended(shelf, made, tmp_path):
    folder = tmp_path / "corpus"
    shutil.copytree(made[0], folder)
    (folder / "aze-eng" / "dev.aze").write_text("something else\n")
    told = f"{folder}/aze-eng/dev.aze: is damaged (its checksum does not fit); making the corpus again.\n"
    assert command(folder, shelf).stderr == f"experiments/demo/corpus.py: {told}"
    assert everything(folder) == everything(made[0])
    command(folder, shelf, languages="tur,rus")
    assert sorted(p.name for p in folder.iterdir()) == ["README.md", "corpus.json", "rus-eng", "tur-eng"]


def test_a_damaged_manifest_is_one_line(shelf, made, tmp_path):
    folder = tmp_path / "corpus"
    shutil.copytree(made[0], folder)
    manifest = folder / "corpus.json"
    manifest.write_bytes(manifest.read_bytes().replace(b"aze", b"azf", 1))
    assert "corpus.json: is damaged (its checksum does not fit); move the folder away" in refused(folder, shelf)


def test_without_network_wheels_in_the_cache_are_enough(made, shelf, tmp_path):
    shutil.copytree(made[0].parent / "wheels", tmp_path / "wheels")
    (tmp_path / "nothing").mkdir()
    shutil.copy(shelf / "list.toml", tmp_path / "nothing")
    command(tmp_path / "corpus", tmp_path / "nothing")
    assert everything(tmp_path / "corpus") == everything(made[0])


def test_the_list_that_ships_is_valid_and_the_module_needs_no_torch():
    assert {p.name for p in read_list(None).package} >= {"django", "homeassistant"}
    code = "import sys, corpus; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=SCRIPT.parent, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    assert set(RELATED) <= SCRIPTS.keys()


# ------------------------------------------------------------------------------------------------- refusals


def test_pip_that_fails_is_one_line(shelf, tmp_path):
    (tmp_path / "empty").mkdir()
    shutil.copy(shelf / "list.toml", tmp_path / "empty")
    line = refused(tmp_path / "corpus", tmp_path / "empty")
    assert "phrases 1.0: pip could not download it: No matching distribution found for phrases==1.0." in line
    assert not (tmp_path / "corpus" / "corpus.json").exists()


def test_a_wheel_with_another_hash_is_named_with_both_hashes(shelf, tmp_path):
    wheel = wheels.make_wheel(tmp_path, "phrases", "1.0", {"other": "content"})
    wheels.write_list(tmp_path / "list.toml", [(wheel, "gettext")], sha256="0" * 64)
    line = refused(tmp_path / "corpus", tmp_path)
    actual = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert (
        f"phrases-1.0-py3-none-any.whl is not the wheel of the list: expected sha256 {'0' * 64}, found {actual}" in line
    )
    assert everything(tmp_path / "corpus") == {}


def test_a_wheel_in_the_cache_that_was_damaged_is_downloaded_again(made, shelf, tmp_path):
    shutil.copytree(made[0].parent / "wheels", tmp_path / "wheels")
    (tmp_path / "wheels" / "words-2.0-py3-none-any.whl").write_bytes(b"half a whe")
    command(tmp_path / "corpus", shelf)
    assert everything(tmp_path / "corpus") == everything(made[0])
    assert everything(tmp_path / "wheels") == everything(made[0].parent / "wheels")


def truncated(path):
    path.write_bytes(path.read_bytes()[:-40])


def flipped(path):
    data = bytearray(path.read_bytes())
    data[200:260] = bytes(60)
    path.write_bytes(data)


def encrypted(path):
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "message"), [(truncated, "damaged wheel"), (flipped, "damaged wheel"), (encrypted, "is encrypted")]
)
def test_a_damaged_or_encrypted_wheel_is_one_line(tmp_path, spoil, message):
    noise = "".join(random.Random(1).choices("abcdefgh \n", k=2000))
    folder, chosen = cached(tmp_path, {"locale/ru/LC_MESSAGES/a.po": noise}, spoil=spoil)
    with pytest.raises(UserError, match=message):
        build(folder, ["rus"], chosen)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[package]\n", "list.toml: not valid TOML"),
        ("", "needs the key 'package'"),
        ("package = []\n", "package: tuple should have at least 1 item"),
        ("[[packages]]\n", "has no key 'packages'. Did you mean 'package'?"),
        ('[[package]]\nname = "a"\n', "[package.0] needs the key 'version'"),
        ("GOOD\nlicense = 'MIT'\n", "[package.0] has no key 'license'. Did you mean 'licence'?"),
        ('GOOD\n[[package]]\nname = "--index-url=x"\n', "[package.1] name: string should match pattern"),
        ("GOOD".replace("GOOD", "GOODpython = 3.13\n"), "[package.0] python: input should be a valid string"),
    ],
)
def test_a_bad_list_is_one_line(tmp_path, text, message):
    good = f'[[package]]\nname = "a"\nversion = "1.0"\nsha256 = "{"0" * 64}"\nlicence = "MIT"\nkind = "json"\n'
    (tmp_path / "list.toml").write_text(text.replace("GOOD", good))
    with pytest.raises(UserError) as error:
        read_list(tmp_path / "list.toml")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@given(changed(Path(packages.__file__).with_suffix(".toml").read_text(encoding="utf-8")[:1500]))
def test_a_list_of_packages_is_valid_or_one_clear_line(shelf, content):
    path = shelf.parent / "odd.toml"
    path.write_bytes(content)
    try:
        read_list(path)
    except UserError as error:
        one_line(error, path)


@pytest.mark.slow
def test_unknown_missing_and_small_languages_are_one_line(made, shelf, tmp_path):
    for codes, message in (
        ("tur,xyzzy", "unknown language 'xyzzy'. Choose from aze, bel, bul,"),
        ("eng", "unknown language 'eng'."),
        (",", "name at least one"),
        ("ell,tur", "the packages have no translations into 'ell'. Leave it out."),
    ):
        assert message in refused(tmp_path / "c", shelf, languages=codes)
    wheels.make_wheels(tmp_path / "small", {"tur": 900, "aze": 349})
    line = refused(tmp_path / "c", tmp_path / "small", languages="aze,tur")
    assert (
        "aze has 349 usable pairs (349 English sentences): too few for dev and test sets of 100 and 150 pairs" in line
    )


def test_a_folder_with_anything_else_in_it_is_refused_and_left_alone(made, shelf, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    assert "holds 'thesis.tex', which 'experiments/demo/corpus.py' did not make" in refused(tmp_path / "mine", shelf)
    assert everything(tmp_path / "mine") == {"thesis.tex": b"years of work"}
    folder = tmp_path / "corpus"
    shutil.copytree(made[0], folder)
    (folder / "aze-eng" / "notes").write_text("mine")
    before = everything(folder)
    assert "holds 'aze-eng/notes'" in refused(folder, shelf, languages="tur,rus")
    assert everything(folder) == before
    (tmp_path / "file").write_text("")
    assert "is not a folder" in refused(tmp_path / "file", shelf)


# ---------------------------------------------------------------------------------------------- interruptions


@pytest.mark.parametrize("name", ["rename", "replace"])
def test_a_rebuild_that_is_interrupted_leaves_the_old_corpus(made, tmp_path, monkeypatch, name):
    folder, chosen = tmp_path / "corpus", tmp_path / "list.toml"
    shutil.copytree(made[0].parent / "wheels", tmp_path / "wheels")
    cache = sorted((tmp_path / "wheels").iterdir())
    wheels.write_list(chosen, list(zip(cache, ("gettext", "json"), strict=True)))
    build(folder, ["tur", "rus"], chosen)
    before = everything(folder)

    def interrupt(self, target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            build(folder, FOUR.split(","), chosen)
    assert everything(folder) == before
    folder.rename(tmp_path / "corpus.old")  # as if it had been killed between two renames
    build(folder, FOUR.split(","), chosen)
    assert everything(folder).keys() == everything(made[0]).keys()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_process_that_is_stopped_leaves_no_corpus(shelf, tmp_path, how):
    """While pip is at work: a pip that never ends stands in for a slow network."""
    (tmp_path / "slow" / "pip").mkdir(parents=True)
    (tmp_path / "slow" / "pip" / "__init__.py").write_text("")
    (tmp_path / "slow" / "pip" / "__main__.py").write_text(
        f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(3600)\n"
    )
    arguments = [sys.executable, str(SCRIPT), "corpus", "--list", str(shelf / "list.toml")]
    path = os.pathsep.join([str(tmp_path / "slow"), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        arguments,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        text=True,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert process.poll() is None
        time.sleep(0.05)
    busy = refused(tmp_path / "corpus", shelf)
    assert "another process is making a corpus there" in busy
    process.send_signal(how)
    error = process.communicate(timeout=300)[1]
    if how == signal.SIGKILL:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # the pip that our test has started
    else:
        assert process.returncode == 130
        assert error == "experiments/demo/corpus.py: stopped.\n"
    assert not (tmp_path / "corpus" / "corpus.json").exists()
    command(tmp_path / "corpus", shelf)


# ------------------------------------------------------------------------------------------------ catalogues


def test_fuzzy_and_obsolete_entries_are_left_out_and_contexts_ignored(tmp_path):
    text = wheels.po_text([("One", "Один")]) + (
        '\n#, fuzzy\nmsgid "Two"\nmsgstr "Два"\n\nmsgctxt "month"\nmsgid "May"\nmsgstr "Май"\n'
        '\nmsgid "Empty"\nmsgstr ""\n\n#~ msgid "Old"\n#~ msgstr "Старый"\n'
    )
    assert found(tmp_path, {"locale/ru/LC_MESSAGES/a.po": text})[0] == [("One", "Один"), ("May", "Май")]


@pytest.mark.parametrize(
    ("language", "code", "forms", "expected"),
    [
        ("tur", "tr", ["bir", "iki"], [("%d day", "bir"), ("%d days", "iki")]),
        ("kor", "ko", ["日"], [("%d days", "日")]),
        ("rus", "ru", ["день", "дня", "дней"], [("%d day", "день"), ("%d days", "дней")]),
        ("fas", "fa", ["a", "b", "c"], []),
    ],
)
def test_plural_forms_are_used_only_where_it_is_sure_which_is_which(tmp_path, language, code, forms, expected):
    lines = "".join(f'msgstr[{i}] "{form}"\n' for i, form in enumerate(forms))
    text = wheels.po_text([]) + f'\nmsgid "%d day"\nmsgid_plural "%d days"\n{lines}'
    assert found(tmp_path, {f"x/{code}/LC_MESSAGES/a.po": text}, language=language)[0] == expected
    binary = wheels.mo_bytes([("%d day\0%d days", "\0".join(forms))])
    assert found(tmp_path, {f"x/{code}/LC_MESSAGES/a.mo": binary}, language=language)[0] == expected


def test_the_plural_rule_is_never_evaluated(tmp_path):
    mark = tmp_path / "evaluated"
    rule = f"nplurals=2; plural=__import__('pathlib').Path('{mark}').touch();"
    text = wheels.po_text([("One", "Один")], rule)
    header = ("", f"Plural-Forms: {rule}\n")
    members = {"a/ru/LC_MESSAGES/a.po": text, "b/ru/LC_MESSAGES/a.mo": wheels.mo_bytes([("Two", "Два"), header])}
    assert found(tmp_path, members)[0] == [("One", "Один"), ("Two", "Два")]
    assert not mark.exists()


@pytest.mark.parametrize("suffix", ["po", "mo"])
def test_a_catalogue_that_spells_a_path_opens_no_file(tmp_path, suffix):
    secret = tmp_path / "secret"
    secret.write_bytes(wheels.po_text([("One", "Один")]).encode() if suffix == "po" else wheels.mo_bytes([("a", "b")]))
    assert found(tmp_path, {f"ru/LC_MESSAGES/a.{suffix}": str(secret)})[0] == []


def test_mo_strings_that_overlap_or_lie_outside_are_refused(tmp_path):
    bomb = struct.pack("<7I", 0x950412DE, 0, 1000, 28, 28, 0, 0) + struct.pack("<2I", 9000, 0) * 1000 + bytes(8000)
    outside = struct.pack("<7I", 0x950412DE, 0, 1, 28, 28, 0, 0) + struct.pack("<2I", 9, 2**32 - 1)
    many = struct.pack("<7I", 0x950412DE, 0, 2**32 - 1, 28, 28, 0, 0)
    members = {
        f"{i}/ru/LC_MESSAGES/a.mo": data for i, data in enumerate((bomb, outside, many, b"", b"\xde\x12\x04\x95"))
    }
    pairs, skipped = found(tmp_path, {**members, "ru/LC_MESSAGES/good.mo": wheels.mo_bytes([("One", "Один")])})
    assert pairs == [("One", "Один")]
    assert len(skipped) == 5
    assert all(line.endswith("not a valid .mo file") for line in skipped)


def test_json_is_aligned_by_its_keys(tmp_path):
    english = {"a": {"x": "Ex", "y": "Why"}, "b": "Bee", "c": ["list"], "d": "", "only": "English"}
    russian = {"b": "Пчела", "a": {"y": "Почему", "x": 3}, "c": ["список"], "d": "пусто", "e": "лишнее"}
    members = {
        "p/translations/en.json": json.dumps(english),
        "p/translations/ru.json": json.dumps(russian),
        "p/translations/sensor.en.json": '{"s": "State"}',
        "p/translations/sensor.ru.json": '{"s": "Состояние"}',
        "q/translations/ru.json": '{"a": "no English beside it"}',
    }
    pairs, skipped = found(tmp_path, members, "json")
    assert sorted(pairs) == [("Bee", "Пчела"), ("State", "Состояние"), ("Why", "Почему")]
    assert skipped == []


@pytest.mark.parametrize("text", ["{", "[" * 10**5, b"\xff\xfe", '{"a": ' * 10**5, "1" * 5000, '{"a": "\\ud800"}'])
def test_broken_json_files_are_skipped_and_listed(tmp_path, text):
    good = {"p/translations/en.json": '{"a": "One", "b": "Two"}', "p/translations/ru.json": '{"b": "Два"}'}
    pairs, skipped = found(
        tmp_path, {**good, "q/translations/en.json": '{"a": 1}', "q/translations/ru.json": text}, "json"
    )
    assert pairs == [("Two", "Два")]
    assert len(skipped) == (0 if "ud800" in str(text) else 1)


@pytest.mark.parametrize("text", ["{", "garbage here", 'msgid "a"\nmsgid "b"\nmsgstr "c"\n', b"\xff\xfe", b"\0" * 99])
def test_broken_po_files_are_skipped_and_listed(tmp_path, text):
    good = wheels.po_text([("One", "Один")])
    pairs, skipped = found(tmp_path, {"a/ru/LC_MESSAGES/a.po": text, "b/ru/LC_MESSAGES/b.po": good})
    assert pairs == [("One", "Один")]
    assert [line.rpartition(": ")[0] for line in skipped] == ["odd-1.0-py3-none-any.whl: a/ru/LC_MESSAGES/a.po"]


def test_every_variant_of_a_language_counts_except_in_another_script():
    for code in ("pt_BR", "pt-PT", "pt"):
        assert language_of(code) == "por"
    for code in ("az_Latn", "az@cyrillic", "en", "en_GB", "xx", "", "..", "LC_MESSAGES"):
        assert language_of(code) is None


# -------------------------------------------------------------------------------------------------- cleaning


@pytest.mark.parametrize(
    ("english", "other", "reason"),
    [
        ("Two words", "Два слова", "fewer than 3 English words"),
        ("{a} {b} {c} word", "{a} {b} {c} слово", "fewer than 3 English words"),
        ("{name} %(file)s %s", "{name} %(file)s", "fewer than 3 English words"),
        ("\uff5bopen the file\uff5d", "открыть файл", "fewer than 3 English words"),  # wide braces are braces
        ("This is it.", "This  is\tit!", "same text on both sides"),
        ("This is English", "Dies ist Deutsch", "wrong script"),
        ("Set up Home Assistant", "Home Assistant", "nothing translated"),
        ("A very long sentence that goes on and on", "Да", "lengths too different"),
        ("word " * 201, "слово " * 201, "over 1,000 characters"),
    ],
)
def test_pairs_are_dropped_for_a_reason(english, other, reason):
    assert clean([(english, other)], RUSSIAN) == ([], {reason: 1})


def test_placeholders_and_names_of_products_do_not_count_as_another_script():
    for pair in [
        ("Calls the Habitica API", "Вызывает Habitica API"),
        ("Delete the file %(long_english_name)s", "Удалить %(long_english_name)s"),
        (
            "See <a href='https://example.org/english'>this page</a> please",
            "См. <a href='https://example.org/english'>тут</a>",
        ),
    ]:
        assert clean([pair], RUSSIAN) == ([pair], {})


def test_duplicates_differ_only_in_what_does_not_count():
    pairs = [("Delete {name} for ever?", "Удалить {name}?"), ("delete {file} FOR ever", "удалить {file}")]
    assert clean(pairs, RUSSIAN)[1] == {"duplicate": 1}
    assert clean([*pairs, ("Delete {name} for ever?", "Стереть {name}?")], RUSSIAN)[1] == {"duplicate": 1}


def test_placeholders_alone_make_no_other_sentence():
    assert normalised("Set {entity_name} tilt position") == normalised("Set tilt position")
    assert normalised("{a}") == normalised("%(b)s %s") == normalised("<b>{{ c }}</b>!") == normalised("") == ""
    pairs = [("Set tilt position", "Наклонить"), ("Set {entity_name} tilt position", "Наклонить {entity_name}")]
    assert clean(pairs, RUSSIAN)[1] == {"duplicate": 1}


def test_sentences_that_differ_in_a_placeholder_are_held_out_together():
    words = [f"{a}{b}" for a in "bdklmnrst" for b in "aeiou"]
    english = [f"set {word} {form}position" for word in words for form in ("", "{name} ")]
    corpus = split({"rus": [(text, f"перевод {i}") for i, text in enumerate(english)]}, smallest=4, largest=6, kept=80)[
        "rus"
    ]
    held = [text for name in ("dev", "test") for text, _ in corpus[name]]
    assert {len(corpus[name]) for name in ("dev", "test")} == {4}
    assert len(corpus["train"]) == len(english) - 2 * len(held)  # both forms are gone
    assert not {text.replace("{name} ", "") for text in held} & {
        text.replace("{name} ", "") for text, _ in corpus["train"]
    }


@given(st.text())
def test_tidy_text_is_one_line_of_utf_8_and_stays_so(text):
    once = tidy(text)
    assert tidy(once) == once
    assert once.encode("utf-8").decode("utf-8").splitlines() in ([], [once])
    assert "  " not in once
    assert once == once.strip()


def test_lone_surrogates_become_spaces():
    assert tidy("a\ud800b\x00c\u2028d\r\n\te") == "a b c d e"


@given(st.text())
def test_normalising_twice_is_normalising_once(text):
    assert normalised(normalised(text)) == normalised(text)


@given(st.lists(st.sampled_from(["open", "the", "file", "now"]), min_size=1), st.sampled_from("?!.…"), st.booleans())
def test_case_punctuation_and_numbers_make_no_other_sentence(words, mark, upper):
    plain = " ".join(words)
    assert normalised("  ".join(w.upper() if upper else w for w in words) + mark) == normalised(plain)
    for form in ("{name}", "${name}", "{{ name }}", "%(name)s", "%s", "%d", "https://example.org/a?b=c"):
        assert normalised(f"{plain} {form}") == normalised(f"{form} {plain}") == normalised(plain)
    assert normalised(f"{plain} 7") == normalised(f"{plain} 2024") == normalised(plain)
    assert normalised(f"<b>{plain}</b>") == normalised(plain) != normalised(plain + " again")


# ----------------------------------------------------------------------------------------------------- split

corpora = st.dictionaries(
    st.sampled_from(["aze", "bel", "tur", "rus"]),
    st.sets(st.integers(0, 120), min_size=20, max_size=90),
    min_size=1,
)


def pairs_of(numbers, language):
    """English sentences by number; every third has two translations."""
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    english = [(n, " ".join(words[int(digit)] for digit in f"{n:03d}")) for n in sorted(numbers)]
    return [(text, f"{language} {n} {i}") for n, text in english for i in range(1 + (n % 3 == 0))]


@given(corpora, st.randoms())
def test_the_split_never_leaks_has_its_sizes_and_knows_no_order(numbers, rng):
    cleaned = {language: pairs_of(ns, language) for language, ns in numbers.items()}
    try:
        corpus = split(cleaned, smallest=4, largest=6, kept=30)
    except UserError as error:
        assert "usable pairs" in str(error)
        return
    shuffled = [(language, rng.sample(pairs, len(pairs))) for language, pairs in cleaned.items()]
    rng.shuffle(shuffled)
    assert split(dict(shuffled), smallest=4, largest=6, kept=30) == corpus
    sets = {
        name: {normalised(english) for splits in corpus.values() for english, _ in splits[name]}
        for name in ("train", "dev", "test")
    }
    assert not sets["train"] & (sets["dev"] | sets["test"])
    assert not sets["dev"] & sets["test"]
    for language, splits in corpus.items():
        assert len(splits["train"]) >= 6
        english = {normalised(pair[0]) for pair in cleaned[language]}
        tenth = min(6, max(4, len(english) // 10))
        assert len(splits["dev"]) == tenth
        assert len(splits["test"]) == min(6, max(tenth, len(english) - tenth - 30))
        for name in ("dev", "test"):
            assert len({normalised(english) for english, _ in splits[name]}) == len(splits[name])
        together = [pair for name in splits for pair in splits[name]]
        assert len(set(together)) == len(together)
        assert set(together) <= set(cleaned[language])
        held = sets["dev"] | sets["test"]
        assert {p for p in cleaned[language] if normalised(p[0]) not in held} == set(splits["train"])


@pytest.mark.parametrize(
    ("sentences", "train", "dev", "test"),
    [(350, 150, 100, 100), (420, 220, 100, 100), (600, 220, 100, 280), (640, 240, 100, 300), (2300, 1770, 230, 300)],
)
def test_small_languages_hold_out_more_for_the_test_set(sentences, train, dev, test):
    splits = split({"aze": numbered(sentences)})["aze"]
    assert {name: len(pairs) for name, pairs in splits.items()} == {"train": train, "dev": dev, "test": test}


def test_a_language_that_cannot_be_split_is_refused_with_its_sizes():
    with pytest.raises(UserError, match="aze has 349 usable pairs .* sets of 100 and 150 pairs to train on"):
        split({"aze": numbered(349)})


def numbered(count):
    places = [(chr(97 + i // 676), chr(97 + i // 26 % 26), chr(97 + i % 26)) for i in range(count)]
    return [(f"sentence {' '.join(letters)} here", f"предложение {i}") for i, letters in enumerate(places)]


def test_wheels_for_tests_are_the_same_bytes_every_time(shelf, tmp_path):
    wheels.make_wheels(tmp_path)
    assert everything(tmp_path) == everything(shelf)
    assert all(zipfile.is_zipfile(path) for path in tmp_path.glob("*.whl"))


@pytest.mark.parametrize(
    "path", ["/etc/locale/ru/LC_MESSAGES/a.po", "../locale/ru/LC_MESSAGES/a.po", "a/../../b", "C:\\x"]
)
def test_a_wheel_with_paths_that_lead_out_of_it_is_refused(tmp_path, path):
    folder, chosen = cached(tmp_path, {path: "x"})
    with pytest.raises(UserError, match="a path that leads out of it"):
        build(folder, ["rus"], chosen)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["list.toml", "wheels"]


def test_a_member_that_is_huge_or_says_that_it_is_small_fills_no_memory(tmp_path):
    name = "locale/ru/LC_MESSAGES/a.po"
    folder, chosen = cached(tmp_path, {name: b"\0" * (catalogues.MAX_MEMBER + 1)})
    with pytest.raises(UserError, match="larger than 16,777,216 bytes"):
        build(folder, ["rus"], chosen)

    def understated(path):
        data = bytearray(path.read_bytes())
        place = data.index(b"PK\x01\x02") + 24
        data[place : place + 4] = struct.pack("<I", 10)
        path.write_bytes(data)

    folder, chosen = cached(tmp_path / "b", {name: b"\0" * 10**6}, spoil=understated)
    with pytest.raises(UserError, match="damaged wheel"):
        build(folder, ["rus"], chosen)


def test_catalogues_that_are_too_large_together_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogues, "MAX_TOTAL", 1000)
    folder, chosen = cached(tmp_path, {f"{i}/locale/ru/LC_MESSAGES/a.po": "# " + "x" * 400 for i in range(3)})
    with pytest.raises(UserError, match="larger than 1,000 bytes together"):
        build(folder, ["rus"], chosen)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_member_that_unpacks_without_a_limit_is_refused(tmp_path, method):
    def repacked(path):
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr("locale/ru/LC_MESSAGES/a.po", b"\0" * 10**6)

    folder, chosen = cached(tmp_path, {}, spoil=repacked)
    with pytest.raises(UserError, match=r"odd-1.0-py3-none-any.whl: 'locale/ru/LC_MESSAGES/a.po' is not compressed as"):
        build(folder, ["rus"], chosen)


def test_links_pipes_and_folders_among_the_wheels_are_one_line_or_ignored(made, shelf, tmp_path):
    cache = tmp_path / "wheels"
    shutil.copytree(made[0].parent / "wheels", cache)
    (cache / "loop").symlink_to("loop")
    (cache / "other.whl").symlink_to("other.whl")
    os.mkfifo(cache / "pipe")
    command(tmp_path / "corpus", shelf)
    wheel = cache / "words-2.0-py3-none-any.whl"
    for make, message in (
        (lambda: wheel.symlink_to(wheel), "cannot be read: Too many levels of symbolic links"),
        (lambda: os.mkfifo(wheel), "is not a regular file"),
    ):
        wheel.unlink()
        make()
        assert f"{wheel}: {message}" in refused(tmp_path / "again", shelf)
