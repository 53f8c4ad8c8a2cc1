"""Small helpers that every package may use; none knows another package of ours."""
