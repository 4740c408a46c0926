"""Execution of a plan: emitted programs, collectives, data, the training loop, verification."""
