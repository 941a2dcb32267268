"""SGLang's own protocol, answered as its source answers it (0.5 and later); no SGLang runs on a machine without a GPU.

`python/sglang/srt/entrypoints/http_server.py`, `managers/io_struct.py` and `sampling/sampling_params.py` are what the
server here is made after: which fields it takes, that a flush of its cache is answered in words and not in JSON, and
that it flushes by itself where weights change.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from swe_trainers.engines.http import JsonClient
from swe_trainers.engines.sampling import Sampling
from swe_trainers.engines.served import ServedEngine
from swe_trainers.engines.sglang import SGLang
from swe_trainers.engines.weights import check_server
from swe_trainers.errors import EngineError

SAMPLING_PARAMS = {
    "max_new_tokens", "stop", "stop_token_ids", "temperature", "top_p", "top_k", "min_p", "ignore_eos",
    "skip_special_tokens", "no_stop_trim", "sampling_seed",
}  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    asked: list[tuple[str, dict[str, Any]]]
    version: int

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, body))
        if self.path == "/flush_cache":
            self.answer(200, b"Cache flushed.\nPlease check backend logs for more details.\n")
        elif self.path == "/update_weights_from_disk":
            good = body["model_path"] != "/broken"
            content = {"success": good, "message": "Succeeded." if good else "No such file.", "num_paused_requests": 0}
            self.answer(200 if good else 400, json.dumps(content).encode())
        elif self.path == "/generate" and set(body["sampling_params"]) <= SAMPLING_PARAMS:
            self.answer(200, json.dumps(self.generated(body)).encode())
        else:
            self.answer(422, b'{"detail": "unknown"}')

    def generated(self, body: dict[str, Any]) -> dict[str, Any]:
        sampling = body["sampling_params"]
        ids = [7] * (sampling["max_new_tokens"] - 1) + [next(iter(sampling["stop_token_ids"] or [7]))]
        matched: dict[str, Any] = {"type": "length", "length": len(ids)}
        if sampling["stop_token_ids"]:
            matched = {"type": "stop", "matched": ids[-1]}
        elif sampling["stop"]:
            matched = {"type": "stop", "matched": sampling["stop"][0]}
        logprobs = [[-0.25 * (n + 1), token, None] for n, token in enumerate(ids)]
        meta = {
            "id": "1",
            "finish_reason": matched,
            "prompt_tokens": len(body["input_ids"]),
            "weight_version": "default",
        }
        return {"text": "", "output_ids": ids, "meta_info": {**meta, "output_token_logprobs": logprobs}}

    def answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[ServedEngine]:
    handler = type("Recorded", (Handler,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        client = JsonClient(f"http://127.0.0.1:{server.server_address[1]}", tries=2, pause_s=0.01)
        made = ServedEngine(client, SGLang(), n_slots=2, max_tokens=64)
        made.asked = handler.asked  # type: ignore[attr-defined]
        yield made
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("stop_ids", "stop_strings", "end"), [({9}, (), "stop"), ((), ("\n",), "string"), ((), (), "length")]
)
def test_tokens_logprobs_and_end_reason_are_read(engine: ServedEngine, stop_ids, stop_strings, end) -> None:
    check_server(engine, training=True)
    slot = engine.open()
    engine.submit(slot, [1, 2, 3], max_new_tokens=3, stop_ids=stop_ids, stop_strings=stop_strings,
                  sampling=Sampling(0.7, top_p=0.9), random=np.random.default_rng(0))  # fmt: skip
    samples = []
    while engine.busy:
        samples += engine.step()
    (sample,) = samples
    assert sample.token_ids == (7, 7, 9 if stop_ids else 7) and sample.logprobs == (-0.25, -0.5, -0.75)
    assert sample.end == end and sample.versions == (0, 0, 0)
    _, body = engine.asked[-1]
    assert body["input_ids"] == [1, 2, 3] and body["return_logprob"] is True
    params = body["sampling_params"]
    assert (params["temperature"], params["top_p"], params["top_k"], params["ignore_eos"]) == (0.7, 0.9, -1, True)


def test_weights_are_reloaded_and_a_failure_is_raised(engine: ServedEngine) -> None:
    engine.reload("/weights", 3)
    assert engine.version == 3
    path, body = engine.asked[0]
    assert path == "/update_weights_from_disk" and body["model_path"] == "/weights" and body["flush_cache"] is True
    with pytest.raises(EngineError, match="No such file"):
        engine.reload("/broken", 4)
    assert engine.version == 3
