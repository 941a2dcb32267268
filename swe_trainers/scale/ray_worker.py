"""A rollout worker: one process of a cluster. It does not use Ray itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from swe_trainers.engines.connect import EngineConfig, Generation, on_device, served_engine
from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.engines.protocol import Throughput
from swe_trainers.engines.served import ServedEngine
from swe_trainers.errors import RolloutError
from swe_trainers.model.chat import ChatFormat
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.rollout.background import BackgroundPlayer, Key
from swe_trainers.rollout.rollouts import LocalWorkers
from swe_trainers.rollout.settings import EpisodeSettings, EpisodeStart
from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["Environments", "Packed", "RolloutWorker", "WorkerSetup", "pack", "unpack"]

Environments = Callable[[ExitStack], tuple[Sequence[gymnasium.Env[str, str]], Sequence[gymnasium.Env[str, str]]]]
"""Makes environments to learn in and to be measured in, which the stack closes."""

Packed = Mapping[str, tuple[torch.dtype, tuple[int, ...], NDArray[np.uint8]]]
"""Weights by name: their type, their shape and their bytes, which processes of one machine share without copies."""


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker is started with.

    Attributes:
        environments: makes them.
        engine: the run's section.
        max_tokens: of the engine's slots.
        chat: how conversations become tokens.
        model: the policy for an embedded engine; None in front of a server.
        device: where that computes; None for the CPU.
        threads: of PyTorch; None for its own choice.
    """

    environments: Environments
    engine: EngineConfig
    max_tokens: int
    chat: ChatFormat
    model: LanguageModel | None = None
    device: str | None = None
    threads: int | None = None


class RolloutWorker:
    """Plays episodes in a process of its own; `ended` is called from one thread, everything else from another."""

    def __init__(self) -> None:
        self._stack, self._pause = ExitStack(), ExitStack()
        self._beginning = threading.Lock()  # Ray calls several methods at once
        self._version: int | None = None
        self._player: BackgroundPlayer | None = None
        self._settings: EpisodeSettings | None = None

    def set_up(self, setup: WorkerSetup) -> int:
        """Make the environments and the engine.

        Returns:
            How many episodes are played at once.
        Raises:
            ConfigurationError: they are not available here.
        """
        if setup.threads is not None:
            torch.set_num_threads(setup.threads)
        training, evaluation = setup.environments(self._stack)
        self._model, n_slots = setup.model, len(training)
        self._engine: EmbeddedEngine | ServedEngine
        if self._model is None:
            self._engine = served_engine(setup.engine, n_slots=n_slots, max_tokens=setup.max_tokens, training=True)
        else:
            self._model = on_device(self._model, setup.device, "the worker's device")
            self._engine = EmbeddedEngine(self._model, n_slots=n_slots, max_tokens=setup.max_tokens)
        generation = Generation(self._engine, renews_actions=self._model is not None)
        self._workers = LocalWorkers(generation, setup.chat, training, evaluation)
        return n_slots

    def begin(
        self,
        settings: EpisodeSettings,
        episodes: Sequence[tuple[Key, EpisodeStart]],
        version: int,
        weights: Packed | None,
    ) -> None:
        """Begin episodes.

        Args:
            settings: how; another one than before only where nothing is being played.
            episodes: where they begin, and what they are known by.
            version, weights: as in `load_weights`; a worker that has them does not look at them.
        Raises:
            Exception: whatever has ended the playing.
        """
        with self._beginning:
            self.load_weights(version, weights)
            if self._player is None or settings != self._settings:
                self._close_player()
                self._player, self._settings = self._workers.ahead(settings), settings
            self._player.begin(episodes)

    def ended(self, timeout_s: float) -> tuple[list[tuple[Key, list[Trajectory]]], Throughput]:
        """What has ended and what the engine did since the last call; waits for something.

        Raises:
            Exception: whatever has ended the playing.
        """
        player, found = self._player, []
        if player is not None:
            try:
                found = player.ended(timeout_s)
            except RolloutError:
                if player is self._player:  # else it was closed here
                    raise
        return found, self._workers.throughput()

    def drop(self) -> None:
        """Drop the episodes under way."""
        with self._beginning:
            self._close_player()

    def _close_player(self) -> None:
        player, self._player = self._player, None  # first, so that `ended` finds out why it is closed
        if player is not None:
            player.close()

    def pause(self, *, between_episodes: bool) -> None:
        """Generate nothing until `resume`; see `BackgroundPlayer.paused`."""
        if self._player is not None:
            self._pause.enter_context(self._player.paused(between_episodes=between_episodes))

    def resume(self) -> None:
        """Go on."""
        self._pause.close()

    def load_weights(self, version: int, weights: Packed | None) -> None:
        """Generate with other weights from now on; between `pause` and `resume`, or where nothing was played yet.

        Args:
            version: of the weights, which samples then carry.
            weights: None in front of a server, which has them already.
        """
        if version == self._version:
            return
        if isinstance(self._engine, EmbeddedEngine):
            assert self._model is not None and weights is not None
            self._model.load_state_dict(unpack(weights))
            self._engine.renew(version)
        else:
            self._engine.version = version
        self._version = version

    def close(self) -> None:
        """Close the environments and the engine."""
        if self._player is not None:
            self._player.close()
        self._stack.close()


def pack(model: LanguageModel) -> Packed:
    """A policy's weights as they are now; with adapters those alone."""
    return {name: (t.dtype, tuple(t.shape), _bytes(t)) for name, t in model.state_dict().items()}


def unpack(weights: Packed) -> dict[str, torch.Tensor]:
    """The weights that `pack` packed, as new tensors."""
    return {
        name: torch.from_numpy(content.copy()).view(dtype).reshape(shape)
        for name, (dtype, shape, content) in weights.items()
    }


def _bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    found: NDArray[np.uint8] = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return found.copy() if tensor.device.type == "cpu" else found
