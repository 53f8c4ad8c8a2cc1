"""What can be told wrong about a run before Flower starts: all of it at once, in about a second.

Nothing is written, no model library is imported, and of long files only the beginning is read.
What only the run itself can find is not repeated here. A private file's counts go to the
terminal of whoever simulates, and nowhere else.
"""

from .checks import check_ready
from .findings import Finding

__all__ = ["Finding", "check_ready"]
