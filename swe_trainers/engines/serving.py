"""An OpenAI-compatible server over the embedded engine: a trained model behind a URL, for evaluation and for rollouts.

POST /v1/completions        text or token ids; `return_token_ids`, `logprobs`, `stop_token_ids` as in vLLM
POST /v1/chat/completions   messages, in the model's own chat format
POST /collective_rpc        {"method": "reload_weights"}: read the model's folder again
POST /init_weight_transfer_engine, /start_weight_update, /update_weights, /finish_weight_update
                            weights from a trainer's memory, over gloo; see `weight_transfer`
POST /reset_prefix_cache    does nothing: no computation is kept between requests
GET  /health, /v1/models
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import queue
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from swe_trainers.engines.action_trie import ActionTrie, Legal
from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.engines.protocol import Sample
from swe_trainers.engines.sampling import Sampling
from swe_trainers.engines.weight_transfer import WeightReceiver
from swe_trainers.errors import ConfigurationError, TrainerError
from swe_trainers.model.chat import ChatFormat
from swe_trainers.model.language_model import LanguageModel

__all__ = ["Job", "ModelServer", "SamplingFields", "first_error"]

_MAX_BODY_BYTES = 32 << 20


class _StoppedError(TrainerError):
    """The engine's thread has ended."""


@dataclass(frozen=True)
class Job:
    """A request for the engine's thread; without a prompt, to load these weights, those of a file, or of the folder."""

    future: Future[Sample]
    prompt: tuple[int, ...] = ()
    max_tokens: int = 0
    stop_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    sampling: Sampling = Sampling()
    seed: int = 0
    weights: Mapping[str, torch.Tensor] | Path | None = None
    legal: Legal | None = None


