"""Resource-adaptive synthesis."""
