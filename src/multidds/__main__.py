"""The command `multidds`. What a command needs beyond the package is an extra, and one line says which."""

import sys
from importlib.util import find_spec

from . import __version__

_REPORT = ("jinja2", "matplotlib", "rich", "typer")
_NMT = (*_REPORT, "ctranslate2", "pydantic", "sacrebleu", "safetensors", "sentencepiece", "tensorboard")
_LIBRARY = ("report", "plan", "mixture")  # commands; all others are of the application


def main() -> None:
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        print(f"multidds {__version__}")
        return
    command = next((argument for argument in arguments if not argument.startswith("-")), None)
    of_library = command is None or command in _LIBRARY
    application = all(find_spec(name) for name in _NMT)
    if not application and not (of_library and all(find_spec(name) for name in _REPORT)):
        extra = "report" if of_library else "nmt"
        print(f"multidds {command or '--help'}: needs an extra: pip install 'multidds[{extra}]'", file=sys.stderr)
        raise SystemExit(2)
    try:
        if application:
            from .nmt.commands.cli import main as run
        else:
            from .commands.cli import main as run
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run()


if __name__ == "__main__":
    main()
