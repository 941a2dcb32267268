"""The report of a run, or of several that differ in their seed: one HTML file that needs nothing else."""
