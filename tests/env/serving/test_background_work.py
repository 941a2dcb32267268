"""What servers and pools do all the time goes on after a failure, and what they store is bounded.

They run in this process, without HTTP: what fails is a real file, disk or database.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from swegym_env.sandbox.remote import leases
from swegym_env.sandbox.remote.connection import ServerClient
from swegym_env.serving.app import REQUESTS, Incoming
from swegym_env.serving.ceilings import ceilings_of_machine
from swegym_env.serving.leases import Lease, LeaseBook
from swegym_env.serving.placement import Ticket
from swegym_env.serving.pool import Pool
from swegym_env.serving.preparing import Rules
from swegym_env.serving.replies import Replies, StoredBytes
from swegym_env.serving.server import Server
from tests.env.serving.conftest import Served, assert_eventually

_ids = iter(range(1 << 30))


async def send(handler: Server | Pool, path: str, message: dict[str, Any], request_id: str = "") -> tuple[int, Any]:
    """Status and JSON of the reply, as the gate would send it."""
    body = json.dumps(message).encode()
    incoming = Incoming(body, request_id or f"request-{next(_ids)}", "a client")
    status, reply = await handler.handle(path, REQUESTS[path].model_validate(message), incoming)
    return status, json.loads(reply)


async def until(holds: Callable[[], bool], what: str, patience_s: float = 30.0) -> None:
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline, f"never came: {what}"
        await asyncio.sleep(0.02)


def a_server(**arguments: Any) -> Server:
    return Server(Rules(ceilings_of_machine()), **{"capacity": 4, "lease_s": 60.0, "graders": 1, **arguments})


def test_snapshot_is_kept_for_a_lease_after_its_container_and_while_a_restored_one_lives(surroundings: Path) -> None:
    async def play() -> None:
        server = a_server(lease_s=20.0)
        reaping = asyncio.create_task(server.reap())
        created = (await send(server, "/container/create", {"workdir": "/tmp"}))[1]
        name = (await send(server, "/container/snapshot", {"container": created["container"]}))[1]["snapshot"]
        kept = server._snapshots[name]
        kept.used = 0.0
        await until(lambda: kept.used > 0.0, "it is used while its container lives")
        await send(server, "/container/destroy", {"container": created["container"]})
        again = (await send(server, "/container/create", {"workdir": "/tmp"}))[1]
        restored, _ = await send(server, "/container/restore", {"container": again["container"], "snapshot": name})
        assert restored == 200
        kept.used = 0.0
        await until(lambda: kept.used > 0.0, "it is used while a restored container lives")
        assert list(server._snapshots) == [name]
        reaping.cancel()
        await send(server, "/snapshot/discard", {"snapshot": name})
        await send(server, "/container/destroy", {"container": again["container"]})
        await until(lambda: server.containers == 0, "both are gone")

    asyncio.run(play())


def test_snapshot_that_cannot_be_freed_is_freed_later_and_other_leases_still_expire(
    surroundings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()

    async def play() -> None:
        server = a_server(lease_s=0.2)
        reaping = asyncio.create_task(server.reap())
        created = (await send(server, "/container/create", {"workdir": "/tmp"}))[1]
        snapshot = (await send(server, "/container/snapshot", {"container": created["container"]}))[1]["snapshot"]
        directory = Path(server._snapshots[snapshot].snapshot.directory)  # type: ignore[attr-defined]
        await send(server, "/container/destroy", {"container": created["container"]})
        await until(lambda: server.containers == 0, "the container has ended")
        with monkeypatch.context() as patch:
            patch.setenv("SWEGYM_RUNDIR", str(tmp_path / "file" / "below"))  # no supervisor can start there
            server._snapshots[snapshot].used = 0.0
            await until(lambda: "freeing the expired snapshot" in caplog.text, "it cannot be freed")
            status, _ = await send(server, "/snapshot/discard", {"snapshot": snapshot})
            assert status == 424 and directory.is_dir() and not reaping.done()
        created = (await send(server, "/container/create", {"workdir": "/tmp"}))[1]  # its lease expires
        await until(lambda: not directory.exists() and server.reaped == 1, "both are gone")
        assert not reaping.done()
        reaping.cancel()

    with caplog.at_level(logging.ERROR):
        asyncio.run(play())


def a_pool(book: LeaseBook, **arguments: Any) -> Pool:
    given = {"node_capacity": None, "capacity": None, "queue": 8, "lease_s": 0.2, "silence_s": 0.1, **arguments}
    return Pool(["http://127.0.0.1:1"], "token", book, **given)


def test_pool_that_cannot_write_its_leases_goes_on_and_removes_them_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        book = LeaseBook(tmp_path / "state")
        for number in range(2):
            book.put(Lease(f"request-{number}", "container", "http://127.0.0.1:1", "x", "client", f"name-{number}"))
        pool = a_pool(book)
        book._file.execute("PRAGMA query_only=ON")  # as on a full disk
        (member,) = pool.members.values()
        watching, sweeping = asyncio.create_task(member.watch()), asyncio.create_task(pool.sweep())
        await until(lambda: "name-1" in caplog.text, "a lease cannot be removed")
        assert pool.containers == 2 and len(list(book)) == 2
        book._file.execute("PRAGMA query_only=OFF")
        await until(lambda: pool.containers == 0 and not list(book), "the leases are removed")
        assert not sweeping.done() and not watching.done()
        for task in (watching, sweeping):
            task.cancel()
        pool.close()
        rows = sqlite3.connect(tmp_path / "state").execute("SELECT COUNT(*) FROM leases").fetchone()
        assert rows == (0,)

    with caplog.at_level(logging.ERROR):
        asyncio.run(play())


def test_pool_watches_a_server_that_answers_nonsense(caplog: pytest.LogCaptureFixture) -> None:
    asked = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await reader.readuntil(b"\r\n\r\n")
        asked += 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n[]")
        await writer.drain()
        writer.close()

    async def play() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as listener:
            port = listener.sockets[0].getsockname()[1]
            given = {"node_capacity": None, "capacity": None, "queue": 8, "lease_s": 60.0, "silence_s": 60.0}
            pool = Pool([f"http://127.0.0.1:{port}"], "token", LeaseBook(None), **given)
            (member,) = pool.members.values()
            watching = asyncio.create_task(member.watch())
            await until(lambda: asked >= 2, "it is asked again")
            assert not watching.done() and member.lost
            watching.cancel()
            pool.close()

    with caplog.at_level(logging.ERROR):
        asyncio.run(play())
    assert "could not be noted" in caplog.text


def test_request_that_has_just_left_the_queue_is_granted_nothing() -> None:
    async def play() -> None:
        pool = a_pool(LeaseBook(None), lease_s=60.0)
        (member,) = pool.members.values()
        member.identity, member._responded = "x", time.monotonic()
        first, second = (Ticket("client", "host", "", number, 0.0) for number in range(2))
        reserving = [asyncio.create_task(pool._reserve(ticket)) for ticket in (first, second)]
        await asyncio.sleep(0)
        assert pool.waiting == 2
        reserving[0].cancel()
        member.candidate.capacity, member.candidate.usable = 1, True
        pool._grant()  # before the cancelled request has run
        assert await reserving[1] is member
        await asyncio.gather(*reserving, return_exceptions=True)
        assert (pool.waiting, member.candidate.held) == (0, 1)
        pool.close()

    asyncio.run(play())


def test_renewals_go_on_after_an_error_that_nobody_expects(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    client = ServerClient(server.url, token="a-token-for-tests-0123456789")
    token = client._headers.pop("Authorization")
    client._headers["Authorization"] = "\n"  # http.client refuses such a header: a ValueError
    created = server.ask("/container/create", {"workdir": "/tmp"})[1]["container"]
    try:
        with caplog.at_level(logging.ERROR):
            leases.hold(client, created, 0.2)
            assert_eventually(lambda: "could not be renewed" in caplog.text, "the error is logged")
        client._headers["Authorization"] = token
        seen = requested(server, "/container/renew")
        assert_eventually(lambda: requested(server, "/container/renew") > seen, "leases are renewed again")
    finally:
        leases.release(client, created)
        assert_eventually(lambda: client not in leases._held, "the thread has ended")
        client.close_idle()
        server.ask("/container/destroy", {"container": created})


def requested(server: Served, path: str) -> float:
    """How many requests of this path the server has answered with success."""
    text = str(server.ask("/metrics")[1])
    name = f'swegym_requests_total{{path="{path}",status="200"}} '
    return sum(float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name))


def test_stored_replies_of_all_containers_have_one_limit_and_nothing_runs_twice() -> None:
    async def play() -> None:
        server = a_server(stored_bytes=100_000)
        names = [(await send(server, "/container/create", {"workdir": "/tmp"}))[1]["container"] for _ in range(3)]
        command = "echo x >>log; head -c 40000 /dev/zero | tr '\\0' x"
        commands = [{"container": name, "command": command} for name in names]
        for number, command in enumerate(commands):
            status, reply = await send(server, "/container/exec", command, f"large-{number}")
            assert status == 200 and len(reply["output"]) == 40_000
            assert server.stored.held_bytes <= 100_000
        again = [await send(server, "/container/exec", each, f"large-{n}") for n, each in enumerate(commands)]
        assert [status for status, _ in again] == [424, 200, 200]  # two fit
        assert "not stored" in again[0][1]["error"]["message"]
        for name in names:
            count = await send(server, "/container/exec", {"container": name, "command": "wc -l <log"})
            assert count[1]["output"] == "1\n"
        for name in names:
            await send(server, "/container/destroy", {"container": name})
        await until(lambda: server.containers == 0, "all have ended")
        left = server.stored.held_bytes
        assert left < 2_000  # those to the creations

    asyncio.run(play())


def test_replies_are_bounded_in_number_and_bytes_while_requests_are_in_progress() -> None:
    async def play() -> None:
        total = StoredBytes(1000)
        one, other = Replies(total, 2), Replies(total, 2)
        runs = 0
        proceed = asyncio.Event()

        def work(size: int, *, waits: bool = False) -> Callable[[], Awaitable[tuple[int, bytes]]]:
            async def run() -> tuple[int, bytes]:
                nonlocal runs
                runs += 1
                if waits:
                    await proceed.wait()
                return 200, b"x" * size

            return run

        async def ask(replies: Replies, name: str, size: int, **how: bool) -> tuple[int, bytes]:
            return await replies.once(("exec", name), b"", work(size, **how), repeatable=False)

        waiting = [asyncio.create_task(ask(one, f"slow-{n}", 10, waits=True)) for n in range(5)]
        await asyncio.sleep(0)
        for number in range(50):
            assert await ask(one, f"quick-{number}", 300) == (200, b"x" * 300)
            assert await ask(other, f"quick-{number}", 300) == (200, b"x" * 300)
            await asyncio.sleep(0)
            assert total.held_bytes <= 1000
        assert runs == 105
        proceed.set()
        assert await asyncio.gather(*waiting) == [(200, b"x" * 10)] * 5
        await asyncio.sleep(0)
        assert len(one._stored) <= 2 and len(other._stored) <= 2 and total.held_bytes <= 1000
        assert await ask(other, "huge", 5000) == (200, b"x" * 5000)  # larger than all may be: sent, and not kept
        await asyncio.sleep(0)
        assert (await ask(other, "huge", 5000))[0] == 424
        one.close()
        other.close()
        assert total.held_bytes == 0 and runs == 106

    asyncio.run(play())
