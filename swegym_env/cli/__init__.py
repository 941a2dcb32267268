"""The command line `swegym`, one file a command."""
