"""The command `multidds`. What a command needs beyond the package is an extra, and one line says which."""

import sys
from importlib.util import find_spec

_NEEDED = {"report": ("jinja2", "matplotlib"), "mixture": ("jinja2",), "plan": ()}  # by the library's commands
_NMT = (
    "ctranslate2",
    "jinja2",
    "matplotlib",
    "pydantic",
    "rich",
    "sacrebleu",
    "safetensors",
    "sentencepiece",
    "tensorboard",
)  # by those of the application


def main() -> None:
    command = next((argument for argument in sys.argv[1:] if not argument.startswith("-")), None)
    of_library = command is None or command in _NEEDED
    application = all(find_spec(name) for name in _NMT)
    if not all(find_spec(name) for name in (_NEEDED.get(command or "", ()) if of_library else _NMT)):
        extra = "report" if of_library else "nmt"
        print(f"multidds {command}: needs an extra: pip install 'multidds[{extra}]'", file=sys.stderr)
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
