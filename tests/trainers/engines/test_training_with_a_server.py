"""`swe-train` that starts a generation server, sends it every update's weights, and outlives its death."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.services import free_port
from swe_trainers.engines.connect import EngineConfig, connect
from swe_trainers.engines.sampling import Sampling
from swe_trainers.engines.server_process import ServerProcess
from swe_trainers.errors import ConfigurationError, EngineError
from swe_trainers.evaluation.evaluate import evaluate_run
from swe_trainers.experiment import run_experiment
from swe_trainers.logging import read_metrics
from swe_trainers.run_config import RunConfig, run_config
from tests.trainers.tiny import full_logprobs, lake_run, tiny_model


def configuration(folder: Path, *, staleness: int = 0, **engine) -> RunConfig:
    return run_config(
        lake_run(
            folder,
            environment={"parallel": 4},
            trainer={"max_updates": 4, "episodes_per_update": 8, "minibatches": 1, "temperature": 0.9,
                     "correction": "truncate"},
            rollout={"max_staleness": staleness, "partial": bool(staleness)},
            engine=engine,
        )
    )  # fmt: skip


def server_command() -> list[str]:
    return [
        sys.executable,
        "-m",
        "swe_trainers.cli.serve",
        "{weights}",
        "--port",
        "{port}",
        "--threads",
        "1",
    ]


def servers(port: int) -> list[int]:
    """The processes that serve at this port."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if b"swe_trainers.cli.serve" in line and str(port).encode() in line:
            found.append(int(entry.name))
    return found


@pytest.mark.parametrize(
    ("staleness", "transport"),
    [
        (0, "files"),
        pytest.param(1, "files", marks=pytest.mark.campaign),
        pytest.param(0, "gloo", marks=pytest.mark.campaign),
        (1, "gloo"),
    ],
)
def test_run_survives_the_death_of_its_server(tmp_path: Path, staleness: int, transport: str) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    config = configuration(
        tmp_path, staleness=staleness, kind="vllm", url=url, command=server_command(), transport=transport
    )
    metrics, killed = tmp_path / "run" / "metrics.jsonl", []

    def kill() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not (metrics.exists() and len(metrics.read_text().splitlines()) >= 1):
            time.sleep(0.005)
        killed.extend(servers(port))
        for pid in killed:
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    learner = run_experiment(config, console=False)
    killer.join()
    assert len(killed) == 1 and learner.updates == 4
    assert servers(port) == []
    rows = [row for row in read_metrics(metrics) if row["update"]]
    assert [row["update"] for row in rows] == [1, 2, 3, 4]
    # After every change of weights the server and the policy agree on the log-probabilities.
    for row in rows:
        assert row["engine/probe_gap"] < 1e-4
        assert row["logprob_gap"] < 1e-4 or row["staleness/max"] == staleness
    assert sum(row["episodes"] for row in rows) == 32


def test_server_restarted_during_an_update_has_the_weights_that_were_sent(tmp_path: Path) -> None:
    port, model = free_port(), tiny_model("qwen3")
    config = EngineConfig(
        kind="vllm", url=f"http://127.0.0.1:{port}", command=tuple(server_command()), transport="gloo"
    )
    with ExitStack() as stack:
        folder = tmp_path / "serving"
        generation = connect(config, model, stack, n_slots=2, max_tokens=96, folder=folder, training=True, ahead=True)
        generation.prepare(1, Sampling())
        sent = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)
        (pid,) = servers(port)
        os.kill(pid, signal.SIGKILL)
        slot = generation.engine.open()
        generation.engine.submit(
            slot, [5, 6, 7], max_new_tokens=8, stop_ids=(), sampling=Sampling(), random=np.random.default_rng(0)
        )
        samples = []
        while generation.engine.busy:
            samples += generation.engine.step()
        assert servers(port) not in ([], [pid])
        (sample,) = samples
        truth = full_logprobs(sent, [5, 6, 7, *sample.token_ids])[3:]
        torch.testing.assert_close(torch.tensor(sample.logprobs), truth, rtol=1e-4, atol=1e-4)
        assert set(sample.versions) == {1}


