"""TOML files with one thing wrong, and what a user should see of that."""

from hypothesis import strategies as st

from multidds._base.terminal import say

ODD = st.sampled_from(
    ["9" * 5000, "-1", "0", "1e-320", "1e308", "-1e308", "nan", "inf", "1e999", "true", '""', '"x"', "[]", "{}",
     "[" * 900 + "]" * 900, "{a = " * 300 + "1" + "}" * 300, '{"aze-eng" = 1e308, "rus-eng" = 1e308}', "1979-05-27",
     '"\\u0000"', '"\\u001b[31m"', '["a-b", "a-b"]', "0x" + "f" * 400, "'{' '", '"{many.__class__}"', '"{0}"']
)  # fmt: skip
JUNK = st.binary(max_size=60) | st.sampled_from([b"\xff\xfe", b"\x00", b"[" * 900, b"\r", b"'''", b'"' * 3, b"=" * 9])


@st.composite
def changed(draw, text):
    """A TOML file with values, lines or bytes of it replaced."""
    lines = text.splitlines()
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        key, equals, _ = lines[at].partition(" = ")
        how = draw(st.sampled_from(["value", "value", "drop", "double", "key"]))
        if how == "value" and equals:
            lines[at] = key + equals + draw(ODD)
        elif how == "key":
            lines[at] = draw(st.text(max_size=5)) + lines[at]
        else:
            lines[at : at + 1] = [] if how == "drop" else [lines[at]] * 2
        lines = lines or [""]
    content = "\n".join(lines).encode("utf-8", "surrogatepass")
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        at = draw(st.integers(0, len(content)))
        content = content[:at] + draw(JUNK) + content[at + draw(st.integers(0, 9)) :]
    return content


def one_line(error, path, capsys=None):
    assert str(error).startswith(str(path)), error
    assert len(str(error)) < 3000
    say(str(error))  # as a terminal gets it
