"""DP-FTRL."""
