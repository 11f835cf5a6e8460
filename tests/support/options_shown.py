"""Whether what takes every option of Balancer says so where people look: in its signature and in its help."""

import inspect
import pydoc
import re

from multidds import Balancer

PROVIDED = {"mixture", "model", "loss", "train", "dev"}  # by what takes the options


def check_signature(taker, own=()):
    """own: options that it has in its own words."""
    ours, theirs = inspect.signature(taker).parameters, inspect.signature(Balancer).parameters
    for name in theirs.keys() - PROVIDED - set(own):
        assert ours[name].default == theirs[name].default, name
        assert ours[name].annotation == theirs[name].annotation
    assert not [p for p in ours.values() if p.kind is p.VAR_KEYWORD]
    assert len(theirs) - len(PROVIDED) > 10


def check_help(taker):
    text = pydoc.plain(pydoc.render_doc(taker))
    documented = {name for names in re.findall(r"(?m)^ *\|?  (\w+(?:, \w+)*): ", text) for name in names.split(", ")}
    assert inspect.signature(taker).parameters.keys() <= documented
