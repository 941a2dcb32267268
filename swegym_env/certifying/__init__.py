"""How far the verdicts on a task can be trusted."""
