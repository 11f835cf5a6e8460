"""The command `multidds`, which needs the nmt extra and says so in one line where it is missing."""

import sys
from importlib.util import find_spec


def main() -> None:
    needed = (
        "ctranslate2", "jinja2", "matplotlib", "polib", "pydantic", "rich", "sacrebleu", "safetensors", "sentencepiece",
        "tensorboard", "typer",
    )  # fmt: skip
    if any(find_spec(name) is None for name in needed):
        print("The command line needs the translation extra: pip install 'multidds[nmt]'", file=sys.stderr)
        raise SystemExit(2)
    try:
        from multidds.nmt.cli import main as run
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run()


if __name__ == "__main__":
    main()
