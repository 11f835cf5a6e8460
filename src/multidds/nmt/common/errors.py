"""Mistakes of a user: one line on the terminal, exit code 2, no traceback. Everything else is our mistake."""


class UserError(Exception):
    """Says where, what is wrong with which value, and what to do."""


class DamagedError(UserError):
    """A file of ours that is not as it was written. Says which one, and what to do."""
