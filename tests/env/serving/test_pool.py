"""A pool: deaths of servers and of itself, leases over a restart, who waits and who is next."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
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


def test_a_server_that_dies_ends_its_episodes_as_invalid_and_others_go_on(tmp_path: Path) -> None:
    with (
        served("serve", "--capacity", "4") as first,
        served("serve", "--capacity", "4") as second,
        pooled(first, second, state=tmp_path / "state") as pool,
    ):
        envs = [environment(pool.url, seed) for seed in range(4)]
        assert (first.containers(), second.containers()) == (2, 2)  # spread by load
        on_second = {node: told["containers"] for node, told in pool.ask("/healthz")[1]["nodes"].items()}[second.url]
        assert on_second == 2
        first.kill()
        told = [env.step("<execute>echo alive</execute>") for env in envs]
        lost = [step for step in told if step[3]]
        assert len(lost) == 2
        for observation, reward, terminated, _, info in lost:
            assert (reward, terminated, info["valid"], info["end_reason"]) == (0.0, False, False, "error")
            assert first.url in info["failure_reason"] and "does not count" in observation
        assert sum("alive" in step[0] for step in told) == 2
        # What ended begins anew where there is room.
        for env, step in zip(envs, told, strict=True):
            if step[3]:
                env.reset(seed=9)
            assert "again" in env.step("<execute>echo again</execute>")[0]
        assert second.containers() == 4
        for env in envs:
            env.close()
        assert_eventually(lambda: second.containers() == 0, "all are ended")
        assert "swegym_lost 2.0" in pool.ask("/metrics")[1]


def test_a_pool_that_is_killed_comes_back_with_its_leases(server: Served, tmp_path: Path) -> None:
    before = server.containers()
    with pooled(server, state=tmp_path / "state", arguments=("--relay",)) as pool:
        env = environment(pool.url, 0)
        env.step("<execute>kept=here; echo x > made</execute>")
        snapshot = env.unwrapped.snapshot()
        port = pool.port
        told: list[Any] = []
        at_work = threading.Thread(
            target=lambda: told.append(env.step("<execute>sleep 1.5; echo ran >> log; wc -l < log</execute>"))
        )
        at_work.start()
        time.sleep(0.5)
        pool.kill()
        with pooled(server, state=tmp_path / "state", port=port, arguments=("--relay",)) as again:
            at_work.join()
            assert told[0][0].strip().startswith("1") and not told[0][3]  # sent twice, run once
            assert again.containers() == 1
            assert "here" in env.step("<execute>echo $kept</execute>")[0]
            env.unwrapped.restore(snapshot)
            assert "log" not in env.step("<execute>ls</execute>")[0]
            snapshot.discard()
            env.close()
            assert_eventually(lambda: server.containers() == before and again.containers() == 0, "it is ended")


def test_a_server_that_comes_back_without_its_containers_is_found_out(tmp_path: Path) -> None:
    with served("serve") as first:
        port = first.port
        with pooled(first, state=tmp_path / "state") as pool:
            sandbox = open_sandbox(SandboxSpec(), backend=pool.url)
            sandbox.start()
            first.kill()
            with served("serve", port=port):
                with pytest.raises(InfrastructureError, match=r"gone|no container"):
                    sandbox.run("true")
                fresh = open_sandbox(SandboxSpec(), backend=pool.url)
                fresh.start()
                assert fresh.run("echo new").output == "new\n"
                fresh.close()
                sandbox.close()
                assert_eventually(lambda: pool.containers() == 0, "nothing is held")


def test_who_finds_no_room_waits_and_a_full_queue_pushes_back(server: Served, tmp_path: Path) -> None:
    limits = ("--node-capacity", "2", "--capacity", "1", "--queue", "1")
    with pooled(server, state=tmp_path / "state", arguments=limits) as pool:
        first, second = (open_sandbox(SandboxSpec(), backend=pool.url) for _ in range(2))
        first.start()
        waiting = threading.Thread(target=second.start)
        waiting.start()
        assert_eventually(lambda: pool.ask("/healthz")[1]["waiting"] == 1, "one waits")
        status, told, headers = pool.ask("/container/create", {})
        assert (status, headers["retry-after"]) == (429, "1") and "wait for room" in told["error"]["message"]
        assert pool.containers() == 1
        first.close()
        waiting.join(20)
        assert second.run("echo mine").output == "mine\n"
        second.close()


def test_a_pools_containers_have_leases_that_end(tmp_path: Path) -> None:
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


def test_verdicts_survive_the_server_that_was_finding_them(tmp_path: Path) -> None:
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
        told: list[Any] = []
        message = {"task": row, "patch": "", "policy": "official"}
        grading = threading.Thread(target=lambda: told.append(pool.ask("/container/evaluate", message)))
        grading.start()
        time.sleep(1.5)
        # Equal loads go to the first address in order: that one dies.
        min((first, second), key=lambda each: each.url).kill()
        grading.join()
        status, verdict, _ = told[0]
        assert (status, verdict["resolved"], verdict["instance_id"]) == (200, True, "slow__one-1"), told


def test_a_server_with_the_image_is_preferred_and_then_the_least_loaded() -> None:
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
def test_no_client_gets_far_ahead_of_one_that_waits(clients: list[str], places: int) -> None:
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


def test_the_book_of_leases_is_whole_after_any_end(tmp_path: Path) -> None:
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
    shutil.copytree(path.parent, left)  # what a kill leaves now
    again = LeaseBook(left / "state")
    assert {(each.request, each.name, each.answer) for each in again} == {("r1", "n1", b"{}"), ("r2", "n2", b"")}
    assert again.named("n3") is None and again.requested("r1") is again.named("n1")
    again.close()
    book.close()
    LeaseBook(path).close()


def test_a_pool_that_asks_with_another_token_gets_nothing(server: Served, tmp_path: Path) -> None:
    book = tmp_path / "state"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWEGYM_TOKEN", TOKEN[::-1])
        with served("pool", "--nodes", server.url, "--state", str(book)) as pool:
            time.sleep(0.5)
            status = pool.ask("/healthz", token=TOKEN[::-1])[1]["nodes"][server.url]["status"]
            assert status == "lost"
