"""Generation by a real server over HTTP: its tokens and log-probabilities equal the model's."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from swe_trainers.engines.http import JsonClient, RefusedError
from swe_trainers.engines.sampling import Sampling
from swe_trainers.engines.served import ServedEngine
from swe_trainers.engines.serving import ModelServer
from swe_trainers.engines.weights import WeightSync, check_server
from swe_trainers.errors import ConfigurationError, EngineError
from tests.trainers.engines.served import engine_of, served
from tests.trainers.tiny import full_logprobs, tiny_model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    with served(tmp_path_factory.mktemp("served") / "model", tiny_model("qwen3")) as running:
        yield running


def finish(engine: ServedEngine) -> list:
    samples = []
    while engine.busy:
        samples += engine.step()
    return samples


def ask(engine: ServedEngine, slot: int, ids: list[int], stream: int = 0, **options) -> None:
    settings = {"max_new_tokens": 6, "stop_ids": frozenset(), "sampling": Sampling(), **options}
    engine.submit(slot, ids, random=np.random.default_rng(stream), **settings)


def test_tokens_and_logprobs_over_turns_equal_the_forward_pass(server: ModelServer) -> None:
    model, engine = tiny_model("qwen3"), engine_of(server)
    engine.version = 7
    records: dict[int, list[int]] = {engine.open(): [] for _ in range(3)}
    for turn, temperature in enumerate((1.0, 0.7)):
        for slot, ids in records.items():
            prompt = [(slot + 3 * turn + k) % 40 for k in range(2 + 3 * slot)]
            ids.extend(prompt)
            ask(engine, slot, prompt, stream=slot, sampling=Sampling(temperature))
        samples = finish(engine)
        assert sorted(sample.slot for sample in samples) == [0, 1, 2]
        for sample in samples:
            ids = records[sample.slot]
            ids.extend(sample.token_ids)
            truth = full_logprobs(model, ids, temperature)[-6:]
            torch.testing.assert_close(torch.tensor(sample.logprobs), truth, rtol=1e-4, atol=1e-4)
            assert sample.versions == (7,) * 6 and sample.end == "length"


def test_action_ends_at_stop_token_or_full_slot(server: ModelServer) -> None:
    engine = engine_of(server, max_tokens=20)
    slot = engine.open()
    ask(engine, slot, [1, 2, 3], max_new_tokens=12)
    free = finish(engine)[0].token_ids
    engine.rewind(slot, 0)
    ask(engine, slot, [1, 2, 3], max_new_tokens=12, stop_ids={free[4]})
    (stopped,) = finish(engine)
    assert stopped.end == "stop" and stopped.token_ids == free[: free.index(free[4]) + 1]
    ask(engine, slot, [5], max_new_tokens=100)
    assert finish(engine)[0].end == "context"
    with pytest.raises(EngineError, match="expected 1 to 19"):
        ask(engine, slot, [5])


def test_late_answer_of_a_closed_slot_is_ignored(server: ModelServer) -> None:
    engine = engine_of(server, n_slots=1)
    ask(engine, engine.open(), [1, 2], max_new_tokens=40)
    engine.close(0)
    ask(engine, engine.open(), [3], max_new_tokens=2)
    assert [len(sample.token_ids) for sample in finish(engine)] == [2]


def test_greedy_tokens_are_most_likely_with_logprob_zero(server: ModelServer) -> None:
    model, engine = tiny_model("qwen3"), engine_of(server)
    ask(engine, engine.open(), [4, 5, 6], sampling=Sampling(temperature=0))
    (sample,) = finish(engine)
    ids = [4, 5, 6]
    for _ in range(6):
        with torch.no_grad():
            ids.append(int(model.causal_lm(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    assert list(sample.token_ids) == ids[3:] and set(sample.logprobs) == {0.0}


def test_new_weights_and_their_version_reach_the_server(tmp_path: Path) -> None:
    model = tiny_model("llama")
    with served(tmp_path / "model", model) as server:
        engine = engine_of(server)
        sync = WeightSync(model, engine, tmp_path / "model", tolerance=1e-4)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        with pytest.raises(EngineError, match="does not compute with the policy's weights"):
            sync.check(Sampling(), 0)
        sync.send(3, Sampling(0.8))
        assert sync.gap < 1e-4
        ask(engine, engine.open(), [1, 2])
        assert finish(engine)[0].versions == (3,) * 6
        with torch.no_grad():  # a policy that learns on changes nothing in what a server must prove that comes back
            model.causal_lm.get_input_embeddings().weight.add_(1.0)
        sync.prove(engine.client)
        with torch.no_grad():
            for parameter in server._model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        with pytest.raises(EngineError, match=r"\(update 3, started again\)"):
            sync.prove(engine.client)


def test_server_with_a_stale_tied_projection_is_detected(tmp_path: Path) -> None:
    """What vLLM did in silence: embeddings are taken, the projection tied to them stays as it was."""
    model = tiny_model("llama", tie_word_embeddings=True)
    with served(tmp_path / "model", model) as server:
        engine = engine_of(server)
        sync = WeightSync(model, engine, tmp_path / "model", tolerance=1e-4)
        theirs = server._model.causal_lm
        theirs.lm_head.weight = torch.nn.Parameter(theirs.lm_head.weight.detach().clone())  # as if never tied
        state = server._model.load_state_dict
        server._model.load_state_dict = lambda new: state({**new, "causal_lm.lm_head.weight": theirs.lm_head.weight})
        sync.send(1, Sampling())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        with pytest.raises(EngineError, match="tied"):
            sync.send(2, Sampling())


def test_weights_cannot_change_during_a_request(server: ModelServer) -> None:
    engine = engine_of(server)
    ask(engine, engine.open(), [1], max_new_tokens=50)
    with pytest.raises(EngineError, match="unfinished"):
        engine.reload(server.folder, 1)
    finish(engine)


class Bare(BaseHTTPRequestHandler):
    """A server of text alone, busy at first; what it answers is in `answers`."""

    answers: list[tuple[int, dict]]
    asked: list[dict]

    def do_POST(self) -> None:
        self.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def bare() -> Iterator[tuple[str, type[Bare]]]:
    kind = type("Running", (Bare,), {"answers": [], "asked": []})
    running = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{running.server_address[1]}", kind
    running.shutdown()
    running.server_close()
    thread.join()


def engine_at(url: str) -> ServedEngine:
    from swe_trainers.engines.vllm import VLLM

    return ServedEngine(JsonClient(url, tries=3, pause_s=0.01, timeout_s=5), VLLM("m"), n_slots=1, max_tokens=64)


@pytest.mark.parametrize(
    ("answer", "training", "message"),
    [
        ({"choices": [{"text": "Hello"}]}, False, "gives no token ids"),
        ({"choices": [{"text": "Hello", "token_ids": [3]}]}, True, "no log-probability with each token"),
        ({"error": "nothing here"}, True, "cannot be understood"),
    ],
)
def test_server_without_token_ids_or_logprobs_is_rejected(bare, answer, training, message) -> None:
    url, kind = bare
    kind.answers.append((200, answer))
    with pytest.raises(EngineError, match=message):
        check_server(engine_at(url), training=training)


def test_token_ids_without_logprobs_suffice_for_evaluation(bare) -> None:
    url, kind = bare
    engine = engine_at(url)
    kind.answers.append((200, {"choices": [{"text": "Hello", "token_ids": [3]}]}))
    check_server(engine, training=False)
    assert not engine.scored and len(kind.asked) == 1


def test_busy_server_is_retried_and_client_error_is_final(bare) -> None:
    url, kind = bare
    good = {"choices": [{"token_ids": [3], "logprobs": {"token_logprobs": [-0.5]}}]}
    kind.answers += [(503, {}), (429, {}), (200, good)]
    assert engine_at(url).sample([1], 1, sampling=Sampling(), seed=5).logprobs == (-0.5,)
    assert [body["seed"] for body in kind.asked] == [5, 5, 5]
    kind.answers[:] = [(400, {"error": {"message": "no such model"}})]
    with pytest.raises(RefusedError, match="400: no such model"):
        engine_at(url).sample([1], 1, sampling=Sampling(), seed=0)
    assert len(kind.asked) == 4


def test_unreachable_server_is_a_one_line_error() -> None:
    with pytest.raises(EngineError, match="no answer after 2 tries") as caught:
        JsonClient("http://127.0.0.1:9", tries=2, pause_s=0.01).get("/health")
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="expected http"):
        JsonClient("localhost:8000")
