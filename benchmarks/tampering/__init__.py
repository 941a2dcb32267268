"""Published ways to forge a verdict against the grading of other projects and of this one."""
