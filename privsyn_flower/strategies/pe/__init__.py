"""Private evolution."""
