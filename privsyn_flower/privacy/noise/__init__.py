"""Noise from the operating system's generator: real numbers, and integers for the nodes."""
