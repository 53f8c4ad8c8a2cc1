"""Small random models for the whole runs of these tests."""

from tests.text.conftest import causal_folder, one_thread

__all__ = ["causal_folder", "one_thread"]
