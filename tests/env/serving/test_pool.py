"""Pools: death of a server or of the pool, leases across a restart, the queue, and placement."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import signal
import socket
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

import swegym_env  # noqa: F401 - registers the environments
from swegym_env.errors import InfrastructureError
from swegym_env.sandbox import SandboxSpec, open_sandbox
from swegym_env.serving.leases import Lease, LeaseBook
from swegym_env.serving.placement import Candidate, Ticket, best, next_ticket
from tests.env.serving.conftest import TOKEN, Served, assert_eventually, pooled, served


def environment(url: str, seed: int) -> Any:
    env = gymnasium.make("SWEBench-v0", sandbox=url, pool=0)
    env.reset(seed=seed)
    return env


def test_dead_server_makes_its_episodes_invalid_and_no_others(tmp_path: Path) -> None:
    with (
        served("serve", "--capacity", "4") as first,
        served("serve", "--capacity", "4") as second,
        pooled(first, second, state=tmp_path / "state") as pool,
    ):
        envs = [environment(pool.url, seed) for seed in range(4)]
        assert (first.containers(), second.containers()) == (2, 2)  # spread by load
        on_second = {node: state["containers"] for node, state in pool.ask("/healthz")[1]["nodes"].items()}[second.url]
        assert on_second == 2
        first.kill()
        steps = [env.step("<execute>echo alive</execute>") for env in envs]
        lost = [step for step in steps if step[3]]
        assert len(lost) == 2
        for observation, reward, terminated, _, info in lost:
            assert (reward, terminated, info["valid"], info["end_reason"]) == (0.0, False, False, "error")
            assert first.url in info["failure_reason"] and "episode is invalid" in observation
        assert sum("alive" in step[0] for step in steps) == 2
        # An episode that ended starts again on the other server.
        for env, step in zip(envs, steps, strict=True):
            if step[3]:
                env.reset(seed=9)
            assert "again" in env.step("<execute>echo again</execute>")[0]
        assert second.containers() == 4
        for env in envs:
            env.close()
        assert_eventually(lambda: second.containers() == 0, "all are ended")
        assert "swegym_lost 2.0" in pool.ask("/metrics")[1]


def test_killed_pool_restarts_with_its_leases(server: Served, tmp_path: Path) -> None:
    before = server.settled_containers()
    with pooled(server, state=tmp_path / "state", arguments=("--relay",)) as pool:
        env = environment(pool.url, 0)
        env.step("<execute>kept=here; echo x > made</execute>")
        snapshot = env.unwrapped.snapshot()
        port = pool.port
        steps: list[Any] = []
        at_work = threading.Thread(
            target=lambda: steps.append(env.step("<execute>sleep 1.5; echo ran >> log; wc -l < log</execute>"))
        )
        at_work.start()
        time.sleep(0.5)
        pool.kill()
        with pooled(server, state=tmp_path / "state", port=port, arguments=("--relay",)) as again:
            at_work.join()
            assert steps[0][0].strip().startswith("1") and not steps[0][3]  # sent twice, run once
            assert again.containers() == 1
            assert "here" in env.step("<execute>echo $kept</execute>")[0]
            env.unwrapped.restore(snapshot)
            assert "log" not in env.step("<execute>ls</execute>")[0]
            snapshot.discard()
            env.close()
            assert_eventually(lambda: server.containers() == before and again.containers() == 0, "it is ended")


def stopped(servers: Sequence[Served]) -> ExitStack:
    """Stop these processes for the length of the block: connections are accepted, and nothing responds."""
    stack = ExitStack()
    for server in servers:
        server.process.send_signal(signal.SIGSTOP)
        stack.callback(server.process.send_signal, signal.SIGCONT)
    return stack


def test_pool_restarted_while_servers_are_too_busy_loses_none_of_their_containers(tmp_path: Path) -> None:
    quick = ("--relay", "--node-timeout", "1")
    with ExitStack() as stack:
        servers = [stack.enter_context(served("serve", "--capacity", "2")) for _ in range(3)]
        with pooled(*servers, state=tmp_path / "state", arguments=quick) as pool:
            sandboxes = [open_sandbox(SandboxSpec(workdir="/tmp"), backend=pool.url) for _ in range(3)]
            for number, sandbox in enumerate(sandboxes):
                sandbox.start()
                sandbox.run(f"kept={number}")
            assert [server.containers() for server in servers] == [1, 1, 1]
            port = pool.port
        nodes = ",".join(server.url for server in servers)
        arguments = ("pool", "--nodes", nodes, "--state", str(tmp_path / "state"), *quick)
        with served(*arguments, port=port) as again:

            def states() -> list[str]:
                return sorted(node["status"] for node in again.ask("/healthz")[1]["nodes"].values())

            with stopped(servers[:2]):
                assert_eventually(lambda: states() == ["lost", "lost", "ok"], "two servers are lost")
                assert again.containers() == 3
            assert_eventually(lambda: states() == ["ok", "ok", "ok"], "they are back")
            outputs = [sandbox.run("echo $kept").output for sandbox in sandboxes]
            assert outputs == ["0\n", "1\n", "2\n"]
            for sandbox in sandboxes:
                sandbox.close()
            assert_eventually(lambda: again.containers() == 0, "all are ended")
            assert "swegym_lost 0.0" in again.ask("/metrics")[1]


@pytest.mark.campaign  # takes as long as three health checks
def test_request_waits_for_a_server_that_is_too_busy_as_the_pool_restarts(tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(served("serve", "--capacity", "1")) for _ in range(2)]
        with pooled(*servers, state=tmp_path / "state", arguments=("--relay",)) as pool:
            sandboxes = [open_sandbox(SandboxSpec(workdir="/tmp"), backend=pool.url) for _ in range(2)]
            for sandbox in sandboxes:
                sandbox.start()
            port = pool.port
        nodes = ",".join(server.url for server in servers)
        busy = stopped(servers[:1])
        resuming = threading.Timer(12.0, busy.close)
        resuming.start()
        with served("pool", "--nodes", nodes, "--state", str(tmp_path / "state"), "--relay", port=port):
            assert [sandbox.run("echo here").output for sandbox in sandboxes] == ["here\n"] * 2
            resuming.join()
            for sandbox in sandboxes:
                sandbox.close()


def test_container_that_was_reported_lost_stays_lost_and_its_neighbours_return(tmp_path: Path) -> None:
    quick = ("--relay", "--node-timeout", "1", "--lease", "60")
    with served("serve") as server, pooled(server, state=tmp_path / "state", arguments=quick) as pool:
        asked, idle = (pool.ask("/container/create", {"workdir": "/tmp"})[1]["container"] for _ in range(2))
        command = {"container": asked, "command": "echo here"}
        with stopped([server]):
            status, payload, _ = pool.ask("/container/exec", command)
            assert status == 424 and server.url in payload["error"]["message"]
        assert_eventually(lambda: pool.ask("/healthz")[1]["nodes"][server.url]["status"] == "ok", "it is back")
        assert pool.ask("/container/exec", command | {"container": idle})[0] == 200
        assert pool.ask("/container/exec", command)[0] == 424
        assert pool.containers() == 1
        pool.ask("/container/destroy", {"container": idle})


def test_pool_that_lost_its_file_asks_the_servers_for_their_containers(tmp_path: Path) -> None:
    with served("serve") as first, served("serve") as second:
        with pooled(first, second, state=tmp_path / "state", arguments=("--relay",)) as pool:
            envs = [environment(pool.url, seed) for seed in range(2)]
            for number, env in enumerate(envs):
                env.step(f"<execute>kept={number}</execute>")
            port = pool.port
        with pooled(first, second, state=tmp_path / "other", port=port, arguments=("--relay",)) as again:
            assert again.containers() == 0
            for number, env in enumerate(envs):
                observation, _, _, truncated, _ = env.step("<execute>echo $kept</execute>")
                assert str(number) in observation and not truncated
            assert again.containers() == 2
            assert again.ask("/container/exec", {"container": "0" * 32, "command": "true"})[0] == 404
            for env in envs:
                env.close()
            assert_eventually(lambda: first.containers() == second.containers() == again.containers() == 0, "ended")


def test_pool_that_lost_its_file_does_not_call_a_container_ended_while_a_server_is_silent(tmp_path: Path) -> None:
    quick = ("--relay", "--node-timeout", "1")
    with served("serve") as first, served("serve") as second:
        with pooled(first, second, state=tmp_path / "state", arguments=quick) as pool:
            names = [pool.ask("/container/create", {"workdir": "/tmp"})[1]["container"] for _ in range(2)]
        with pooled(first, second, state=tmp_path / "other", arguments=quick) as again:
            with stopped([second]):
                replies = [again.ask("/container/exec", {"container": name, "command": "true"}) for name in names]
                assert sorted(status for status, _, _ in replies) == [200, 424]
                silent = next(payload for status, payload, _ in replies if status == 424)
                assert second.url in silent["error"]["message"]
                assert again.ask("/container/renew", {"containers": names})[1] == {"gone": []}
            assert_eventually(
                lambda: (
                    {again.ask("/container/exec", {"container": name, "command": "true"})[0] for name in names} == {200}
                ),
                "both servers respond",
            )


@contextmanager
def redirected(target: list[str]) -> Iterator[str]:
    """A proxy to the port `target[0]`, which the test may change; yields its address."""

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def join(near: socket.socket) -> None:
        with near, socket.create_connection(("127.0.0.1", int(target[0]))) as far:
            back = threading.Thread(target=pump, args=(far, near))
            back.start()
            pump(near, far)
            back.join()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=join, args=(listener.accept()[0],), daemon=True).start()

    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=accept, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def test_container_of_a_server_that_has_restarted_a_moment_ago_stays(tmp_path: Path) -> None:
    """The pool has not yet seen that it is another process."""
    with ExitStack() as stack:
        servers = [stack.enter_context(served("serve")) for _ in range(4)]
        target = [servers[0].port]
        node = Served(servers[0].process, stack.enter_context(redirected(target)))
        pool = stack.enter_context(pooled(node, state=tmp_path / "state", arguments=("--relay",)))
        for before, after in itertools.pairwise(servers):  # between two health checks in most of them
            target[0] = after.port
            before.kill()
            name = pool.ask("/container/create", {"workdir": "/tmp"})[1]["container"]
            ends = time.monotonic() + 2.0  # longer than the time between two health checks
            while time.monotonic() < ends:
                assert pool.ask("/container/exec", {"container": name, "command": "echo here"})[0] == 200
                time.sleep(0.1)


def test_server_that_is_no_longer_listed_keeps_its_containers_and_gets_no_new_ones(tmp_path: Path) -> None:
    with served("serve") as first, served("serve") as second:
        with pooled(first, state=tmp_path / "state") as pool:
            container = pool.ask("/container/create", {"workdir": "/tmp"})[1]["container"]
        nodes = ("pool", "--nodes", second.url, "--state", str(tmp_path / "state"))
        with served(*nodes) as again:
            command = {"container": container, "command": "echo here"}
            assert again.ask("/container/exec", command)[1]["output"] == "here\n"
            other = again.ask("/container/create", {})[1]
            assert other["node"] == second.url
            assert again.ask("/healthz")[1]["nodes"][first.url]["status"] == "retired"
            for name in (container, other["container"]):
                assert again.ask("/container/destroy", {"container": name})[1] == {"ended": True}
            assert_eventually(lambda: first.containers() == second.containers() == 0, "both are ended")


def test_restarted_server_has_lost_its_containers(tmp_path: Path) -> None:
    with served("serve") as first:
        port = first.port
        with pooled(first, state=tmp_path / "state") as pool:
            sandbox = open_sandbox(SandboxSpec(), backend=pool.url)
            sandbox.start()
            first.kill()
            with served("serve", port=port):
                with pytest.raises(InfrastructureError, match=r"lost|no container"):
                    sandbox.run("true")
                fresh = open_sandbox(SandboxSpec(), backend=pool.url)
                fresh.start()
                assert fresh.run("echo new").output == "new\n"
                fresh.close()
                sandbox.close()
                assert_eventually(lambda: pool.containers() == 0, "nothing is held")


def test_requests_without_capacity_wait_and_a_full_queue_refuses(server: Served, tmp_path: Path) -> None:
    limits = ("--node-capacity", "2", "--capacity", "1", "--queue", "1")
    with pooled(server, state=tmp_path / "state", arguments=limits) as pool:
        first, second = (open_sandbox(SandboxSpec(), backend=pool.url) for _ in range(2))
        first.start()
        waiting = threading.Thread(target=second.start)
        waiting.start()
        assert_eventually(lambda: pool.ask("/healthz")[1]["waiting"] == 1, "one waits")
        status, payload, headers = pool.ask("/container/create", {})
        assert (status, headers["retry-after"]) == (429, "1") and "are waiting already" in payload["error"]["message"]
        assert pool.containers() == 1
        first.close()
        waiting.join(20)
        assert second.run("echo mine").output == "mine\n"
        second.close()


def test_leases_of_a_pool_expire(tmp_path: Path) -> None:
    with (
        served("serve", "--lease", "60") as server,
        pooled(server, state=tmp_path / "state", arguments=("--lease", "1.5")) as pool,
    ):
        container = pool.ask("/container/create", {})[1]["container"]
        for _ in range(4):
            time.sleep(0.6)
            assert pool.ask("/container/renew", {"containers": [container, "0" * 32]})[1] == {"gone": ["0" * 32]}
        assert pool.containers() == server.containers() == 1
        assert_eventually(lambda: pool.containers() == server.containers() == 0, "the lease ends")
        assert pool.ask("/container/exec", {"container": container, "command": "true"})[0] == 404


def test_grading_continues_on_another_server(tmp_path: Path) -> None:
    row = {
        "instance_id": "slow__one-1",
        "repo": "slow/one",
        "base_commit": "",
        "problem_statement": "p",
        "patch": "diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-x\n+y\n",
        "files": {"a.txt": "x\n"},
        "FAIL_TO_PASS": ["test_a"],
        "PASS_TO_PASS": [],
        "test_command": "sleep 4; echo 'PASSED test_a'",
        "log_parser": "pytest",
    }
    with (
        served("serve") as first,
        served("serve") as second,
        pooled(first, second, state=tmp_path / "state") as pool,
    ):
        responses: list[Any] = []
        message = {"task": row, "patch": "", "policy": "official"}
        grading = threading.Thread(target=lambda: responses.append(pool.ask("/container/evaluate", message)))
        grading.start()
        time.sleep(1.5)
        # Equal loads go to the first address in order: that one dies.
        min((first, second), key=lambda each: each.url).kill()
        grading.join()
        status, verdict, _ = responses[0]
        assert (status, verdict["resolved"], verdict["instance_id"]) == (200, True, "slow__one-1"), responses


def test_placement_prefers_servers_with_the_image_then_the_least_loaded() -> None:
    a, b, c = (Candidate(url, capacity=10, usable=True) for url in "abc")
    b.images = frozenset({"docker://x"})
    b.held = 8
    assert best([a, b, c], "docker://x", "") is b
    b.held = 10
    a.held = 1
    assert best([a, b, c], "docker://x", "") is c
    assert best([a, b], "host", "") is a
    b.held, b.prepared = 5, {"django/django"}
    assert best([a, b, c], "host", "django/django") is b
    a.usable = c.usable = False
    b.held = 10
    assert best([a, b, c], "host", "") is None


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=60), st.integers(1, 6))
def test_queue_is_fair_between_clients(clients: list[str], places: int) -> None:
    queue = [Ticket(client, "host", "", number) for number, client in enumerate(clients)]
    holding: Counter[str] = Counter()
    for _ in range(places):
        ticket = next_ticket(queue, holding)
        if ticket is None:
            break
        assert all(holding[ticket.client] <= holding[other.client] for other in queue)
        same = [other.number for other in queue if other.client == ticket.client]
        assert ticket.number == min(same)
        queue.remove(ticket)
        holding[ticket.client] += 1


def test_lease_book_is_complete_after_any_death(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state"
    book = LeaseBook(path)
    book.put(Lease("r1", "container", "http://a", "i", "me"))
    book.put(Lease("r1", "container", "http://a", "i", "me", "n1", b"{}"))
    book.put(Lease("r2", "snapshot", "http://a", "i", "me", "n2"))
    gone = Lease("r3", "container", "http://b", "j", "you", "n3")
    book.put(gone)
    book.drop(gone)
    book.drop(gone)
    with pytest.raises(ValueError, match="another pool"):
        LeaseBook(path)
    left = tmp_path / "left"
    shutil.copytree(path.parent, left)  # what a SIGKILL at this moment leaves
    again = LeaseBook(left / "state")
    assert {(each.request, each.name, each.reply) for each in again} == {("r1", "n1", b"{}"), ("r2", "n2", b"")}
    assert again.named("n3") is None and again.requested("r1") is again.named("n1")
    again.close()
    book.close()
    LeaseBook(path).close()


def test_pool_with_another_token_has_no_servers(server: Served, tmp_path: Path) -> None:
    book = tmp_path / "state"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWEGYM_TOKEN", TOKEN[::-1])
        with served("pool", "--nodes", server.url, "--state", str(book)) as pool:
            time.sleep(0.5)
            status = pool.ask("/healthz", token=TOKEN[::-1])[1]["nodes"][server.url]["status"]
            assert status == "lost"


def test_lease_book_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "state") as file:
        columns = "request TEXT PRIMARY KEY, kind TEXT, node TEXT, identity TEXT, client TEXT, name TEXT, answer BLOB"
        file.execute(f"CREATE TABLE leases ({columns})")
        file.execute("INSERT INTO leases VALUES ('r1', 'container', 'http://a', 'i', 'me', 'n1', x'7b7d')")
    file.close()
    book = LeaseBook(tmp_path / "state")
    assert [(each.request, each.name, each.reply, each.digest) for each in book] == [("r1", "n1", b"{}", b"")]
    book.put(Lease("r2", "container", "http://a", "i", "me", "n2", b"{}", b"digest"))
    book.close()
    again = LeaseBook(tmp_path / "state")
    found = again.requested("r2")
    assert found is not None and found.digest == b"digest"
    again.close()
