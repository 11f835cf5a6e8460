"""The command `multidds`. What a command needs beyond the package is an extra, and one line says which."""

import sys
from importlib.util import find_spec

from . import __version__

_REPORT = ("jinja2", "matplotlib", "pydantic", "rich", "typer")
_NMT = (*_REPORT, "ctranslate2", "sacrebleu", "safetensors", "sentencepiece", "tensorboard")
_NEEDED = {"report": _REPORT, "mixture": _REPORT, "verify": _REPORT}  # by command; all others need everything


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        print(f"multidds {__version__}")
        return
    sizes_given = sys.argv[1:2] == ["plan"] and not any(word.endswith(".toml") for word in sys.argv)
    if sizes_given and not all(find_spec(name) for name in _REPORT):
        _plan(sys.argv[2:])
        return
    if not sizes_given and (line := _missing(sys.argv[1:])) is not None:
        print(line, file=sys.stderr)
        raise SystemExit(2)
    try:
        from multidds.nmt.commands.cli import main as run
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run()


def _plan(arguments: list[str]) -> None:
    """Runs `multidds plan NAME=SIZE ... --draws N` of an installation without extras."""
    from argparse import ArgumentParser

    from .mixture.mixture_table import table_of

    parser = ArgumentParser("multidds plan", description="Share and passes of each dataset under several mixtures.")
    parser.add_argument("data", nargs="*", metavar="NAME=SIZE")
    parser.add_argument("--draws", help="Examples that the whole training draws.")
    given = parser.parse_intermixed_args(arguments)
    try:
        print(table_of(given.data, given.draws))
    except ValueError as error:
        print(f"multidds: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _missing(arguments: list[str]) -> str | None:
    """What to install before this command can run."""
    command = next((argument for argument in arguments if not argument.startswith("-")), None)
    needed = _REPORT if command is None else _NEEDED.get(command, _NMT)
    if all(find_spec(name) for name in needed):
        return None
    if command in _NEEDED:
        return f"multidds {command} needs an extra: pip install 'multidds[report]'"
    return "The command line needs the translation extra: pip install 'multidds[nmt]'"


if __name__ == "__main__":
    main()
