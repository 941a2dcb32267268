"""The memory, disk and episodes that a run needs, and its problems, before anything is loaded."""
