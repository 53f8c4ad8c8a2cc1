"""The paper configs' large models stand in as small random ones."""

from tests.text.conftest import causal_folder, masked_folder

__all__ = ["causal_folder", "masked_folder"]
