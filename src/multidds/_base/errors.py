"""Errors for users: one line on the terminal, exit code 2, no traceback. Any other exception is a bug."""


class UserError(Exception):
    """An error in the input. The message says where, what is wrong with which value, and what to do."""


class DamagedError(UserError):
    """A file of ours that is not as it was written. The message says which one, and what to do."""
