"""Rewards, one file each. `swegym_env.wrappers` is the public place to import them from."""
