"""Adapters to other projects, one file each, on their own plug-in points. None is imported before it is used."""
