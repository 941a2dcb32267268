"""What the Linux kernel is asked for: namespaces, mounts, control groups, processes, files of another user.

`supervisor` is a small separate process that starts, limits, ends and removes the sandboxes of one owner (the Python
process that uses them); `container` is what it does to start one. Reasons for a separate process: a parent-death signal
is bound to the *thread* that forked, and forking a large process is slow. The supervisor has one thread, little memory,
and lives exactly as long as the other end of its socket. When the owner dies in any way, the socket closes and
everything is reaped at once, without a signal handler in the owner.

The supervisor runs as a script (see `sandbox.client`) with `python -I -S`, so these modules use the standard library
only and import each other relatively: importing them must not import `swegym_env`. Every process 1 is a fork of it and
copies what it touches, so they leave out what loads much: `typing`, `dataclasses` (with `inspect`), `shutil`, `random`.
"""
