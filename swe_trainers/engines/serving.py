"""An OpenAI-compatible server over the embedded engine: a trained model by URL, for evaluation and for rollouts.

POST /v1/completions        text or token ids; `return_token_ids`, `logprobs`, `stop_token_ids` as vLLM has them
POST /v1/chat/completions   messages, in the model's own chat format
POST /collective_rpc        {"method": "reload_weights"}: read the model's folder again
POST /init_weight_transfer_engine, /start_weight_update, /update_weights, /finish_weight_update
                            weights from a trainer's memory, over gloo; see `weight_transfer`
POST /reset_prefix_cache    nothing is kept between requests, so nothing is to be dropped
GET  /health, /v1/models
"""

from __future__ import annotations

import hmac
import json
import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import torch

from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.engines.protocol import Sample
from swe_trainers.engines.sampling import Sampling
from swe_trainers.engines.weight_transfer import WeightReceiver
from swe_trainers.errors import ConfigurationError, TrainerError
from swe_trainers.policy.chat import ChatFormat
from swe_trainers.policy.language_model import LanguageModel

__all__ = ["ModelServer"]

_MAX_BODY_BYTES = 32 << 20


@dataclass(frozen=True)
class _Job:
    """A request on its way to the engine; without a prompt, an order to take weights, or to read them again."""

    future: Future[Sample]
    prompt: tuple[int, ...] = ()
    max_tokens: int = 0
    stop_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    sampling: Sampling = Sampling()
    seed: int = 0
    weights: Mapping[str, torch.Tensor] | None = None


class ModelServer:
    """Serves one model from its folder; a context manager that is up between its ends.

    Args:
        folder: of the model, as `LanguageModel.save_pretrained` writes it.
        chat: from the model's tokenizer to its chat format.
        host, port: where to listen; port 0 takes a free one.
        n_slots: requests generated at once; others wait.
        max_tokens: the longest sequence; None takes the model's own limit.
        api_key: asked of every request, as a bearer token, where it is not empty.
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
        self.chat: ChatFormat = chat(self.tokenizer)
        limit = max_tokens or self._model.max_positions or 4096
        self._engine = EmbeddedEngine(self._model, n_slots=n_slots, max_tokens=limit)
        self.max_tokens, self.api_key = limit, api_key
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.receiver = WeightReceiver()
        self.failure: BaseException | None = None
        handler = type("Handler", (_Handler,), {"owner": self})
        try:
            self._http = ThreadingHTTPServer((host, port), handler)
        except OSError as error:
            raise ConfigurationError(
                f"{host}:{port}: cannot listen there: {error.strerror or error}. "
                "Try: another --port, or 0 for a free one"
            ) from error
        self._http.daemon_threads = True
        self._threads = [
            threading.Thread(target=self._generate, name="engine", daemon=True),
            threading.Thread(target=self._http.serve_forever, name="http", daemon=True),
        ]

    @property
    def url(self) -> str:
        """Where it answers."""
        host, port = self._http.server_address[:2]
        return f"http://{host if isinstance(host, str) else host.decode()}:{port}"

    def __enter__(self) -> ModelServer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._jobs.put(None)
        self._threads[0].join()

    def wait(self) -> None:
        """Serve until the engine's thread ends. Raises what ended it."""
        self._threads[0].join()
        if self.failure is not None:
            raise self.failure

    def ask(self, job: _Job) -> Sample:
        """Generate; waits for its turn and its end."""
        self._jobs.put(job)
        return job.future.result()

    def receive(self, update: Mapping[str, Any]) -> None:
        """Take weights in from the trainer, beside what is generated; see `WeightReceiver.receive`."""
        self.receiver.receive(update, self._model.checkpoint_weights())

    def take(self) -> None:
        """Generate with the weights that were received, once what runs has ended."""
        self.ask(_Job(Future(), weights=self.receiver.finish()))

    def _generate(self) -> None:
        """The engine's thread: takes requests in as slots become free, and steps."""
        waiting: list[_Job] = []
        running: dict[int, _Job] = {}
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
                    if not waiting[0].prompt:  # new weights: what runs ends first with the old ones
                        if running:
                            break
                        self._reload(waiting.pop(0))
                        continue
                    self._begin(waiting.pop(0), running)
                for sample in self._engine.step():
                    self._engine.close(sample.slot)
                    running.pop(sample.slot).future.set_result(sample)
        except BaseException as error:
            self.failure = error  # `wait` raises it; nobody is left to answer
            for job in (*waiting, *running.values()):
                job.future.set_exception(error)
            self._http.shutdown()
            raise

    def _begin(self, job: _Job, running: dict[int, _Job]) -> None:
        slot = self._engine.open()
        try:
            self._engine.submit(
                slot,
                job.prompt,
                max_new_tokens=job.max_tokens,
                stop_ids=job.stop_ids,
                stop_strings=job.stop_strings,
                sampling=job.sampling,
                random=np.random.default_rng(job.seed),
            )
        except TrainerError as error:
            self._engine.close(slot)
            job.future.set_exception(error)
        else:
            running[slot] = job

    def _reload(self, job: _Job) -> None:
        try:
            if job.weights is not None:
                self._model.load_checkpoint_weights(job.weights)
            else:
                fresh = LanguageModel.from_pretrained(self.folder)
                self._model.load_state_dict(fresh.state_dict())
        except (TrainerError, RuntimeError) as error:
            job.future.set_exception(TrainerError(f"{self.folder}: not reloaded: {str(error).splitlines()[0]}"))
        else:
            job.future.set_result(Sample(-1, (), (), "length"))


