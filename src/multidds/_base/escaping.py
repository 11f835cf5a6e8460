"""Names of datasets, languages and settings, escaped for files, terminals and CSV.

A name is any text. HTML is escaped by jinja2. In logs a name stands as it is behind the word of its group, as in
"mixture/az": no such word has a '/', so the first one ends it.
"""

import hashlib
import re
from urllib.parse import quote

_MAX_CHARACTERS = 120  # of a file name before its endings; file systems take 255 bytes
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)  # no files on Windows, with any ending
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # beginnings of formulas


def file_name(name: str) -> str:
    """Returns a name as (the beginning of) a file name for any system.

    Letters, digits, '.', '_' and '-' stay. Other characters become =XX per byte of UTF-8, so that different names have
    different files. A name that is too long is cut, with a hash of the whole at its end.

    >>> file_name("pt-br"), file_name("a/b")
    ('pt-br', 'a=2Fb')
    """
    # quote keeps '~', which marks hashes. '=' is not special to shells, TeX, make or in a URL, as '%' is.
    text = quote(name, safe="", errors="surrogatepass").replace("~", "%7E").replace("%", "=")
    if text[0] in ".-" or _DEVICES.match(text):
        text = f"={ord(text[0]):02X}{text[1:]}"
    if text[-1] == ".":
        text = f"{text[:-1]}=2E"
    if len(text) <= _MAX_CHARACTERS:
        return text
    return f"{text[:80]}~{hashlib.blake2b(name.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"


def printable(text: str) -> str:
    """Returns text for a terminal, with control characters as visible escapes."""
    return "".join(c if c.isprintable() or c == " " else repr(c)[1:-1] for c in text)


def csv_text(text: str) -> str:
    """Returns text for a cell of a CSV file: a spreadsheet would take it for a formula if it began with one of =+-@.

    >>> csv_text("=1+1"), text_of_csv(csv_text("=1+1"))
    ("'=1+1", '=1+1')
    """
    return f"'{text}" if _is_formula(text) else text


def text_of_csv(cell: str) -> str:
    """Returns the text of a cell that `csv_text` made; a number is returned as it is."""
    return cell[1:] if cell.startswith("'") and _is_formula(cell) else cell


def _is_formula(text: str) -> bool:
    unquoted = text.lstrip("'")
    return unquoted[:1] in _FORMULA and len(unquoted) > 1  # '-' alone is a number that is missing
