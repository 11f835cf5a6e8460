"""To be said."""

from .page import as_latex, report

__all__ = ["as_latex", "report"]
