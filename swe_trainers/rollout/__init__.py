"""Rollouts: environments and an engine give trajectories."""
