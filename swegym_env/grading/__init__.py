"""What a patch is worth: taking it from a sandbox, grading it on a fresh one, reading the tests' log."""
