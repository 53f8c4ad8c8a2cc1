"""What a person reads of finished runs: only what a run folder says, nothing private opened."""
