"""To be said."""

from .example_scorer import ExampleScorer, ExampleUpdate

__all__ = ["ExampleScorer", "ExampleUpdate"]
