"""DP-FedAvg."""
