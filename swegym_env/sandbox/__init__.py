"""Sandboxes: a container, one long-lived shell in it, read-only layers below it, and nothing left after it.

>>> sandbox = open_sandbox(SandboxSpec(workdir="/testbed"))
>>> sandbox.start()
>>> assert sandbox.run("echo $((6 * 7))").output.strip() == "42"
>>> sandbox.close()

The way of a command, file by file:

    backends    `open_sandbox` finds the back end's class in its registry
    local       the sandbox: its layers, its shell, its snapshots
    client      asks the supervisor, a small process beside this one, to launch a container
    linux       the supervisor; `linux.container` makes the namespaces, mounts the layers and becomes bash
    shell       the protocol with that bash, which turns a command into a `CommandResult`
    imported    a Python program that is imported once, and forked into many sandboxes
"""

from __future__ import annotations

from swegym_env.sandbox.api import Change, CommandResult, Imports, Limits, Sandbox, SandboxSpec, Snapshot

__all__ = [
    "Change",
    "CommandResult",
    "Imports",
    "Limits",
    "Sandbox",
    "SandboxSpec",
    "Snapshot",
    "open_sandbox",
    "start_sandbox",
]


def open_sandbox(spec: SandboxSpec, *, backend: str = "auto") -> Sandbox:
    """A sandbox of what `spec` describes, not started yet.

    Args:
        spec: image, layers, directory, variables, limits.
        backend: an entry of `sandbox.backends.BACKENDS`: "apptainer", "namespace", the address of a server
            ("http://host:8300", see `swegym serve` and `swegym pool`); "auto": the first that works on this machine.
    Raises:
        BackendUnavailableError: the back end cannot work here; the text says why, and what would help.
    """
    from swegym_env.sandbox.backends import find_backend

    return find_backend(backend).open(spec)


def start_sandbox(spec: SandboxSpec, *, backend: str = "auto") -> Sandbox:
    """The same, started. Raises what `open_sandbox` and `Sandbox.start` raise; then nothing is left of it."""
    sandbox = open_sandbox(spec, backend=backend)
    try:
        sandbox.start()
    except BaseException:
        sandbox.close()
        raise
    return sandbox
