"""From a run's `engine` section to an engine: in this process, or in front of a server that may be started here."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from swe_trainers.engines.dialects import Completions, Dialect, SGLang
from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.engines.http import JsonClient
from swe_trainers.engines.protocol import Engine
from swe_trainers.engines.sampling import Sampling
from swe_trainers.engines.served import ServedEngine
from swe_trainers.engines.server_process import ServerProcess
from swe_trainers.engines.weight_transfer import Transport, WeightTransfer
from swe_trainers.engines.weights import WeightSync, check_server, write_served
from swe_trainers.errors import ConfigurationError, EngineError
from swe_trainers.policy.language_model import LanguageModel

__all__ = ["EngineConfig", "Generation", "api_key", "connect", "on_device", "served_engine"]


@dataclass(frozen=True)
class EngineConfig:
    """Who generates.

    Attributes:
        kind: `embedded` in this process; `vllm` a server with OpenAI's completions and vLLM's extensions, as
            `swe-serve` has them too; `sglang` one with SGLang's `/generate`.
        url: of the server.
        model: the name that the server knows its model by; null takes the first that it names.
        weights: the folder that the server was started with, to which new weights are written; null for
            OUTPUT_DIR/serving.
        transport: how new weights come to the server: `files` through that folder, `nccl` from GPU to GPU (vLLM started
            with `--weight-transfer-config '{"backend": "nccl"}'`), `gloo` from memory to memory (`swe-serve`).
        command: starts the server, which then ends with the run and is started again where it dies; `{weights}` and
            `{port}` stand for the folder and the url's port. Empty for a server that runs already.
        gpus: that the started server sees, as CUDA_VISIBLE_DEVICES has them; null for all.
        api_key_env: the variable that holds the server's key.
        timeout_s: of one try of one request.
        start_timeout_s: until a started server must answer.
        device: where an embedded engine generates from weights of its own, which take the policy's after each update;
            null for the policy's device. Only with `rollout.max_staleness`, without which it reads the policy's.
        probe_tolerance: the greatest mean difference in nats between the server's log-probabilities and the policy's,
            asked after every change of weights; null takes 0.001 for float32 and 0.1 for bfloat16.
    """

    kind: Literal["embedded", "vllm", "sglang"] = "embedded"
    url: str | None = None
    model: str | None = None
    weights: Path | None = None
    transport: Transport = "files"
    command: tuple[str, ...] = ()
    gpus: str | None = None
    api_key_env: str | None = None
    timeout_s: float = 600.0
    start_timeout_s: float = 900.0
    device: str | None = None
    probe_tolerance: float | None = None

    def __post_init__(self) -> None:
        of_servers = [f for f in fields(self) if f.name not in ("kind", "device")]
        if self.kind == "embedded" and any(getattr(self, f.name) != f.default for f in of_servers):
            raise ConfigurationError("engine: its other settings have no effect on kind embedded. Try: kind vllm")
        if self.kind != "embedded" and self.device is not None:
            raise ConfigurationError("engine.device: a server has its own. Try: engine.gpus, or kind embedded")
        if self.kind != "embedded" and self.url is None:
            raise ConfigurationError(f"engine.url: kind {self.kind} needs the server's address")
        if self.kind == "sglang" and self.transport != "files":
            raise ConfigurationError(f"engine.transport {self.transport}: kind sglang takes weights through files")
        if self.gpus is not None and not self.command:
            raise ConfigurationError("engine.gpus: has no effect without command, which starts the server")
        if min(self.timeout_s, self.start_timeout_s) <= 0:
            raise ConfigurationError("engine: timeout_s and start_timeout_s must be positive")


@dataclass(frozen=True)
class Generation:
    """An engine, and what must happen before it may be used.

    Attributes:
        engine: it.
        prepare: called with the number of updates done and how tokens will be drawn; afterwards the engine's weights
            are the policy's.
        probe_gap: nats between server and policy at the last probe; None where they are one.
        renews_actions: whether the weights may change while actions are unfinished, which then go on with the new ones.
    """

    engine: Engine
    prepare: Callable[[int, Sampling], None]
    probe_gap: Callable[[], float | None]
    renews_actions: bool = False


def connect(
    config: EngineConfig,
    model: LanguageModel,
    stack: ExitStack,
    *,
    n_slots: int,
    max_tokens: int,
    folder: Path,
    training: bool,
    leads: bool = True,
    ahead: bool = False,
) -> Generation:
    """Make the engine that a run is configured with.

    Args:
        config: of the engine.
        model: the policy.
        stack: closes what is opened.
        n_slots, max_tokens: of the engine.
        folder: for weights and the server's log, where the configuration names none.
        training: the weights will change; else the server must have the policy's weights already.
        leads: start the server and send it weights; of several processes that use one server, only one does.
        ahead: it generates while the policy learns: an embedded engine then has weights of its own.
    Raises:
        ConfigurationError: it cannot be had, or it cannot train.
        EngineError: a server that was started does not answer, or computes with other weights than the policy's.
    """
    if config.kind == "embedded":
        return _embedded(config, model, n_slots=n_slots, max_tokens=max_tokens, ahead=ahead)
    if training and config.transport == "files" and config.weights is None and not config.command:
        raise ConfigurationError(
            f"engine.weights: {config.url} must be given new weights through the folder that it was started with; "
            "name it, give a command that starts the server, or another transport"
        )
    return _served(
        config,
        model,
        stack,
        n_slots=n_slots,
        max_tokens=max_tokens,
        weights=(config.weights or folder).absolute(),
        training=training,
        leads=leads,
        ahead=ahead,
    )


def _embedded(config: EngineConfig, model: LanguageModel, *, n_slots: int, max_tokens: int, ahead: bool) -> Generation:
    if not ahead:
        engine = EmbeddedEngine(model, n_slots=n_slots, max_tokens=max_tokens)
        return Generation(engine, lambda _number, _sampling: None, lambda: None)
    own = on_device(model.copy().requires_grad_(False).eval(), config.device, "engine.device")
    engine = EmbeddedEngine(own, n_slots=n_slots, max_tokens=max_tokens)

    def prepare(number: int, sampling: Sampling) -> None:
        del sampling
        if engine.version != number:
            own.load_state_dict(model.state_dict())
            engine.renew(number)

    return Generation(engine, prepare, lambda: None, renews_actions=True)


def _served(
    config: EngineConfig,
    model: LanguageModel,
    stack: ExitStack,
    *,
    n_slots: int,
    max_tokens: int,
    weights: Path,
    training: bool,
    leads: bool,
    ahead: bool,
) -> Generation:
    assert config.url is not None
    process = None
    if config.command and leads:
        # A server that dies takes weights with it that no folder has. While it plays ahead the policy has others by
        # then: every weights that are sent are kept in the folder too.
        renew = None if config.transport == "files" or ahead else lambda: write_served(model, weights)
        process = _process(config, weights, renew)
        write_served(model, weights)
        stack.enter_context(process.watched())
    revive = None if process is None else process.revive
    engine = served_engine(config, stack, n_slots=n_slots, max_tokens=max_tokens, training=training, revive=revive)
    tolerance = config.probe_tolerance
    if tolerance is None:
        tolerance = 1e-3 if next(model.parameters()).element_size() == 4 else 0.1
    transfer = None
    if config.transport != "files" and training and leads:
        transfer = WeightTransfer(engine.client, config.transport, timeout_s=config.timeout_s)
        stack.callback(transfer.close)
    keep = ahead and process is not None
    sync = WeightSync(model, engine, weights, tolerance=tolerance, transfer=transfer, keep=keep)
    if process is not None:
        asks = JsonClient(config.url, api_key=api_key(config), timeout_s=config.timeout_s, tries=2)
        process.prove = partial(sync.prove, asks)

    def prepare(number: int, sampling: Sampling) -> None:
        if engine.version == number:
            return
        probe = Sampling(temperature=sampling.temperature or 1.0)
        if training and not leads:
            engine.version = number
        elif training:
            sync.send(number, probe)
        else:
            if engine.scored:
                sync.check(probe, number)
            engine.version = number

    return Generation(engine, prepare, lambda: sync.gap)


def served_engine(
    config: EngineConfig,
    stack: ExitStack,
    *,
    n_slots: int,
    max_tokens: int,
    training: bool,
    revive: Callable[[], None] | None = None,
) -> ServedEngine:
    """An engine in front of the configured server, of which no weights are known yet.

    Args:
        config: of the engine; not of an embedded one.
        stack: closes it.
        n_slots, max_tokens: of the engine.
        training: refuse a server that gives no log-probabilities.
        revive: starts the server again where it is dead; without it the server's owner does, and is waited for.
    Raises:
        ConfigurationError: the server does not answer, or not with what is needed.
    """
    assert config.url is not None
    client = JsonClient(
        config.url,
        api_key=api_key(config),
        timeout_s=config.timeout_s,
        revive=revive,
        patience_s=config.start_timeout_s if config.command and revive is None else 0.0,
    )
    engine = ServedEngine(client, _dialect(config, client), n_slots=n_slots, max_tokens=max_tokens)
    stack.callback(engine.shutdown)
    engine.version = -1
    try:
        check_server(engine, training=training)
    except EngineError as error:
        raise ConfigurationError(str(error)) from error
    return engine


def on_device(model: LanguageModel, device: str | None, setting: str) -> LanguageModel:
    """Move a model; None leaves it where it is.

    Raises:
        ConfigurationError: there is no such device here; the setting that names it is told.
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


def _process(config: EngineConfig, weights: Path, before_restart: Callable[[], None] | None) -> ServerProcess:
    assert config.url is not None
    port = str(urlsplit(config.url).port or 80)
    command = [part.replace("{weights}", str(weights)).replace("{port}", port) for part in config.command]
    log = weights.parent / "server.log"
    return ServerProcess(
        command,
        config.url,
        log,
        gpus=config.gpus,
        start_timeout_s=config.start_timeout_s,
        before_restart=before_restart,
    )


def _dialect(config: EngineConfig, client: JsonClient) -> Dialect:
    if config.kind == "sglang":
        return SGLang()
    if config.model is not None:
        return Completions(config.model)
    answer = client.get("/v1/models")
    try:
        return Completions(str(answer["data"][0]["id"]))
    except (KeyError, IndexError, TypeError) as error:
        raise ConfigurationError(f"{client.url}/v1/models: names no model. Try: engine.model") from error
