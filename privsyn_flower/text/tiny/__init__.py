"""Tiny models of a million parameters, shipped or trained in a minute: no hub needed."""
