"""The sandbox engine beside its peers in the same run: `make bench-env`."""
