"""Wheels with catalogues, for tests: made-up translations of four languages, which a small model can learn.

Turkish and Azerbaijani, and Russian and Belarusian, are pairs of relatives here too: a small one and a larger one.
"""

import hashlib
import itertools
import json
import random
import struct
import zipfile
from pathlib import Path

SIZES = {"tur": 900, "rus": 1000, "aze": 460, "bel": 480}
CODES = {"tur": "tr", "rus": "ru", "aze": "az", "bel": "be"}
NOUNS = [
    "server",
    "password",
    "file",
    "user",
    "page",
    "device",
    "light",
    "account",
    "folder",
    "key",
    "window",
    "image",
    "network",
    "sensor",
    "message",
]
ADJECTIVES = ["new", "old", "small", "large", "open", "hidden", "local", "remote", "first", "last"]
VERBS = ["needs", "shows", "opens", "removes", "changes", "finds", "sends", "keeps"]
SYLLABLES = {
    "LATIN": [c + v for c in "bdklmnrst" for v in "aeiou"],
    "CYRILLIC": [c + v for c in "бдклмнрст" for v in "аеиоу"],
}


def make_wheels(folder, sizes=SIZES):
    """Two wheels, one of gettext and one of JSON catalogues, and the list that names them: its path is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    english = sentences()
    po, mo_and_json = {}, {"words/translations/en.json": json.dumps(nested(english))}
    for language, size in sizes.items():
        pairs = [(sentence, translated(sentence, language)) for sentence in english[:size]]
        path = f"phrases/locale/{CODES[language]}/LC_MESSAGES/django"
        po[path + ".po"] = po_text(pairs[::2])
        po[path + ".mo"] = mo_bytes(pairs[:1])  # not read: the .po beside it is
        po[f"phrases/more/locale/{CODES[language]}/LC_MESSAGES/django.mo"] = mo_bytes(pairs[1::4])
        mo_and_json[f"words/translations/{CODES[language]}.json"] = json.dumps(
            nested([b for _, b in pairs], keep=lambda i: i % 4 == 3)
        )
    wheels = [
        (make_wheel(folder, "phrases", "1.0", po), "gettext"),
        (make_wheel(folder, "words", "2.0", mo_and_json), "json"),
    ]
    return write_list(folder / "list.toml", wheels)


def sentences():
    """English that a program might say, each sentence another one."""
    nouns = [f"{a} {n}" for a, n in itertools.product(ADJECTIVES, NOUNS)]
    every = [f"The {a} {verb} the {b}." for a in nouns for verb in VERBS for b in nouns if a != b]
    return random.Random(1).sample(every, max(SIZES.values()))


def translated(sentence, language):
    """Word by word, with the verb last in Turkish; a relative differs in a few letters."""
    _, *a, verb, _, b, c = sentence.rstrip(".").split()
    script = "LATIN" if language in ("tur", "aze") else "CYRILLIC"
    subject, action, thing = ([word(w, script) for w in part] for part in (a, [verb], (b, c)))
    words = [*subject, *thing, *action] if script == "LATIN" else [*subject, *action, *thing]
    text = (" ".join(words) + ".").capitalize()
    letters = {"aze": str.maketrans("ek", "əq"), "bel": str.maketrans("ио", "іа")}  # noqa: RUF001
    return text.translate(letters.get(language, {}))


def word(english, script):
    number = int.from_bytes(hashlib.sha256(english.encode()).digest()[:6], "big")
    syllables = SYLLABLES[script]
    return "".join(syllables[number // len(syllables) ** i % len(syllables)] for i in range(2 + number % 2))


def nested(texts, keep=lambda i: True):
    tree = {}
    for i, text in enumerate(texts):
        if keep(i):
            tree.setdefault(f"part{i % 7}", {}).setdefault("entries", {})[f"key{i}"] = text
    return tree


def po_text(pairs, header="nplurals=2; plural=n != 1;"):
    head = f'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Plural-Forms: {header}\\n"\n'
    return head + "".join(f"\nmsgid {json.dumps(a)}\nmsgstr {json.dumps(b, ensure_ascii=False)}\n" for a, b in pairs)


def mo_bytes(pairs):
    pairs = sorted([("", "Content-Type: text/plain; charset=UTF-8\n"), *pairs])
    data, start = b"", 28 + 16 * len(pairs)
    tables = [b"", b""]
    for side in (0, 1):
        for pair in pairs:
            text = pair[side].encode()
            tables[side] += struct.pack("<2I", len(text), start + len(data))
            data += text + b"\0"
    return struct.pack("<7I", 0x950412DE, 0, len(pairs), 28, 28 + 8 * len(pairs), 0, 0) + b"".join(tables) + data


def make_wheel(folder, name, version, members):
    """A wheel that pip takes, the same bytes every time."""
    info = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for member, content in {
            **members,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": "",
        }.items():
            entry = zipfile.ZipInfo(member, (2020, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, content)
    return path


def write_list(path, wheels, **changes):
    """The list of (wheel, kind), with the hashes that the wheels have."""
    text = ""
    for wheel, kind in wheels:
        name, version = Path(wheel).name.split("-")[:2]
        digest = hashlib.sha256(Path(wheel).read_bytes()).hexdigest()
        facts = {"name": name, "version": version, "sha256": digest, "licence": "MIT", "kind": kind} | changes
        text += "[[package]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in facts.items()) + "\n"
    path.write_text(text, encoding="utf-8")
    return path
