"""The ground floor: checks, states, random numbers, ranks, text and files, without datasets or models.

`checks` raises errors with place, fault and value; `state` has the version of states; `randomness` makes random numbers
functions of a key; `ranks` sums over processes; `text` puts mixtures into a line. For commands: a `UserError` is one
line for the user; `files` writes whole or not at all; `escaping` and `terminal` print any text safely.

>>> from multidds._base.randomness import derive
>>> derive(1, "order", "cs-en", 3) == derive(1, "order", "cs-en", 3) != derive(1, "order", "cs-en", 4)
True
"""
