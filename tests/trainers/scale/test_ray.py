"""Rollouts on a Ray cluster of two nodes, simulated on this machine, and the deaths of workers and nodes."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from ray.cluster_utils import Cluster

from swe_trainers.engines.connect import EngineConfig, connect
from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.engines.http import RefusedError
from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import ConfigurationError, TrainerError
from swe_trainers.experiment import run_experiment
from swe_trainers.logging import read_metrics
from swe_trainers.model.chat import CompactChat
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.model.tokenizers import WordTokenizer
from swe_trainers.rollout.play import play
from swe_trainers.rollout.settings import EpisodeSettings, EpisodeStart, Limits
from swe_trainers.scale.ray_cluster import RayConfig
from swe_trainers.scale.ray_rollouts import RayWorkers
from swe_trainers.scale.ray_worker import WorkerSetup, pack, unpack
from tests.trainers.engines.served import served
from tests.trainers.scale.rays import Echo
from tests.trainers.scale.test_torchrun import configured, output_of, torchrun
from tests.trainers.test_playing_ahead import configuration
from tests.trainers.tiny import TINY, full_logprobs

pytestmark = pytest.mark.timeout(600)  # a node is half a dozen processes, which start slowly on a busy machine

NODE = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 100_000_000}
DEAD_NODE_DETECTION = {  # faster than the default of 15 s; slow responses still count
    "health_check_initial_delay_ms": 500, "health_check_period_ms": 500, "health_check_timeout_ms": 10_000,
    "health_check_failure_threshold": 3,
}  # fmt: skip
SETTINGS = EpisodeSettings(Limits(max_new_tokens=3), Sampling())


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    made = Cluster(initialize_head=True, head_node_args={**NODE, "_system_config": DEAD_NODE_DETECTION})
    made.add_node(**NODE)
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def deadly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deadly")


@pytest.fixture(scope="module")
def policy() -> LanguageModel:
    return LanguageModel.from_config(TINY, WordTokenizer.from_texts(["a b c d"]), seed=0).eval()


class Environments:
    """Environments that kill their worker if the folder contains files; Ray sends this object to the workers."""

    def __init__(self, deadly: Path) -> None:
        self.deadly = deadly

    def __call__(self, stack: ExitStack) -> tuple[list[Echo], list[Echo]]:
        played = [Echo(0.01, str(self.deadly)) for _ in range(3)]
        return played, [Echo() for _ in range(3)]


@pytest.fixture(scope="module")
def workers(cluster: Cluster, policy: LanguageModel, deadly: Path) -> Iterator[RayWorkers]:
    chat, environments = CompactChat(policy.tokenizer), Environments(deadly)
    with ExitStack() as stack:
        config = RayConfig(address=cluster.address, workers=2, restarts=5)
        setup = WorkerSetup(environments, EngineConfig(), 64, chat, model=policy.copy(), threads=1)
        made = RayWorkers(config, lambda: setup, stack, policy=policy)
        made.join()
        wait_for_workers(made)
        yield made
    assert not ray.is_initialized()


def wait_for_workers(workers: RayWorkers) -> None:
    deadline = time.monotonic() + 240
    while workers.metrics()["ray/workers"] < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def starts(n: int) -> list[EpisodeStart]:
    return [EpisodeStart(seed=i, stream=(3, i)) for i in range(n)]


def shaken(model: LanguageModel) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))


def test_missing_or_too_small_cluster_is_a_one_line_error(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"scale\.ray\.address '127\.0\.0\.1:1'"):
        run_experiment(configuration(tmp_path, scale={"ray": {"address": "127.0.0.1:1"}}), console=False)
    assert not (tmp_path / "run").exists()
    scale = {"ray": {"address": cluster.address, "cpus_per_worker": 64, "start_timeout_s": 2}}
    with pytest.raises(TrainerError, match=r"no worker was there after 2 s; each asks for CPU 64 of 2"):
        run_experiment(configuration(tmp_path, scale=scale), console=False)


def test_rollouts_of_a_cluster_equal_local_rollouts_with_the_current_weights(
    workers: RayWorkers, policy: LanguageModel
) -> None:
    pids = set()
    for version in range(2):
        workers.prepare(version, Sampling())
        for evaluation in (False, True):
            found = workers.play(starts(14), EpisodeSettings(SETTINGS.limits, SETTINGS.sampling, evaluation=evaluation))
            engine = EmbeddedEngine(policy, n_slots=2, max_tokens=64)
            here = play(engine, CompactChat(policy.tokenizer), [Echo(), Echo()], starts(14), limits=SETTINGS.limits)
            assert [t.token_ids.tolist() for t in found] == [t.token_ids.tolist() for t in here]
            assert all(set(t.weight_versions) == {-1, version} for t in found)
            pids |= {t.info["pid"] for t in found}
        shaken(policy)
    assert len(pids) == 2 and os.getpid() not in pids
    metrics = workers.metrics()
    assert metrics["ray/workers"] == 2 and metrics["ray/deaths"] == 0 and metrics["engine/sampled_tokens"] > 0


def test_weights_can_change_during_episodes(workers: RayWorkers, policy: LanguageModel) -> None:
    weights, found = {}, {}
    player = workers.ahead(SETTINGS)
    for version in range(10, 16):
        weights[version] = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
        with player.paused(between_episodes=False):
            workers.prepare(version, Sampling())
        player.begin([((version, i), EpisodeStart(seed=i, stream=(version, i))) for i in range(8)])
        found.update(player.ended(60))
        shaken(policy)
    while len(found) < 48:
        found.update(player.ended(60))
    player.close()
    model, mixed = policy.copy(), 0
    for (begun, _), (trajectory,) in found.items():
        versions = np.array(trajectory.weight_versions)
        drawn = set(versions[trajectory.action_mask].tolist())
        assert min(drawn) >= begun
        mixed += len(drawn) > 1
        truth = np.zeros(len(versions), dtype=np.float32)
        for version in drawn:
            model.load_state_dict(weights[version])
            truth = np.where(versions == version, full_logprobs(model, trajectory.token_ids.tolist()), truth)
        np.testing.assert_allclose(trajectory.rollout_logprobs, truth, rtol=1e-3, atol=1e-3)
    assert mixed > 0


def test_a_worker_is_given_episodes_while_its_weights_are_under_way(workers: RayWorkers, policy: LanguageModel) -> None:
    for version in range(100, 130):
        player = workers.ahead(SETTINGS)
        with player.paused(between_episodes=False):
            workers.prepare(version, Sampling())
        for i in range(4):  # one call each, two for either worker
            player.begin([((version, i), EpisodeStart(seed=i, stream=(version, i)))])
        found: dict[Any, Any] = {}
        while len(found) < 4:
            found.update(player.ended(60))
        assert all(set(t.weight_versions) == {-1, version} for (t,) in found.values())
        player.close()
        shaken(policy)


class InterruptionError(Exception):
    """As Ctrl-C in a notebook, after which the run goes on."""


def test_an_interrupted_play_leaves_nothing_to_the_next_one(workers: RayWorkers) -> None:
    workers.prepare(19, Sampling())
    whole = workers.play(starts(12), SETTINGS)

    def interrupt(*_: object) -> None:
        raise InterruptionError

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        for number in range(4):  # at different moments: with episodes under way, on their way, and waiting
            timer = threading.Timer(0.02 + 0.07 * number, os.kill, [os.getpid(), signal.SIGUSR1])
            timer.start()
            with pytest.raises(InterruptionError):
                workers.play([EpisodeStart(seed=i, stream=(4, number, i)) for i in range(200)], SETTINGS)
            timer.join()
            settings = EpisodeSettings(SETTINGS.limits, SETTINGS.sampling, evaluation=number % 2 == 1)
            again = workers.play(starts(12), settings)
            assert [t.token_ids.tolist() for t in again] == [t.token_ids.tolist() for t in whole]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_killed_worker_is_replaced_and_its_episodes_are_replayed(workers: RayWorkers, deadly: Path) -> None:
    workers.prepare(20, Sampling())
    whole = workers.play(starts(12), SETTINGS)
    (deadly / "once").touch()
    again = workers.play(starts(12), SETTINGS)
    assert [t.token_ids.tolist() for t in again] == [t.token_ids.tolist() for t in whole]
    assert all(t.valid for t in again)
    metrics = workers.metrics()
    assert metrics["ray/deaths"] == 1 and metrics["ray/episodes_replayed"] >= 1


def test_death_of_a_node_loses_no_episode(workers: RayWorkers, cluster: Cluster, deadly: Path) -> None:
    workers.prepare(30, Sampling())
    whole = workers.play(starts(12), SETTINGS)
    before = workers.metrics()["ray/deaths"]
    (deadly / "slow").touch()
    second = next(iter(cluster.worker_nodes))
    killer = threading.Timer(0.7, cluster.remove_node, [second], {"allow_graceful": False})
    killer.start()
    again = workers.play(starts(12), SETTINGS)
    killer.join()
    (deadly / "slow").unlink()
    assert [t.token_ids.tolist() for t in again] == [t.token_ids.tolist() for t in whole]
    assert all(t.valid for t in again) and workers.metrics()["ray/deaths"] == before + 1
    cluster.add_node(**NODE)
    wait_for_workers(workers)  # a worker starts on the new node


def test_episode_that_kills_three_workers_is_invalid_and_too_many_deaths_end_the_run(
    workers: RayWorkers, deadly: Path
) -> None:
    for number in range(3):
        (deadly / str(number)).touch()
    (alone,) = workers.play([EpisodeStart(seed=5)], SETTINGS)
    assert not alone.valid and "3 rollout workers died" in alone.failure_reason
    (deadly / "more").touch()
    with pytest.raises(TrainerError, match=r"6 workers died, scale\.ray\.restarts allows 5"):
        workers.play([EpisodeStart(seed=5)], SETTINGS)


def test_workers_share_a_server_that_receives_the_learners_weights(
    cluster: Cluster, policy: LanguageModel, tmp_path: Path
) -> None:
    model = policy.copy()
    with served(tmp_path / "model", model) as server, ExitStack() as stack:
        engine = EngineConfig(kind="vllm", url=server.url, weights=tmp_path / "model")
        generation = connect(engine, model, stack, n_slots=3, max_tokens=64, folder=tmp_path, training=True)
        setup = WorkerSetup(Environments(tmp_path / "none"), engine, 64, CompactChat(model.tokenizer), threads=1)
        config = RayConfig(address=cluster.address, workers=1, cpus_per_worker=0)
        workers = RayWorkers(config, lambda: setup, stack, generation=generation)
        for version in range(2):
            workers.prepare(version, Sampling())
            for trajectory in workers.play(
                starts(6), EpisodeSettings(SETTINGS.limits, SETTINGS.sampling, evaluation=True)
            ):
                assert set(trajectory.weight_versions) == {-1, version}
                truth = full_logprobs(model, trajectory.token_ids.tolist()).numpy()
                expected = np.where(trajectory.action_mask, truth, 0.0)
                np.testing.assert_allclose(trajectory.rollout_logprobs, expected, rtol=1e-3, atol=1e-3)
            assert workers.metrics()["engine/probe_gap"] < 1e-3
            shaken(model)


@pytest.mark.campaign
def test_two_ranks_train_on_rollouts_of_a_cluster(cluster: Cluster, tmp_path: Path, swe_train_program: Path) -> None:
    path = configured(
        tmp_path,
        {"max_updates": 3, "correction": "truncate"},
        rollout={"max_staleness": 1, "partial": True},
        evaluation={"episodes": 5, "every": 2},
        scale={"ray": {"address": cluster.address, "workers": 1, "cpus_per_worker": 0}},
    )
    output_of(torchrun(2, swe_train_program, path))
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["update"] for row in rows] == [0, 1, 2, 3]
    assert all(row["episodes"] == 7 and row["staleness/max"] <= 1 and row["ray/workers"] == 1 for row in rows[1:])
    assert rows[1]["logprob_gap"] < 1e-4  # workers have the gathered weights
    assert [row["eval/episodes"] for row in rows if "eval/episodes" in row] == [5, 5, 5]


def test_refused_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(RefusedError("http://a/b: 404: no such model", 404, 2.5)))
    assert (str(error), error.status, error.retry_after_s) == ("http://a/b: 404: no such model", 404, 2.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_weights_round_trip_exactly(policy: LanguageModel, dtype: Any) -> None:
    model = policy.copy().to(dtype)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    packed = pack(model)
    shaken(model)
    found = unpack(packed)
    assert found.keys() == before.keys()
    assert all(t.dtype == before[name].dtype and torch.equal(t, before[name]) for name, t in found.items())
