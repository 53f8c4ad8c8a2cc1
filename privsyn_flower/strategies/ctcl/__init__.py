"""CTCL."""
