"""Lines of code: without comments, docstrings and blank lines; and the functions that are too long.

    python benchmarks/code_lines.py [folder]

`tests/test_package.py` holds src/multidds to the limit. A function is measured from `def` to its last line.
"""

import ast
import sys
import tokenize
from pathlib import Path

FUNCTION = 50  # lines, at most
_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
            tokenize.ENDMARKER)  # fmt: skip
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, *_FUNCTIONS)


def code_lines(path: Path) -> int:
    with path.open("rb") as file:
        tokens = [token for token in tokenize.tokenize(file.readline) if token.type not in _NO_CODE]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(_parsed(path)):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def long_functions(path: Path) -> list[tuple[str, int]]:
    """(name, lines) of the functions above the limit."""
    functions = [node for node in ast.walk(_parsed(path)) if isinstance(node, _FUNCTIONS)]
    sizes = [(node.name, (node.end_lineno or 0) - node.lineno + 1) for node in functions]
    return [(name, size) for name, size in sizes if size > FUNCTION]


def too_long(folder: Path) -> list[str]:
    """What is above a limit, as lines to read."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder)
        found += [f"{name}: {function}: {lines} lines" for function, lines in long_functions(path)]
    return found


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def main() -> None:
    here = Path(__file__).parent.parent / "src" / "multidds"
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else here
    paths = sorted(folder.rglob("*.py"))
    print(f"{sum(map(code_lines, paths)):,} lines of code in {len(paths)} files")
    print("\n".join(too_long(folder)) or f"no function above {FUNCTION} lines")


if __name__ == "__main__":
    main()
