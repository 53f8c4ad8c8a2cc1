"""The device side: a ClientApp that answers with bounded, noised vectors and nothing else."""
