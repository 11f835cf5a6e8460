"""Names of datasets, languages and settings are any text. Here they are written so that nothing takes them for more.

Pure functions, one per place: files, terminals, figures, LaTeX. HTML is jinja2's, which escapes by itself. In logs a
name stands as it is behind the word of its group, as in "mixture/az": no such word has a '/', so the first one ends it.
"""

import hashlib
import re
from urllib.parse import quote

_LONGEST = 120  # characters of a file name before its endings; file systems take 255 bytes
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)  # no files on Windows, with any ending
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
          ">": r"\textgreater{}", "|": r"\textbar{}", **{c: "\\" + c for c in "&%$#_{}"},
          **{c: f"{{{c}}}" for c in "[]*"}}  # fmt: skip


def file_name(name: str) -> str:
    """The name as (the beginning of) that of a file or folder, on any system: letters, digits, '.', '_', '-' stay.

    All else becomes =XX per byte of UTF-8, so that different names have different files. Of what is too long the
    beginning stays, with a hash of the whole.
    """
    # What quote keeps, but for '~', which marks hashes. '=' is not special to shells, TeX, make or in a URL, as '%' is.
    text = quote(name, safe="", errors="surrogatepass").replace("~", "%7E").replace("%", "=")
    if text[0] in ".-" or _DEVICES.match(text):
        text = f"={ord(text[0]):02X}{text[1:]}"
    if text[-1] == ".":
        text = f"{text[:-1]}=2E"
    if len(text) <= _LONGEST:
        return text
    return f"{text[:80]}~{hashlib.blake2b(name.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"


def printable(text: str) -> str:
    """For a terminal: control characters come out as text, not as commands."""
    return "".join(c if c.isprintable() or c == " " else repr(c)[1:-1] for c in text)


def drawable(text: str) -> str:
    """For a figure: short, no formula between two '$', and not kept out of the legend by a '_' in front."""
    text = printable(text)
    text = text if len(text) <= 48 else f"{text[:30]} ... {text[-12:]}"
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def latex(text: str) -> str:
    """For a cell of a table. The brackets and stars too: behind the end of a row they would belong to it."""
    return "".join(_LATEX.get(c, c) for c in printable(text))
