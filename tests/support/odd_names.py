"""Names of datasets that are text and nothing else: paths, markup, control characters, what file systems dislike."""

NAMES = (
    "HuggingFaceH4/ultrachat_200k",
    "中文",
    "my set",
    "a\x1b[31m",
    "../x",
    "x" * 300,
    "nul",
    "</title>",
    "<script>alert(1)</script>",
    r"\input{x} & 5% $y$ #_^~",
    "\x1b]0;title\x07",
    "_",
    ".",
    "-rf",
    "a=20b",
    "a~b",
    "[red]",
    "new\nline",
    " ",
)
