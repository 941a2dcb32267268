"""A Python process that has imported what programs need, and forks for each command that a test runs.

Importing PyTorch or a web server takes seconds, and the tests run many programs. `WarmPython.program` writes a script
that looks like a program: it connects to the process, which forks. The child takes over the script's standard streams,
directory, variables and arguments, calls the program's function and ends like any Python process; its exit code is the
script's. If the script is killed, the child is killed too. Other signals are not forwarded: a test that sends signals
starts its program itself, or with `WarmPython.start`, which returns the child.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

__all__ = ["ENVIRONMENT", "TRAINER", "ForkedProcess", "WarmPython", "run_file", "warm_python"]

ROOT = Path(__file__).parents[1]
TRAINER = (  # the last ones are imported in the middle of a run, where each process would do it again
    "torch", "transformers", "swe_trainers.cli.main", "swe_trainers.experiment", "torch._dynamo", "safetensors.torch",
    "transformers.models.llama.modeling_llama", "transformers.models.qwen3.modeling_qwen3", "matplotlib.figure",
    "matplotlib.backends.backend_agg", "rich.console", "gymnasium.envs.toy_text",
)  # fmt: skip
ENVIRONMENT = (
    "swegym_env.cli.main", "swegym_env.env", "swegym_env.grading.grading", "swegym_env.tasks.datasets",
    "swegym_env.programs.env",
)  # fmt: skip
_CLIENT = """\
#!{python} -IS
import json, os, socket, struct, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect({address!r})
asked = json.dumps([{target!r}, sys.argv, os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(connection, [struct.pack("!Q", len(asked))], [0, 1, 2])
connection.sendall(asked)
connection.recv(4, socket.MSG_WAITALL)  # the process id of the fork
code = connection.recv(4, socket.MSG_WAITALL)
sys.exit(struct.unpack("!i", code)[0] if code else 70)
"""


class ForkedProcess:
    """A fork with its standard output in a pipe; it has the part of `subprocess.Popen` that the tests use."""

    def __init__(self, connection: socket.socket, stdout: TextIO) -> None:
        self._connection = connection
        self.stdout = stdout
        self.pid: int = struct.unpack("!i", connection.recv(4, socket.MSG_WAITALL))[0]
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        """Send a signal to the fork."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, timeout_s: float | None = None) -> int:
        """Return the exit code: as a shell reports it, 128 and the number if a signal ended the fork."""
        if self.returncode is None:
            self._connection.settimeout(timeout_s)
            self.returncode = struct.unpack("!i", self._connection.recv(4, socket.MSG_WAITALL))[0]
        return self.returncode

    def kill(self) -> None:
        """End the fork with SIGKILL, unless it has ended, and close its pipe."""
        if self.returncode is None:
            self.send_signal(signal.SIGKILL)
            self.wait()
        self._connection.close()
        self.stdout.close()


class WarmPython:
    """A running process; see the module."""

    def __init__(self, address: Path) -> None:
        self._address = str(address)

    def program(self, path: Path, target: str) -> None:
        """Write an executable script that runs `target`, "module:function", in a fork of this process."""
        path.write_text(_CLIENT.format(python=sys.executable, address=self._address, target=target), encoding="utf-8")
        path.chmod(0o755)

    def start(self, target: str, *arguments: str) -> ForkedProcess:
        """Run `target` in a fork with this process's variables and directory, without input."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._address)
        message = json.dumps([target, ["program", *arguments], os.getcwd(), dict(os.environ)]).encode()
        reader, writer = os.pipe()
        with open(os.devnull, "rb") as nothing:
            socket.send_fds(connection, [struct.pack("!Q", len(message))], [nothing.fileno(), writer, 2])
        os.close(writer)
        connection.sendall(message)
        return ForkedProcess(connection, open(reader, encoding="utf-8"))


@contextmanager
def warm_python(folder: Path, environment: dict[str, str], preloaded: Sequence[str] = TRAINER) -> Iterator[WarmPython]:
    """Start the process; `environment` is what its imports see, and `folder` holds its socket."""
    address = folder / "warm"
    command = [sys.executable, "-m", "tests.warm", str(address), *preloaded]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield WarmPython(address)
        finally:
            process.kill()


def run_file() -> None:
    """Run the file that is the first argument, as `python FILE ARGUMENTS` does: a target for `WarmPython.program`."""
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


def main() -> None:
    """Import, listen, and fork for each connection."""
    for module in sys.argv[2:]:
        importlib.import_module(module)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the forks below are not waited for
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        if os.fork():
            connection.close()
            continue
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        header, streams, _, _ = socket.recv_fds(connection, 8, 3)
        asked = connection.recv(struct.unpack("!Q", header)[0], socket.MSG_WAITALL)
        if child := os.fork():
            _watch(connection, child)
        connection.close()
        _run(*json.loads(asked), streams)


def _watch(connection: socket.socket, child: int) -> None:
    """Send the child's exit code; kill it if the script dies first."""
    connection.sendall(struct.pack("!i", child))
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([connection, ended], [], [])
    if ended not in ready:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended in ready:
        connection.sendall(struct.pack("!i", code if code >= 0 else 128 - code))
    os._exit(0)


def _run(target: str, arguments: list[str], folder: str, environment: dict[str, str], streams: list[int]) -> None:
    """Become the program; never returns."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = arguments
    sys.path.insert(0, "")
    sys.stdin, sys.stdout, sys.stderr = (
        io.TextIOWrapper(open(number, mode, closefd=False), line_buffering=number == 2)  # noqa: SIM115
        for number, mode in ((0, "rb"), (1, "wb"), (2, "wb"))
    )
    module, _, function = target.partition(":")
    sys.exit(getattr(importlib.import_module(module), function)())


if __name__ == "__main__":
    main()