class ModelServer:
    """Serves one model from its folder; a context manager.

    Args:
        folder: of the model, as `LanguageModel.save_pretrained` writes it.
        chat: from the model's tokenizer to its chat format; what it raises is the answer to chat completions.
        host, port: where to listen; port 0 takes a free one.
        n_slots: requests generated at once; others wait in a queue.
        max_tokens: the longest sequence; None takes the model's own limit.
        api_key: bearer token that every request must carry; empty for none.
        name: the model's name in answers; None takes the folder's.

    Raises:
        ConfigurationError: there is no such model, or no such address.
    """

    def __init__(
        self,
        folder: str | Path,
        chat: Any,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        n_slots: int = 16,
        max_tokens: int | None = None,
        api_key: str = "",
        name: str | None = None,
    ) -> None:
        self.folder, self.name = Path(folder), name or Path(folder).name
        self._model = LanguageModel.from_pretrained(self.folder).eval()
        self.tokenizer = self._model.tokenizer
        self._chat = chat
        limit = max_tokens or self._model.max_positions or 4096
        self._engine = EmbeddedEngine(self._model, n_slots=n_slots, max_tokens=limit)
        self.max_tokens, self.api_key = limit, api_key
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # held to queue a job, and to note that no more are taken
        self._stopped: _StoppedError | None = None
        self.receiver = WeightReceiver()
        self.failure: BaseException | None = None
        self._listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind((host, port))
            self._listener.listen(1024)
        except OSError as error:
            self._listener.close()
            raise ConfigurationError(
                f"{host}:{port}: cannot listen there: {error.strerror or error}. "
                "Try: another --port, or 0 for a free one"
            ) from error
        config = uvicorn.Config(
            _app(self), log_level="warning", access_log=False, lifespan="off", ws="none", timeout_graceful_shutdown=2
        )
        self._http = uvicorn.Server(config)
        self._threads = [
            threading.Thread(target=self._generate, name="engine", daemon=True),
            threading.Thread(target=self._http.run, args=([self._listener],), name="http", daemon=True),
        ]

    @cached_property
    def chat(self) -> ChatFormat:
        """The model's chat format. Raises TrainerError: it has none; completions need none."""
        found: ChatFormat = self._chat(self.tokenizer)
        return found

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self._listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def __enter__(self) -> ModelServer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._jobs.put(None)
        self._threads[0].join()
        self._http.should_exit = True
        self._threads[1].join()
        self._listener.close()

    def wait(self) -> None:
        """Wait until the engine's thread ends. Raises what ended it."""
        self._threads[0].join()
        if self.failure is not None:
            raise self.failure

    async def sample(self, *jobs: Job) -> list[Sample]:
        """Generate; waits for slots and for the end. What is given together is begun in this order.

        Raises:
            TrainerError: the engine's thread has ended, or a job cannot be done.
        """
        with self._lock:
            self.check_running()
            for job in jobs:
                self._jobs.put(job)
        return [await asyncio.wrap_future(job.future) for job in jobs]

    def check_running(self) -> None:
        """Raise TrainerError if the engine's thread has ended, so that nothing is generated any more."""
        if self._stopped is not None:
            raise _StoppedError(str(self._stopped))

    def check_tokens(self, ids: Sequence[int]) -> None:
        """Raise ConfigurationError for a prompt that is empty, or holds what is no token."""
        vocab = self.tokenizer.vocab_size
        if not ids or not all(0 <= i < vocab for i in ids):
            raise ConfigurationError(f"prompt: expected at least one token id, each below {vocab}")

    def add_routes(self, app: FastAPI) -> None:
        """Add the paths that this server answers."""
        routes = _Routes(self)
        app.get("/health")(routes.health)
        app.get("/v1/models")(routes.models)
        app.post("/v1/completions")(routes.completions)
        app.post("/v1/chat/completions")(routes.chat)
        app.post("/collective_rpc")(routes.call)
        app.post("/reset_prefix_cache")(routes.reset_cache)
        app.post("/init_weight_transfer_engine")(routes.join_group)
        app.post("/start_weight_update")(routes.start_update)
        app.post("/update_weights")(routes.update)
        app.post("/finish_weight_update")(routes.finish_update)

    def receive(self, update: Mapping[str, Any]) -> None:
        """Receive weights from the trainer while requests run; see `WeightReceiver.receive`."""
        self.receiver.receive(update, self._model.checkpoint_weights())

    def _generate(self) -> None:
        """The engine's thread: starts requests as slots become free, and steps the engine."""
        waiting: list[Job] = []
        running: dict[int, Job] = {}
        try:
            while True:
                while True:
                    try:
                        job = self._jobs.get(block=not (waiting or running))
                    except queue.Empty:
                        break
                    if job is None:
                        return
                    waiting.append(job)
                while waiting and len(running) < self._engine.n_slots:
                    if not waiting[0].prompt:  # new weights: running requests end with the old ones first
                        if running:
                            break
                        self._reload(waiting[0])
                    else:
                        self._begin(waiting[0], running)
                    waiting.pop(0)
                for sample in self._engine.step():
                    self._engine.close(sample.slot)
                    running.pop(sample.slot).future.set_result(sample)
        except BaseException as error:
            self.failure = error  # `wait` raises it
            raise
        finally:
            reason = _StoppedError(f"the server has stopped: {self.failure or 'it was closed'}")
            with self._lock:
                self._stopped = reason
            for job in (*waiting, *running.values(), *self._unread_jobs()):
                with contextlib.suppress(InvalidStateError):  # it was cancelled
                    job.future.set_exception(reason)
            if self.failure is not None:
                self._http.should_exit = True

    def _unread_jobs(self) -> Iterator[Job]:
        """What is in the queue when the thread ends."""
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    yield job

    def _begin(self, job: Job, running: dict[int, Job]) -> None:
        if not job.future.set_running_or_notify_cancel():  # from here on it cannot be cancelled
            return
        slot = self._engine.open()
        try:
            self._engine.submit(
                slot,
                job.prompt,
                max_new_tokens=job.max_tokens,
                stop_ids=job.stop_ids,
                stop_strings=job.stop_strings,
                sampling=job.sampling,
                random=np.random.default_rng(job.seed % (1 << 64)),  # NumPy takes no negative seeds
                legal=job.legal,
            )
        except TrainerError as error:
            self._engine.close(slot)
            job.future.set_exception(error)
        else:
            running[slot] = job

    def _reload(self, job: Job) -> None:
        if not job.future.set_running_or_notify_cancel():
            return
        try:
            if job.weights is not None:
                given = job.weights
                self._model.load_checkpoint_weights(
                    torch.load(given, weights_only=True) if isinstance(given, Path) else given
                )
            else:
                fresh = LanguageModel.from_pretrained(self.folder)
                self._model.load_state_dict(fresh.state_dict())
        except (TrainerError, OSError, RuntimeError, UnpicklingError, EOFError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            job.future.set_exception(TrainerError(f"{self.folder}: not reloaded: {reason}"))
        else:
            job.future.set_result(Sample(-1, (), (), "length"))


class SamplingFields(BaseModel):
    """How a request is to be sampled; null is the default, and a negative `top_k` keeps all tokens."""

    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None

    @property
    def sampling(self) -> Sampling:
        """Raises ConfigurationError: a value is out of its range."""
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=max(0, self.top_k or 0),
            top_p=1.0 if self.top_p is None else self.top_p,
            min_p=self.min_p or 0.0,
        )


