"""A peer without the token that does harm until it is killed: `python -m tests.env.serving.attacks KIND PORT`."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from dataclasses import dataclass

__all__ = ["ATTACKS", "Attack"]

_START = b"POST /container/exec HTTP/1.1\r\nHost: x\r\n"
_PIECE = 1 << 16


@dataclass(frozen=True)
class Attack:
    """What is sent on every connection; one that the server closes is opened again.

    Attributes:
        first: once.
        more: endlessly.
        connections: open at a time.
        pause_s: between two pieces of `more`, and before a connection is opened again.
        closes: the connection is closed after `first`; else the server has to.
    """

    first: bytes = b""
    more: bytes = b""
    connections: int = 16
    pause_s: float = 0.0
    closes: bool = False


ATTACKS = {
    "endless header": Attack(_START + b"X-A: ", b"a" * _PIECE),
    "endless headers": Attack(_START, b"X-A: b\r\n" * (_PIECE // 8)),
    "endless name of a header": Attack(_START, b"a" * _PIECE),
    "endless URL": Attack(b"GET /", b"a" * _PIECE),
    "endless method": Attack(b"", b"GET" * (_PIECE // 3)),
    "endless blank lines": Attack(b"", b"\r\n" * (_PIECE // 2)),
    "endless body": Attack(_START + b"Content-Length: 1000000000000\r\n\r\n", b"a" * _PIECE),
    "endless chunks": Attack(_START + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n" * (_PIECE // 6)),
    "endless chunk": Attack(_START + b"Transfer-Encoding: chunked\r\n\r\nffffffffff\r\n", b"a" * _PIECE),
    "endless trailer": Attack(_START + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-A: ", b"a" * _PIECE),
    "requests in a row": Attack(b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * (_PIECE // 34)),
    "requests without the token": Attack(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", pause_s=0.01, closes=True),
    "random bytes": Attack(b"", os.urandom(_PIECE)),
    "slow headers": Attack(_START, b"a", connections=300, pause_s=0.2),
    "silent connections": Attack(connections=300),
    "connections that close": Attack(pause_s=0.005, closes=True),
}


def main() -> None:
    """Attack until killed; prints a line when it has begun."""
    attack, port = ATTACKS[sys.argv[1]], int(sys.argv[2])
    os.nice(19)  # a peer is another machine: its own work must not slow down the server
    threading.stack_size(1 << 18)
    for _ in range(attack.connections):
        threading.Thread(target=_attack, args=(attack, port), daemon=True).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    threading.Event().wait()


def _attack(attack: Attack, port: int) -> None:
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as end:
            end.sendall(attack.first)
            while attack.more:
                end.sendall(attack.more)
                time.sleep(attack.pause_s)
            if not attack.closes:
                end.recv(1)
        time.sleep(attack.pause_s)


if __name__ == "__main__":
    main()
