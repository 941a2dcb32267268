"""From a run's `engine` section to an engine: in this process, or a server that may be started here."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from swe_trainers.config import Configuration, UserPath, nearest
from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.engines.http import JsonClient
from swe_trainers.engines.protocol import Engine
from swe_trainers.engines.sampling import Sampling
from swe_trainers.engines.served import ServedEngine, ServerAPI
from swe_trainers.engines.server_process import ServerProcess
from swe_trainers.engines.weight_transfer import Transport, WeightTransfer
from swe_trainers.engines.weights import WeightSync, check_server, write_served
from swe_trainers.errors import ConfigurationError, EngineError
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.registry import with_installed

__all__ = ["SERVERS", "EngineConfig", "Generation", "api_key", "connect", "on_device", "served_engine"]

_BUILT_IN = {
    "vllm": "swe_trainers.engines.vllm:VLLM",
    "sglang": "swe_trainers.engines.sglang:SGLang",
}
SERVERS = with_installed("swe_trainers.engines", _BUILT_IN)
"""Kinds of generation servers, and their `ServerAPI`. The one other kind of engine is in this process."""
_EMBEDDED = "embedded"

if TYPE_CHECKING:
    EngineKind: TypeAlias = str
else:  # help and completion list the values of a Literal
    _KINDS = (_EMBEDDED, *SERVERS)
    EngineKind = Literal[_KINDS]


@dataclass(frozen=True)
class EngineConfig(Configuration):
    """What generates actions.

    Attributes:
        kind: `embedded`: this process; `vllm`: a server with OpenAI's completions API and vLLM's extensions, such as
            `swe-serve`; `sglang`: a server with SGLang's `/generate`.
        url: address of the server.
        model: name of the model on the server; null: the first in the server's list.
        weights: the model folder that the server was started with, to which new weights are written; null:
            OUTPUT_DIR/serving.
        transport: how new weights reach the server: `files` through that folder, `nccl` from GPU to GPU (vLLM started
            with `--weight-transfer-config '{"backend": "nccl"}'`), `gloo` from memory to memory (`swe-serve`).
        command: starts the server, which ends with the run and is restarted if it dies; `{weights}` and `{port}` are
            replaced by the folder and the url's port. Empty for a server that is running.
        gpus: GPUs that the started server sees, as in CUDA_VISIBLE_DEVICES; null: all.
        api_key_env: name of the environment variable with the API key of the server.
        timeout_s: seconds for one attempt of a request.
        start_timeout_s: seconds after which a started server must respond.
        device: device of an embedded engine with its own copy of the weights, which is synchronised after each update;
            null: the policy's device. Only with `rollout.max_staleness`; else the engine uses the policy's weights.
        probe_tolerance: the largest mean difference in nats between the log-probabilities of the server and the policy,
            checked after each synchronisation of weights; null: 0.001 for float32 and 0.1 for bfloat16.
    """

    kind: EngineKind = _EMBEDDED
    url: str | None = None
    model: str | None = None
    weights: UserPath | None = None
    transport: Transport = "files"
    command: tuple[str, ...] = ()
    gpus: str | None = None
    api_key_env: str | None = None
    timeout_s: float = 600.0
    start_timeout_s: float = 900.0
    device: str | None = None
    probe_tolerance: float | None = None

    @property
    def in_process(self) -> bool:
        """Whether actions are generated in the processes that play, and not by a server."""
        return self.kind not in SERVERS

    def __post_init__(self) -> None:
        kinds = (_EMBEDDED, *SERVERS)
        if self.kind not in kinds:
            raise ConfigurationError(f"engine.kind: got {self.kind!r}{nearest(self.kind, kinds)}")
        of_servers = [f for f in fields(self) if f.name not in ("kind", "device")]
        if self.in_process:
            if any(getattr(self, f.name) != f.default for f in of_servers):
                raise ConfigurationError("engine: its other settings have no effect with kind embedded. Try: kind vllm")
            return
        if self.device is not None:
            raise ConfigurationError("engine.device: a server has its own. Try: engine.gpus, or kind embedded")
        if self.url is None:
            raise ConfigurationError(f"engine.url: kind {self.kind} needs the server's address")
        JsonClient(self.url)  # refuses what is no address
        transports = _api(self.kind).transports
        if self.transport not in transports:
            ways = " or ".join(sorted(transports))
            raise ConfigurationError(
                f"engine.transport {self.transport}: kind {self.kind} takes weights through {ways}"
            )
        if self.gpus is not None and not self.command:
            raise ConfigurationError("engine.gpus: has no effect without command, which starts the server")
        if min(self.timeout_s, self.start_timeout_s) <= 0:
            raise ConfigurationError("engine: timeout_s and start_timeout_s must be positive")


class Generation:
    """An engine with the policy's weights. This class is for an engine that reads the policy's own.

    Args:
        engine: the engine.
        renews_actions: whether the weights may change during an action, which continues with the new ones.

    Attributes:
        probe_gap: difference in nats between the log-probabilities of a server and the policy at the last probe; None
            without a server.
    """

    probe_gap: float | None = None

    def __init__(self, engine: Engine, *, renews_actions: bool = False) -> None:
        self.engine, self.renews_actions = engine, renews_actions

    def prepare(self, number: int, sampling: Sampling) -> None:
        """Give the engine the policy's weights.

        Args:
            number: of updates done.
            sampling: how tokens will be sampled.
        Raises:
            EngineError: a server does not take the weights.
        """


class _Copy(Generation):
    """An embedded engine with its own copy of the weights, which generates during updates."""

    def __init__(self, engine: EmbeddedEngine, policy: LanguageModel, copy: LanguageModel) -> None:
        super().__init__(engine, renews_actions=True)
        self._embedded, self._policy, self._copy = engine, policy, copy

    def prepare(self, number: int, sampling: Sampling) -> None:
        if self._embedded.version != number:
            self._copy.load_state_dict(self._policy.state_dict())
            self._embedded.renew(number)


class _Served(Generation):
    """A server.

    Args:
        engine: its engine.
        sync: sends weights to it.
        sends: whether this process sends them; None if nobody does, and the server must have the policy's weights.
    """

    def __init__(self, engine: ServedEngine, sync: WeightSync, *, sends: bool | None) -> None:
        super().__init__(engine)
        self._served, self._sync, self._sends = engine, sync, sends

    @property
    def probe_gap(self) -> float:  # type: ignore[override]
        """See `Generation`."""
        return self._sync.gap

    def prepare(self, number: int, sampling: Sampling) -> None:
        if self._served.version == number:
            return
        probe = Sampling(temperature=sampling.temperature or 1.0)
        if self._sends:
            self._sync.send(number, probe)
        elif self._sends is None and self._served.scored:
            self._sync.check(probe, number)
        self._served.version = number


def connect(
    config: EngineConfig,
    model: LanguageModel,
    stack: ExitStack,
    *,
    n_slots: int,
    max_tokens: int,
    folder: Path,
    training: bool,
    is_leader: bool = True,
    ahead: bool = False,
) -> Generation:
    """Create the engine of a run.

    Args:
        config: of the engine.
        model: the policy.
        stack: closes what is opened.
        n_slots, max_tokens: of the engine.
        folder: for weights and the server's log, if the configuration names none.
        training: the weights will change; else a server must have the policy's weights already.
        is_leader: start the server and send it weights; of several processes that share a server, only one does.
        ahead: the engine generates during updates: an embedded engine then has its own copy of the weights.
    Raises:
        ConfigurationError: the engine cannot be created, or cannot be used for training.
        EngineError: a started server does not respond, or has other weights than the policy.
    """
    if config.in_process:
        if not ahead:
            return Generation(EmbeddedEngine(model, n_slots=n_slots, max_tokens=max_tokens))
        copy = on_device(model.copy().requires_grad_(False).eval(), config.device, "engine.device")
        return _Copy(EmbeddedEngine(copy, n_slots=n_slots, max_tokens=max_tokens), model, copy)
    assert config.url is not None
    if training and config.transport == "files" and config.weights is None and not config.command:
        raise ConfigurationError(
            f"engine.weights: {config.url} must be given new weights through the folder that it was started with; "
            "name it, give a command that starts the server, or another transport"
        )
    weights = (config.weights or folder).absolute()
    process = None
    if config.command and is_leader:
        port = str(urlsplit(config.url).port or 80)
        # A server that dies loses weights that are in no folder. With asynchronous rollouts the policy has newer ones
        # by then, so all weights that are sent are also kept in the folder.
        rewrite = None if config.transport == "files" or ahead else partial(write_served, model, weights)
        process = ServerProcess(
            [part.replace("{weights}", str(weights)).replace("{port}", port) for part in config.command],
            config.url,
            weights.parent / "server.log",
            gpus=config.gpus,
            start_timeout_s=config.start_timeout_s,
            before_restart=rewrite,
        )
        write_served(model, weights)
        stack.enter_context(process.watched())
    revive = None if process is None else process.revive
    engine = served_engine(config, n_slots=n_slots, max_tokens=max_tokens, training=training, revive=revive)
    tolerance = config.probe_tolerance
    if tolerance is None:
        tolerance = 1e-3 if next(model.parameters()).element_size() == 4 else 0.1
    transfer = None
    if config.transport != "files" and training and is_leader:
        transfer = WeightTransfer(engine.client, config.transport, timeout_s=config.timeout_s)
        stack.callback(transfer.close)
    keep = ahead and process is not None
    sync = WeightSync(model, engine, weights, tolerance=tolerance, transfer=transfer, keep=keep)
    if process is not None:
        client = JsonClient(config.url, api_key=api_key(config), timeout_s=config.timeout_s, tries=2)
        process.prove = partial(sync.prove, client)
    return _Served(engine, sync, sends=is_leader if training else None)


def served_engine(
    config: EngineConfig,
    *,
    n_slots: int,
    max_tokens: int,
    training: bool,
    revive: Callable[[], None] | None = None,
) -> ServedEngine:
    """The engine of a configured server; the version of its weights is unknown.

    Args:
        config: not of an embedded engine.
        n_slots, max_tokens: of the engine.
        training: refuse a server that reports no log-probabilities.
        revive: restarts a dead server; without it another process does, which is waited for.
    Raises:
        ConfigurationError: the server does not respond, or not with what is needed.
    """
    assert config.url is not None
    client = JsonClient(
        config.url,
        api_key=api_key(config),
        timeout_s=config.timeout_s,
        revive=revive,
        patience_s=config.start_timeout_s if config.command and revive is None else 0.0,
    )
    api = _api(config.kind).connect(client, config.model)
    engine = ServedEngine(client, api, n_slots=n_slots, max_tokens=max_tokens)
    engine.version = -1
    try:
        check_server(engine, training=training)
    except EngineError as error:
        raise ConfigurationError(str(error)) from error
    return engine


def on_device(model: LanguageModel, device: str | None, setting: str) -> LanguageModel:
    """Move a model to a device; None leaves it.

    Raises:
        ConfigurationError: there is no such device; the message names the setting.
    """
    try:
        return model if device is None else model.to(device)
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA raises an AssertionError
        raise ConfigurationError(f"{setting} {device!r}: {str(error).splitlines()[0]}") from error


def api_key(config: EngineConfig) -> str | None:
    """The server's key, from the environment.

    Raises:
        ConfigurationError: the variable that should hold it is not set.
    """
    if config.api_key_env is None:
        return None
    found = os.environ.get(config.api_key_env)
    if not found:
        raise ConfigurationError(f"engine.api_key_env: the variable {config.api_key_env} is not set")
    return found


def _api(kind: str) -> type[ServerAPI]:
    module, _, name = SERVERS[kind].partition(":")
    found: Any = getattr(importlib.import_module(module), name)
    api: type[ServerAPI] = found
    return api
