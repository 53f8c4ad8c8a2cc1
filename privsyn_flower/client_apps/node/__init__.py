"""What a device knows and keeps: its users, its owner's policy, its records, its schedule."""
