"""Grading: running a task's tests on a patch in a fresh sandbox, and proving the verdict."""
