"""Counts lines of code, without comments, docstrings and blank lines, and lists long functions.

    python benchmarks/code_lines.py [folder]

A function is measured from `def` to its last line. A function with more than FUNCTION lines needs a reason, in a
comment "# long: ..." in its first lines. `tests/test_package.py` checks this for src/multidds.
"""

import ast
import sys
import tokenize
from pathlib import Path

FUNCTION = 50  # lines, at most, unless there is a reason
REASON = "# long: "
_NO_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
)
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
    """Lists (name, lines) of the functions that are above the limit without a reason."""
    text = path.read_text(encoding="utf-8").splitlines()
    found = []
    for node in ast.walk(_parsed(path)):
        if isinstance(node, _FUNCTIONS):
            lines = text[node.lineno - 1 : node.end_lineno]
            if len(lines) > FUNCTION and not any(line.strip().startswith(REASON) for line in lines[:FUNCTION]):
                found.append((node.name, len(lines)))
    return found


def too_long(folder: Path) -> list[str]:
    """Lists the functions that are above the limit without a reason, as lines to read."""
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
    print("\n".join(too_long(folder)) or f"no function above {FUNCTION} lines without a reason")


if __name__ == "__main__":
    main()
