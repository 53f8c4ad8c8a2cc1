"""privsyn-flower: learn from private, distributed text by noisy sums of bounded answers."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("privsyn-flower")
except PackageNotFoundError:  # run from a source folder that is not installed (a Flower bundle)
    __version__ = "0.1.0"

__all__ = ["__version__"]
