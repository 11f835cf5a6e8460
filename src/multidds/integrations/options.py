"""Options that a class or a function hands on to a class, shown as if they were its own.

The trainers' callbacks take every option of `Balancer`. Their signatures and their help are made from Balancer's when
the class is made, so that they cannot fall out of step with it; the body keeps its `**options`.
"""

import inspect
import re
from collections.abc import Callable, Collection
from typing import Any, TypeVar

_Taker = TypeVar("_Taker", bound=Callable[..., Any])


def takes_options_of(source: type, provided: Collection[str]) -> Callable[[_Taker], _Taker]:
    """For a class or a function whose `**options` are arguments of `source`: `inspect.signature` and `help` show them
    one by one.

    provided: arguments of `source` that the taker gives by itself; where it has arguments of these names, they are its
    own. An argument that both have is source's, default and documentation included.
    """

    def decorate(taker: _Taker) -> _Taker:
        init: Any = vars(taker)["__init__"] if isinstance(taker, type) else taker
        own, shared = inspect.signature(init), dict(inspect.signature(source).parameters)
        for name in provided:
            del shared[name]
        names = list(shared)
        parameters = [
            shared.pop(name).replace(kind=parameter.kind) if name in shared else parameter
            for name, parameter in own.parameters.items()
            if parameter.kind is not parameter.VAR_KEYWORD
        ]
        # Of the method, not of the class: a subclass with an __init__ of its own has a signature of its own.
        handed_on = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in shared.values()]
        init.__signature__ = own.replace(parameters=[*parameters, *handed_on])
        if taker.__doc__ and source.__doc__:
            entries = "\n".join(_documented(source.__doc__, names))
            taker.__doc__ = f"{inspect.cleandoc(taker.__doc__)}\n\nOptions of `{source.__name__}`:\n\n{entries}"
        return taker

    return decorate


def _documented(text: str, names: Collection[str]) -> list[str]:
    """The entries `name, name: what it is` of a docstring that are about any of the names."""
    entries = re.finditer(r"(?m)^(\w+(?:, \w+)*): .*(?:\n +.*)*", inspect.cleandoc(text))
    return [entry[0] for entry in entries if not set(entry[1].split(", ")).isdisjoint(names)]
