"""`make extras`: a fresh virtual environment for each extra, in which the snippet of its page runs as it stands.

python tests/extras.py            # all of them; downloads torch and the libraries of each extra
python tests/extras.py hf plot    # some
"""

import subprocess
import sys
from pathlib import Path

from support.snippets import SNIPPETS

ROOT = Path(__file__).parents[1]
HOME = ROOT / "build" / "extras"


def environment(extra: str) -> Path:
    """The Python of a new environment that has this package, copied as a user gets it, with one extra."""
    folder = HOME / extra
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    python = folder / "bin" / "python"
    wanted = f"{ROOT}[{extra}]"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "-c", ROOT / "constraints.txt", wanted], check=True)
    return python


def main(wanted: list[str]) -> int:
    if unknown := [extra for extra in wanted if extra not in SNIPPETS]:
        print(f"extras: there is no extra {unknown[0]!r}; there are {', '.join(SNIPPETS)}.")
        return 2
    failed = []
    for extra in wanted or SNIPPETS:
        print(f"{extra}: a new environment", flush=True)
        # In another folder, so that nothing is imported from the clone but the snippets themselves.
        ran = subprocess.run([environment(extra), ROOT / "tests" / "support" / "snippets.py", extra], cwd=HOME)
        if ran.returncode:
            failed.append(extra)
    print(f"failed: {', '.join(failed)}" if failed else "All snippets run.")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
