"""Methods to compare with, which send users no query."""
