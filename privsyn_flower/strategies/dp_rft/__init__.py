"""DP-RFT."""
