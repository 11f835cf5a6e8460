"""Arguments that a release has removed: refused with a line that says what replaces them."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def removed(**replacements: str) -> Callable[[F], F]:
    """Makes a function refuse arguments of an earlier release. replacements: {argument: what to write instead}."""

    def decorated(function: F) -> F:
        @wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            for name in kwargs:
                if name in replacements:
                    where = function.__qualname__.removesuffix(".__init__")
                    raise TypeError(f"{where}: {name}= was removed. Use {replacements[name]}.")
            return function(*args, **kwargs)

        return checked  # type: ignore[return-value]

    return decorated


OF_BALANCER = {
    "reward": "rule=Scorer(reward=...)",
    "groups": "limits=Limits(groups=...), for bounds on groups; nothing else depends on groups",
}
