"""The command line: `swe-train`, `swe-eval`, `swe-serve`."""
