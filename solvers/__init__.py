"""Optimisation that knows no tensors: dynamic programs, MILP builders, the batcher, oracles."""
