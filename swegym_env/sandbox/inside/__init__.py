"""Programs that run in sandboxes, with the Python that is there: they import the standard library only."""
