"""A server of Tinker's API: a client trains copies of one model here, and samples from any state of them.

    create_model, load_weights            a new training run, with adapters of a rank; rank 0 trains all weights
    forward_backward                      adds up gradients; cross_entropy, importance_sampling, ppo, cispo
    optim_step                            AdamW as `learning.learner.adamw` groups it, then the gradients are 0
    save_weights                          weights and optimizer
    save_weights_for_sampler, asample     weights to sample from; a request that names others waits for its turn

What takes time answers with the number of a request, whose result `retrieve_future` waits for. The messages of passes
and samples are those of the package `tinker`, from which they are taken.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from tinker.proto import tinker_public_pb2 as messages

from swe_trainers.engines.serving import Job, ModelServer
from swe_trainers.errors import ConfigurationError, TrainerError
from swe_trainers.tinker import requests
from swe_trainers.tinker.sessions import Results, Sessions
from swe_trainers.tinker.states import States, samples_message, sampling_jobs
from swe_trainers.tinker.training import TrainingRun

__all__ = ["TinkerServer"]

_UNKNOWN = Path()


class TinkerServer(ModelServer):
    """Trains and serves one model; a context manager.

    Args:
        folder: of the model, which does not change.
        states: where saved weights are written; None for a folder that is removed at the end.
        microbatch_tokens: entries of one forward pass, padding counted.
        max_runs: training runs at once; each has a copy of the model.
        session_timeout_s: runs are dropped when their client was silent for so long.
        options: of `ModelServer`.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        states: str | Path | None = None,
        microbatch_tokens: int = 8192,
        max_runs: int = 4,
        session_timeout_s: float = 600.0,
        **options: Any,
    ) -> None:
        self.runs: dict[str, TrainingRun] = {}
        self._sessions, self._results = Sessions(self.runs, session_timeout_s), Results()
        super().__init__(folder, lambda _: None, **options)  # clients render conversations themselves
        self.states = States(states)
        self._microbatch_tokens, self._max_runs = microbatch_tokens, max_runs
        self._loaded: Path | None = None  # what the engine samples from; None: the model as it is in its folder
        self._training = ThreadPoolExecutor(1, "train")  # the requests of all runs, in their order

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._training.shutdown(cancel_futures=True)
        self.states.close()

    def add_routes(self, app: FastAPI) -> None:
        """Tinker's paths in place of OpenAI's."""
        for name in (
            "create_session", "create_model", "load_weights", "get_info", "optim_step", "save_weights",
            "save_weights_for_sampler", "create_sampling_session", "asample", "session_heartbeat",
        ):  # fmt: skip
            app.post(f"/api/v1/{name}")(getattr(self, name))
        for path, constant in (
            ("client/config", {"parallel_fwdbwd_chunks": False, "use_pyqwest_transport": False}),
            ("client/dynamic_config", {}),
            ("telemetry", {"status": "accepted"}),  # and forgotten
        ):
            app.post(f"/api/v1/{path}")(self._constant(constant))
        model = {"model_name": self.name, "max_context_length": self.max_tokens, "trainable": True, "sampleable": True}
        app.get("/api/v1/get_server_capabilities")(self._constant({"supported_models": [model]}))
        for path in ("/api/v1/healthz", "/health"):
            app.get(path)(self._health)
        app.get("/api/v1/samplers/{sampler}")(self._sampler)
        app.post("/api/v1/sessions/{session}/finish")(self._finish)
        app.post("/api/v1/forward_backward")(self._forward_backward)
        app.post("/api/v1/retrieve_future")(self._results.retrieve)

    @staticmethod
    def _constant(answer: dict[str, Any]) -> Callable[..., Awaitable[dict[str, Any]]]:
        async def constant(_: Any = None) -> dict[str, Any]:
            return answer

        return constant

    async def _health(self) -> dict[str, Any]:
        self.check_running()
        return {"status": "ok"}

    async def create_session(self) -> dict[str, Any]:
        return {"session_id": self._sessions.begin()}

    async def session_heartbeat(self, body: requests.Heartbeat) -> dict[str, Any]:
        self._sessions.alive(body.session_id)
        return {}

    async def _finish(self, session: str) -> Response:
        self._sessions.end(session)
        return Response(status_code=204)

    async def create_model(self, body: requests.CreateModel) -> dict[str, Any]:
        self._check_base(body.base_model)
        if body.optimizer_config and body.optimizer_config.type != "adamw":
            raise ConfigurationError("optimizer_config: expected adamw")
        config = body.lora_config
        if config and not (config.train_mlp and config.train_attn and config.train_unembed):
            raise ConfigurationError("lora_config: all layers are adapted, or with rank 0 all weights trained")
        name = self._new_run(body.session_id, body.model_seq_id)
        make = self._maker(config.rank if config else 0, (config.seed if config else None) or 0)

        def create() -> dict[str, Any]:
            self.runs[name] = make()
            return {"model_id": name, "type": "create_model"}

        return self._train(name, 0, create)

    def _new_run(self, session: str, number: int) -> str:
        name = f"{session}:train:{number}"
        self._sessions.add_run(session, name, self._max_runs)
        return name

    def _maker(self, rank: int, seed: int) -> Callable[[], TrainingRun]:
        return lambda: TrainingRun(self.folder, rank=rank, seed=seed, microbatch_tokens=self._microbatch_tokens)

    async def load_weights(self, body: requests.LoadWeights) -> dict[str, Any]:
        """Into a run that is there (`model_id`), or one that begins with them (`session_id`, `model_seq_id`)."""
        path = self.states.file_of(body.path, "weights")
        if body.session_id is not None and body.model_seq_id is not None:
            name, is_new = self._new_run(body.session_id, body.model_seq_id), True
        elif body.model_id is not None:
            name, is_new = body.model_id, False
        else:
            raise ConfigurationError("expected model_id, or session_id and model_seq_id")

        def load() -> dict[str, Any]:
            state = torch.load(path, weights_only=True)
            if is_new:
                self.runs[name] = self._maker(state["rank"], 0)()
            self._run(name).load(state, optimizer=body.optimizer)
            return {"path": body.path, "model_id": name, "type": "load_weights"}

        return self._train(name, 0 if is_new else body.seq_id, load)

    async def get_info(self, body: requests.GetInfo) -> dict[str, Any]:
        name, rank = body.model_id, self._run(body.model_id).rank
        data = {"model_name": self.name, "tokenizer_id": str(self.folder.resolve())}
        return {"model_data": data, "model_id": name, "is_lora": rank > 0, "lora_rank": rank, "model_name": self.name}

    async def optim_step(self, body: requests.OptimStep) -> dict[str, Any]:
        name, params = body.model_id, body.params.model_dump()
        return self._train(name, body.seq_id, lambda: {"metrics": self._run(name).optim_step(**params)})

    async def _forward_backward(self, request: Request) -> JSONResponse:
        message = messages.ForwardBackwardRequest()
        message.ParseFromString(await request.body())
        name = message.model_id
        return JSONResponse(self._train(name, message.seq_id, lambda: self._run(name).forward_backward(message)))

    async def save_weights(self, body: requests.SaveWeights) -> dict[str, Any]:
        name, path = body.model_id, f"tinker://{body.model_id}/weights/{body.path or secrets.token_hex(4)}"
        place = self.states.file_of(path, "weights", new=None if body.overwrite else True)

        def save() -> dict[str, Any]:
            self._run(name).save(place)
            return {"path": path}

        return self._train(name, body.seq_id, save)

    async def save_weights_for_sampler(self, body: requests.SaveWeightsForSampler) -> dict[str, Any]:
        name, sampler = body.model_id, secrets.token_hex(8)
        path = f"tinker://{name}/sampler_weights/{body.path or sampler}"
        place = self.states.file_of(path, "sampler_weights", new=True)

        def save() -> dict[str, Any]:
            self._run(name).save_for_sampler(place)
            if body.path:
                return {"path": path, "type": "save_weights_for_sampler"}
            self.states.samplers[sampler] = place
            return {"sampling_session_id": sampler, "type": "save_weights_for_sampler"}

        return self._train(name, body.seq_id, save)

    async def create_sampling_session(self, body: requests.CreateSamplingSession) -> dict[str, Any]:
        self._sessions.alive(body.session_id)
        sampler, path = secrets.token_hex(8), body.model_path
        if path is None:
            self._check_base(body.base_model)
        self.states.samplers[sampler] = None if path is None else self.states.file_of(path, "sampler_weights")
        return {"sampling_session_id": sampler}

    async def _sampler(self, sampler: str) -> dict[str, Any]:
        self.states.place_of(sampler)
        return {"sampler_id": sampler, "base_model": self.name}

    async def asample(self, body: requests.Sample) -> dict[str, Any]:
        sampler = body.sampling_session_id
        place, jobs = self.states.place_of(sampler), sampling_jobs(body, self.tokenizer.end_id, self.max_tokens)
        self.check_tokens(jobs[0].prompt)
        number = len(jobs)

        async def sample() -> bytes:
            if place != self._loaded:
                jobs.insert(0, Job(Future(), weights=place))  # what is given together is begun in its order
                self._loaded = place
            try:
                return samples_message((await self.sample(*jobs))[-number:])
            except TrainerError:
                self._loaded = _UNKNOWN
                raise

        begun = self._results.begin(sampler, body.seq_id, sample())
        return {**begun, "sample_sequence_ids": [f"{begun['request_id']}:{i}" for i in range(number)]}

    def _train(self, run: str, number: int | None, work: Callable[[], bytes | dict[str, Any]]) -> dict[str, Any]:
        """Begin work on the thread that trains; the same request again is the same work."""
        self._sessions.alive(run.split(":", maxsplit=1)[0])

        async def train() -> bytes | dict[str, Any]:
            return await asyncio.get_running_loop().run_in_executor(self._training, work)

        return {**self._results.begin(run, number, train()), "model_id": run}

    def _check_base(self, name: str | None) -> None:
        if name != self.name:
            raise ConfigurationError(f"base_model: got {name!r}, expected {self.name}")

    def _run(self, name: str) -> TrainingRun:
        if name not in self.runs:
            raise ConfigurationError(f"model {name!r} does not exist, or its session has ended")
        return self.runs[name]
