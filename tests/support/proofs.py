"""The table of claims and the tests that prove them, from the marks `@pytest.mark.claim(section, sentence)`.

`make proofs` prints it. The marks are read from the sources, so the table does not depend on what is installed.
"""

import ast
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
SECTIONS = (
    "The method",
    "Hugging Face Trainer",
    "TRL",
    "sentence-transformers",
    "Lightning",
    "Accelerate",
    "StatefulDataLoader",
    "Several processes",
    "Fine-tuning in the translation application",
    "Mixtures for other trainers",
    "Other tasks",
)


def claims() -> dict[str, dict[str, list[str]]]:
    """Reads all marks: {section: {sentence: [test, or a file if all of its tests prove it]}}."""
    found: dict[str, dict[str, list[str]]] = {section: {} for section in SECTIONS}
    for path in sorted(TESTS.rglob("test_*.py")):
        for section, sentence, function in marks(ast.parse(path.read_text(encoding="utf-8"))):
            if section not in found:
                raise SystemExit(f"{path}: there is no section {section!r}; there are {', '.join(SECTIONS)}.")
            test = str(path.relative_to(TESTS)) + (f"::{function}" if function else "")
            found[section].setdefault(sentence, []).append(test)
    return {section: rows for section, rows in found.items() if rows}


def marks(tree: ast.Module) -> list[tuple[str, str, str]]:
    """Lists (section, sentence, function) of a file; without a function, the mark is one of the whole file."""
    assigned = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    texts = {name: value.value for name, value in assigned.items() if isinstance(value, ast.Constant)}
    found = [(*mark, "") for mark in marks_in(assigned.get("pytestmark"), texts)]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found += [(*mark, node.name) for part in node.decorator_list for mark in marks_in(part, texts)]
    return found


def marks_in(tree: ast.expr | None, texts: dict[str, str]) -> list[tuple[str, str]]:
    """Lists (section, sentence) of the marks in an expression. texts: {name: text} of the names of the file."""
    calls = [node for node in ast.walk(tree or ast.List()) if isinstance(node, ast.Call)]
    claims = [call for call in calls if ast.unparse(call.func) == "pytest.mark.claim"]
    return [
        tuple(texts[part.id] if isinstance(part, ast.Name) else ast.literal_eval(part) for part in call.args)
        for call in claims
    ]


def table() -> str:
    """Returns the claims of all sections as Markdown."""
    sections = []
    for section, rows in claims().items():
        lines = [f"| {sentence} | {', '.join(f'`{test}`' for test in tests)} |" for sentence, tests in rows.items()]
        sections.append("\n".join([f"## {section}", "", "| claim | test |", "|---|---|", *lines]))
    return "\n\n".join(sections)


if __name__ == "__main__":
    print(table())
