"""Diagnosis of runs: differences between engine and trainer, and one batch by several algorithms."""
