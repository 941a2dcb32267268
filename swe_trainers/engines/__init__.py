"""Engines: generation of actions, in this process or by a server."""
