"""POPri."""
