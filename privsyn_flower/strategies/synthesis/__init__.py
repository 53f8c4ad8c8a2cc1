"""What strategies share that make text."""