def test_server_that_does_not_start_is_a_one_line_error(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo no such GPU; exit 3"]
    config = configuration(tmp_path, kind="vllm", url=f"http://127.0.0.1:{free_port()}", command=command)
    with pytest.raises(EngineError, match="ended with 3: no such GPU"):
        run_experiment(config, console=False)
    config = configuration(tmp_path, kind="vllm", url="http://127.0.0.1:9", command=["/nowhere/vllm"])
    with pytest.raises(ConfigurationError, match="/nowhere/vllm: No such file"):
        evaluate_run(config, tmp_path / "evaluation", episodes=1)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"url": "http://127.0.0.1:1"}, "no effect with kind embedded"),
        ({"kind": "vllm"}, "needs the server's address"),
        ({"kind": "vlm"}, "engine.kind: got 'vlm', expected one of embedded, vllm, sglang"),
        ({"kind": "sglang", "url": "http://127.0.0.1:1", "gpus": "0"}, "no effect without command"),
        ({"kind": "vllm", "url": "http://127.0.0.1:1", "timeout_s": 0}, "must be positive"),
        ({"transport": "gloo"}, "no effect with kind embedded"),
        ({"kind": "sglang", "url": "http://127.0.0.1:1", "transport": "nccl"}, "takes weights through files"),
    ],
)
def test_engine_settings_without_effect_are_rejected(tmp_path: Path, engine, message) -> None:
    with pytest.raises(ConfigurationError, match=message):
        configuration(tmp_path, **engine)


@contextmanager
def watched(folder: Path, **options) -> Iterator[ServerProcess]:
    """A server of nothing but /health."""
    (folder / "health").touch()
    url = f"http://127.0.0.1:{free_port()}"
    process = ServerProcess(health_command(folder, url), url, folder / "log", start_timeout_s=60, **options)
    with process.watched():
        yield process


def health_command(folder: Path, url: str) -> list[str]:
    """Serves the files of a folder."""
    port = url.rpartition(":")[2]
    return [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(folder), port]


def test_a_server_that_this_process_did_not_start_is_not_taken_for_its_own(tmp_path: Path) -> None:
    (tmp_path / "health").touch()
    url = f"http://127.0.0.1:{free_port()}"
    with ServerProcess(health_command(tmp_path, url), url, tmp_path / "log", start_timeout_s=60) as other:
        mine = ServerProcess(health_command(tmp_path, url), url, tmp_path / "mine.log", start_timeout_s=60)
        with pytest.raises(EngineError, match=f"{url}: another server responds there"), mine:
            pass
        assert not mine.lives() and other.lives()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_dead_server_is_restarted_without_a_request_and_probed(tmp_path: Path) -> None:
    proofs = []
    with watched(tmp_path, restarts=2) as server:
        server.prove = lambda: proofs.append(server.pid)
        for n in range(2):
            first = server.pid
            os.kill(first, signal.SIGKILL)
            until(lambda n=n: len(proofs) == n + 1)
            server.revive()  # nothing to do, and waits for who is at it
            assert proofs[-1] == server.pid != first
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: not server.lives())
        with pytest.raises(EngineError, match="keeps dying"):
            server.revive()


def test_restarted_server_with_other_weights_is_not_used(tmp_path: Path) -> None:
    def wrong() -> None:
        raise EngineError("other weights")

    with watched(tmp_path) as server:
        server.prove = wrong
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: not server.lives())
        for _ in range(2):
            with pytest.raises(EngineError, match="other weights"):
                server.revive()
            until(lambda: not server.lives())


def test_training_without_a_weight_transport_is_rejected(tmp_path: Path) -> None:
    config = configuration(tmp_path, kind="vllm", url="http://127.0.0.1:9")
    with pytest.raises(ConfigurationError, match=r"engine\.weights"):
        run_experiment(config, console=False)
    assert not (tmp_path / "run").exists()


def test_server_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from swe_trainers.engines.connect import EngineConfig, connect
from swe_trainers.engines.sampling import Sampling
from swe_trainers.engines.server_process import ServerProcess

command = ["sh", "-c", "echo $$; exec sleep 1000"]
ServerProcess(command, "http://127.0.0.1:9", Path(sys.argv[1]), start_timeout_s=60).start()
"""
    log = tmp_path / "server.log"
    with subprocess.Popen([sys.executable, "-c", script, str(log)]) as owner:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (log.exists() and log.read_text().strip()):
            time.sleep(0.02)
        server = int(log.read_text())
        time.sleep(0.2)  # the watch is started right after the server
        owner.kill()
    stat = Path(f"/proc/{server}/stat")
    while time.monotonic() < deadline and stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.02)
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