def first_error(error: ValidationError | RequestValidationError, *, skip: int = 0) -> str:
    """The first field that is wrong, and why; `skip` leaves out the first parts of its path."""
    first = error.errors()[0]
    return f"{'.'.join(str(part) for part in first['loc'][skip:]) or 'body'}: {first['msg']}"


class _Sampled(SamplingFields):
    """Fields that both kinds of completions have; unknown fields are ignored, as by other servers."""

    n: int | None = None
    stream: bool | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    logprobs: int | bool | None = None


class _Completion(_Sampled):
    prompt: str | list[int]
    return_token_ids: bool | None = None


class _Message(BaseModel):
    role: str
    content: str


class _Chat(_Sampled):
    messages: list[_Message]
    tools: list[dict[str, Any]] | None = None
    max_completion_tokens: int | None = Field(None, ge=1)


class _Call(BaseModel):
    method: str


class _Init(BaseModel):
    init_info: dict[str, Any]


class _Tensors(BaseModel):
    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


class _Update(BaseModel):
    update_info: _Tensors = Field()


class _Routes:
    """The endpoints. What raises becomes a response of one line; see `_app`."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server

    async def health(self) -> JSONResponse:
        self._server.check_running()
        return JSONResponse({"status": "ok"})

    async def models(self) -> JSONResponse:
        server = self._server
        card = {"id": server.name, "object": "model", "owned_by": "swe-serve", "max_model_len": server.max_tokens}
        return JSONResponse({"object": "list", "data": [card]})

    async def completions(self, body: _Completion) -> JSONResponse:
        tokenizer = self._server.tokenizer
        ids = tokenizer.encode(body.prompt) if isinstance(body.prompt, str) else body.prompt
        sample = await self._sample(body, ids, frozenset({tokenizer.end_id}), body.max_tokens)
        choice = {"index": 0, "text": tokenizer.decode(sample.token_ids), **_ending(sample)}
        if body.logprobs is not None and body.logprobs is not False:  # 0, as in vLLM: of the sampled token alone
            tokens = [f"token_id:{i}" for i in sample.token_ids]
            choice["logprobs"] = {"tokens": tokens, "token_logprobs": list(sample.logprobs)}
        if body.return_token_ids:
            choice |= {"token_ids": list(sample.token_ids), "prompt_token_ids": ids}
        return self._answer("text_completion", choice, len(ids), sample)

    async def chat(self, body: _Chat) -> JSONResponse:
        chat = self._server.chat
        ids = _conversation(chat, self._server.tokenizer.encode, body.messages, body.tools)
        sample = await self._sample(body, ids, chat.stop_ids, body.max_completion_tokens or body.max_tokens)
        message = {"role": "assistant", "content": chat.action_text(sample.token_ids)}
        choice: dict[str, Any] = {"index": 0, "message": message, **_ending(sample)}
        if body.logprobs:
            pairs = zip(sample.token_ids, sample.logprobs, strict=True)
            choice["logprobs"] = {"content": [{"token": f"token_id:{i}", "logprob": p} for i, p in pairs]}
        return self._answer("chat.completion", choice, len(ids), sample)

    async def call(self, body: _Call) -> JSONResponse:
        if body.method != "reload_weights":
            raise ConfigurationError(f"method: got {body.method!r}, expected reload_weights")
        await self._server.sample(Job(Future()))
        return JSONResponse({"results": [None]})

    async def reset_cache(self) -> JSONResponse:
        return JSONResponse({})

    # The next three wait for the trainer. They are no coroutines, so FastAPI runs them on threads.
    def join_group(self, body: _Init) -> JSONResponse:
        self._server.receiver.join(body.init_info)
        return JSONResponse({})

    def start_update(self) -> JSONResponse:
        self._server.receiver.start()
        return JSONResponse({})

    def update(self, body: _Update) -> JSONResponse:
        self._server.receive(body.update_info.model_dump())
        return JSONResponse({})

    async def finish_update(self) -> JSONResponse:
        await self._server.sample(Job(Future(), weights=self._server.receiver.finish()))
        return JSONResponse({})

    async def _sample(self, body: _Sampled, ids: Sequence[int], ends: frozenset[int], most: int | None) -> Sample:
        vocab = self._server.tokenizer.vocab_size
        self._server.check_tokens(ids)
        if (body.n or 1) != 1 or body.stream:
            raise ConfigurationError("n, stream: only one complete answer per request is supported")
        allowed = body.allowed_token_ids
        if allowed is not None and (most != 1 or not allowed or not all(0 <= i < vocab for i in allowed)):
            raise ConfigurationError(
                f"allowed_token_ids: expected at least one token id, each below {vocab}, with max_tokens 1"
            )
        stop = body.stop or []
        job = Job(
            Future(),
            tuple(ids),
            most or 256,
            frozenset(body.stop_token_ids or ()) | (frozenset() if body.ignore_eos else ends),
            (stop,) if isinstance(stop, str) else tuple(stop),
            body.sampling,
            secrets.randbits(63) if body.seed is None else body.seed,
            legal=None if allowed is None else ActionTrie.of_tokens(allowed),
        )
        return (await self._server.sample(job))[0]

    def _answer(self, kind: str, choice: dict[str, Any], read: int, sample: Sample) -> JSONResponse:
        wrote = len(sample.token_ids)
        usage = {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}
        content = {"id": f"cmpl-{secrets.token_hex(8)}", "object": kind, "created": int(time.time())}
        return JSONResponse({**content, "model": self._server.name, "choices": [choice], "usage": usage})


def _app(server: ModelServer) -> ASGIApp:
    app = FastAPI(openapi_url=None)
    server.add_routes(app)

    async def refuse(request: Request, error: Exception) -> JSONResponse:
        status, reason = HTTPStatus.BAD_REQUEST, str(error) or type(error).__name__
        if isinstance(error, RequestValidationError):
            reason = first_error(error, skip=1)
        elif isinstance(error, _StoppedError):
            status = HTTPStatus.SERVICE_UNAVAILABLE
        elif isinstance(error, HTTPException):
            status, reason = HTTPStatus(error.status_code), str(error.detail)
            if status == HTTPStatus.NOT_FOUND:
                reason = f"no such path: {request.url.path}"
        return _refusal(status, reason)

    for kind in (RequestValidationError, HTTPException, TrainerError, ValueError, TypeError, KeyError):
        app.add_exception_handler(kind, refuse)
    return _Guard(app, server)


class _Guard:
    """Checks the key and the size of a request before its body is read."""

    def __init__(self, app: ASGIApp, server: ModelServer) -> None:
        self._app, self._server = app, server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        size = headers.get(b"content-length", b"" if scope["method"] == "POST" else b"0")
        if not size.isdigit() or int(size) > _MAX_BODY_BYTES:
            reason = f"Content-Length: at most {_MAX_BODY_BYTES} bytes"
            response = _refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
            response.headers["Connection"] = "close"
        elif scope["path"] != "/health" and not self._allowed(headers):
            response = _refusal(HTTPStatus.UNAUTHORIZED, "the bearer token is missing or wrong")
        else:
            await self._app(scope, receive, send)
            return
        await response(scope, receive, send)

    def _allowed(self, headers: Mapping[bytes, bytes]) -> bool:
        key, given = self._server.api_key, headers.get(b"authorization", b"")
        if not given:  # as Tinker's client sends it
            given = b"Bearer " + headers.get(b"x-api-key", b"")
        return not key or hmac.compare_digest(given, f"Bearer {key}".encode())


def _refusal(status: HTTPStatus, reason: str) -> JSONResponse:
    return JSONResponse({"error": {"message": reason, "type": status.phrase, "code": status.value}}, status)


def _ending(sample: Sample) -> dict[str, Any]:
    if sample.end == "stop":
        return {"finish_reason": "stop", "stop_reason": sample.token_ids[-1]}
    return {"finish_reason": "stop" if sample.end == "string" else "length",
            "stop_reason": "a stop string" if sample.end == "string" else None}  # fmt: skip


def _conversation(chat: ChatFormat, encode: Any, messages: Sequence[_Message], tools: Any) -> list[int]:
    """Token ids of messages: optionally a system prompt, then `user` (or `tool`) and `assistant` in turns."""
    system = messages[0].content if messages and messages[0].role == "system" else None
    turns = messages[1:] if system is not None else messages
    if len(turns) % 2 == 0:
        raise ConfigurationError("messages: the last one must be the user's")
    ids: list[int] = []
    for place, message in enumerate(turns):
        expected = ("assistant",) if place % 2 else ("user", "tool")
        if message.role not in expected:
            raise ConfigurationError(f"messages: turn {place} is {message.role!r}, expected {expected[0]}")
        if place % 2:
            ids += [*encode(message.content), chat.end_id]
        elif place:
            ids += chat.observe(message.content, closed=True)
        else:
            ids += chat.start(message.content, system=system, tools=tools)
    return ids