class _Handler(BaseHTTPRequestHandler):
    """One connection: checks what is asked, and puts answers into OpenAI's shapes."""

    owner: ModelServer
    protocol_version = "HTTP/1.1"
    timeout = 600

    def do_GET(self) -> None:
        """`/health`, `/v1/models`."""
        owner = self.owner
        if self.path == "/health":
            self._send(HTTPStatus.OK, {"status": "ok"})
        elif not self._allowed():
            self._refuse(HTTPStatus.UNAUTHORIZED, "the bearer token is missing or wrong")
        elif self.path == "/v1/models":
            card = {"id": owner.name, "object": "model", "owned_by": "swe-serve", "max_model_len": owner.max_tokens}
            self._send(HTTPStatus.OK, {"object": "list", "data": [card]})
        else:
            self._refuse(HTTPStatus.NOT_FOUND, f"no such path: {self.path}")

    def do_POST(self) -> None:
        """Everything else."""
        calls: dict[str, Callable[[dict[str, Any]], Any]] = {
            "/v1/completions": self._complete,
            "/v1/chat/completions": self._chat,
            "/collective_rpc": self._order,
            "/reset_prefix_cache": lambda _: {},
            "/init_weight_transfer_engine": lambda body: self.owner.receiver.join(body["init_info"]),
            "/start_weight_update": lambda _: self.owner.receiver.start(),
            "/update_weights": lambda body: self.owner.receive(body["update_info"]),
            "/finish_weight_update": lambda _: self.owner.take(),
        }
        size = self.headers.get("Content-Length", "")
        if not size.isdigit() or int(size) > _MAX_BODY_BYTES:
            self.close_connection = True
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"Content-Length: at most {_MAX_BODY_BYTES} bytes")
            return
        content = self.rfile.read(int(size))
        if not self._allowed():
            self._refuse(HTTPStatus.UNAUTHORIZED, "the bearer token is missing or wrong")
            return
        call = calls.get(self.path)
        if call is None:
            self._refuse(HTTPStatus.NOT_FOUND, f"no such path: {self.path}")
            return
        try:
            body = json.loads(content or b"{}")
            if not isinstance(body, dict):
                raise ConfigurationError("the body is no JSON object")
            self._send(HTTPStatus.OK, call(body) or {})
        except (TrainerError, ValueError, TypeError, KeyError) as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error) or type(error).__name__)

    def log_message(self, *_: Any) -> None:
        """Nothing: a line a request would drown everything else."""

    def _allowed(self) -> bool:
        key, given = self.owner.api_key, self.headers.get("Authorization", "")
        return not key or hmac.compare_digest(given.encode(), f"Bearer {key}".encode())

    def _order(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if body.get("method") != "reload_weights":
            raise ConfigurationError(f"method: got {body.get('method')!r}, expected reload_weights")
        self.owner.ask(_Job(Future()))
        return {"results": [None]}

    def _complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            ids = self.owner.tokenizer.encode(prompt)
        elif isinstance(prompt, list) and all(type(i) is int for i in prompt):
            ids = prompt
        else:
            raise ConfigurationError("prompt: expected a text or a list of token ids")
        sample = self._sample(body, ids, frozenset({self.owner.tokenizer.end_id}))
        text = self.owner.tokenizer.decode(sample.token_ids)
        choice = {"index": 0, "text": text, **_ending(sample)}
        if body.get("logprobs"):
            tokens = [f"token_id:{i}" for i in sample.token_ids]
            choice["logprobs"] = {"tokens": tokens, "token_logprobs": list(sample.logprobs)}
        if body.get("return_token_ids"):
            choice |= {"token_ids": list(sample.token_ids), "prompt_token_ids": ids}
        return self._answer("text_completion", choice, ids, sample)

    def _chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        ids = _conversation(self.owner.chat, self.owner.tokenizer.encode, body.get("messages"), body.get("tools"))
        sample = self._sample({**body, "max_tokens": body.get("max_completion_tokens") or body.get("max_tokens")}, ids,
                              self.owner.chat.stop_ids)  # fmt: skip
        message = {"role": "assistant", "content": self.owner.chat.action_text(sample.token_ids)}
        choice: dict[str, Any] = {"index": 0, "message": message, **_ending(sample)}
        if body.get("logprobs"):
            said = zip(sample.token_ids, sample.logprobs, strict=True)
            choice["logprobs"] = {"content": [{"token": f"token_id:{i}", "logprob": p} for i, p in said]}
        return self._answer("chat.completion", choice, ids, sample)

    def _sample(self, body: Mapping[str, Any], ids: list[int], ends: frozenset[int]) -> Sample:
        vocab = self.owner.tokenizer.vocab_size
        if not ids or not all(0 <= i < vocab for i in ids):
            raise ConfigurationError(f"prompt: expected at least one token id, each below {vocab}")
        if body.get("n", 1) != 1 or body.get("stream"):
            raise ConfigurationError("n, stream: one whole answer a request is all that is offered")
        stop = body.get("stop") or []
        seed = body.get("seed")
        job = _Job(
            Future(),
            tuple(ids),
            int(body.get("max_tokens") or 256),
            frozenset(body.get("stop_token_ids") or ()) | (frozenset() if body.get("ignore_eos") else ends),
            (stop,) if isinstance(stop, str) else tuple(stop),
            Sampling(
                temperature=float(body.get("temperature", 1.0)),
                top_k=max(0, int(body.get("top_k", 0))),
                top_p=float(body.get("top_p", 1.0)),
                min_p=float(body.get("min_p", 0.0)),
            ),
            secrets.randbits(63) if seed is None else int(seed),
        )
        return self.owner.ask(job)

    def _answer(self, kind: str, choice: dict[str, Any], ids: list[int], sample: Sample) -> dict[str, Any]:
        read, wrote = len(ids), len(sample.token_ids)
        usage = {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}
        return {
            "id": f"cmpl-{secrets.token_hex(8)}", "object": kind, "created": int(time.time()),
            "model": self.owner.name, "choices": [choice], "usage": usage,
        }  # fmt: skip

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self._send(status, {"error": {"message": reason, "type": status.phrase, "code": status.value}})

    def _send(self, status: HTTPStatus, body: Mapping[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _ending(sample: Sample) -> dict[str, Any]:
    if sample.end == "stop":
        return {"finish_reason": "stop", "stop_reason": sample.token_ids[-1]}
    return {"finish_reason": "stop" if sample.end == "string" else "length",
            "stop_reason": "a stop string" if sample.end == "string" else None}  # fmt: skip


def _conversation(chat: ChatFormat, encode: Any, messages: Any, tools: Any) -> list[int]:
    """Ids of messages: an optional system prompt, then `user` (or `tool`) and `assistant` by turns, a user's last."""
    if not isinstance(messages, list) or not all(
        isinstance(m, dict) and isinstance(m.get("content"), str) for m in messages
    ):
        raise ConfigurationError("messages: expected a list of objects with role and a content of text")
    system = messages[0]["content"] if messages and messages[0].get("role") == "system" else None
    turns = messages[1:] if system is not None else messages
    if len(turns) % 2 == 0:
        raise ConfigurationError("messages: the last one must be the user's")
    ids: list[int] = []
    for place, message in enumerate(turns):
        expected = ("assistant",) if place % 2 else ("user", "tool")
        if message.get("role") not in expected:
            raise ConfigurationError(f"messages: turn {place} is {message.get('role')!r}, expected {expected[0]}")
        if place % 2:
            ids += [*encode(message["content"]), chat.end_id]
        elif place:
            ids += chat.observe(message["content"], closed=True)
        else:
            ids += chat.start(message["content"], system=system, tools=tools)
    return ids
