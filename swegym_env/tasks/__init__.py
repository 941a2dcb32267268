"""Tasks: what one is, the datasets that contain them, and the adapters that read rows."""
