"""Adapters to other projects, one file each, on their own plug-in points. None is imported before it is used.

What several of them need is in `workbench` (a task's sandbox for other programs) and `episodes` (recorded ones).
"""
