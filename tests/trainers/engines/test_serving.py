"""`swe-serve`: requests of OpenAI's clients, and invalid requests."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import cast

import httpx2 as httpx
import pytest

from swe_trainers.engines.http import JsonClient, RefusedError
from swe_trainers.engines.serving import Job, ModelServer, _app
from swe_trainers.errors import TrainerError
from swe_trainers.model.chat import CompactChat
from swe_trainers.model.tokenizers import HuggingFaceTokenizer, train_sentencepiece
from swe_trainers.provenance import write_provenance
from swe_trainers.run_config import EnvironmentConfig
from tests.trainers.engines.served import served
from tests.trainers.tiny import full_logprobs, tiny_model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    with served(tmp_path_factory.mktemp("serving") / "tiny", tiny_model(), n_slots=2, api_key="secret") as running:
        yield running


def client(server: ModelServer, key: str | None = "secret") -> JsonClient:
    return JsonClient(server.url, tries=1, timeout_s=30, api_key=key)


def test_chat_uses_the_chat_format_of_the_model(server: ModelServer) -> None:
    messages = [
        {"role": "system", "content": "w0"}, {"role": "user", "content": "w1 w2"},
        {"role": "assistant", "content": "w3"}, {"role": "user", "content": "w4"},
    ]  # fmt: skip
    body = {"messages": messages, "max_tokens": 5, "temperature": 0, "logprobs": True}
    answer = client(server).post("/v1/chat/completions", body)
    chat, encode = CompactChat(server.tokenizer), server.tokenizer.encode
    ids = [*chat.start("w1 w2"), *encode("w3"), chat.end_id, *chat.observe("w4", closed=True)]
    assert answer["usage"]["prompt_tokens"] == len(ids)
    model = tiny_model()
    sampled = [int(x["token"].removeprefix("token_id:")) for x in answer["choices"][0]["logprobs"]["content"]]
    for place, token in enumerate(sampled):  # the likeliest each time
        others = [float(full_logprobs(model, [*ids, *sampled[:place], i])[-1]) for i in range(40)]
        assert float(full_logprobs(model, [*ids, *sampled[:place], token])[-1]) >= max(others)
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": chat.action_text(sampled)}


@pytest.mark.parametrize("chat", [None, "compact"])
def test_a_tokenizer_without_chat_template_is_served_and_chats_as_the_model_was_trained(
    tmp_path: Path, chat: str | None
) -> None:
    """Completions, all that a training run asks for, need no chat format."""
    tokenizer = HuggingFaceTokenizer(train_sentencepiece(["w1 w2 w3\n"] * 3, 300).to_hugging_face())
    tokenizer.inner.chat_template = None
    tiny_model(tokenizer=tokenizer).save_pretrained(tmp_path)
    if chat is not None:
        write_provenance(tmp_path, EnvironmentConfig(id="FrozenLake-v1", adapter="text"), chat)
    command = [sys.executable, "-m", "swe_trainers.cli.serve", str(tmp_path), "--port", "0", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            asker = JsonClient(process.stdout.readline().split()[-1], tries=1, timeout_s=30)
            body = {"prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True}
            assert asker.post("/v1/completions", body)["usage"]["completion_tokens"] == 4
            question = {"messages": [{"role": "user", "content": "w1"}], "max_tokens": 4}
            if chat is None:
                assert "no chat completions: " in process.stderr.readline()
                with pytest.raises(RefusedError, match=r"400.*has no chat template. Try: "):
                    asker.post("/v1/chat/completions", question)
            else:
                read = asker.post("/v1/chat/completions", question)["usage"]["prompt_tokens"]
                assert read == len(CompactChat(tokenizer).start("w1"))
        finally:
            process.terminate()


@pytest.mark.parametrize(("wanted", "given"), [(0, True), (1, True), (True, True), (False, False), (None, False)])
def test_no_alternatives_are_still_the_log_probability_of_what_was_sampled(
    server: ModelServer, wanted: int | None, given: bool
) -> None:
    body = {"prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True, "return_token_ids": True, "logprobs": wanted}
    (choice,) = client(server).post("/v1/completions", body)["choices"]
    assert ("logprobs" in choice) == given
    if given:
        expected = full_logprobs(tiny_model(), [1, 2, 3, *choice["token_ids"]])[3:].tolist()
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected, abs=1e-4)


def test_seeded_answer_is_independent_of_other_requests(server: ModelServer) -> None:
    body = {"prompt": "w1 w2 w3", "max_tokens": 12, "return_token_ids": True, "ignore_eos": True}

    def ask(seed: int) -> list[int]:
        return client(server).post("/v1/completions", {**body, "seed": seed})["choices"][0]["token_ids"]

    seeds = range(-1, 5)  # OpenAI's API takes any integer
    alone = [ask(seed) for seed in seeds]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, seeds)) == alone
    assert len({tuple(ids) for ids in alone}) > 1


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/completions", {"prompt": [1, 9999]}, "400: .*each below"),
        ("/v1/completions", {"prompt": []}, "400: .*at least one token"),
        ("/v1/completions", {"prompt": {"a": 1}}, "400: prompt.*valid"),
        ("/v1/completions", {"prompt": "w1", "temperature": -1}, "400: temperature"),
        ("/v1/completions", {"prompt": "w1", "temperature": 1e-40}, "400: temperature"),
        ("/v1/completions", {"prompt": "w1", "max_tokens": "many"}, "400: "),
        ("/v1/completions", {"prompt": "w1", "max_tokens": 0}, "400: max_tokens: .*greater"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "w1"}], "max_completion_tokens": 0},
            "400: max_completion_tokens: .*greater",
        ),
        ("/v1/completions", {"prompt": [1] * 200}, "400: .*no room"),
        ("/v1/completions", {"prompt": "w1", "stream": True}, "400: .*one complete answer"),
        ("/v1/chat/completions", {"messages": [{"role": "assistant", "content": "w1"}]}, "400: .*expected user"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": ["w1"]}]},
            "400: messages.0.content: ",
        ),
        ("/collective_rpc", {"method": "shutdown"}, "400: .*expected reload_weights"),
        ("/v1/embeddings", {}, "404: no such path"),
    ],
)
def test_invalid_requests_are_rejected_and_the_server_continues(server, path, body, message) -> None:
    with pytest.raises(RefusedError, match=message):
        client(server).post(path, body)
    assert client(server).post("/v1/completions", {"prompt": "w1", "max_tokens": 1})["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("name", ["model.safetensors", "value_head.safetensors"])
def test_weights_that_were_cut_off_are_not_reloaded_and_the_server_goes_on(server: ModelServer, name: str) -> None:
    file = server.folder / name
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    try:
        with pytest.raises(RefusedError, match="not reloaded"):
            client(server).post("/collective_rpc", {"method": "reload_weights"})
    finally:
        file.write_bytes(whole)
    client(server).post("/collective_rpc", {"method": "reload_weights"})


def test_requests_without_the_key_are_rejected(server: ModelServer) -> None:
    for path in ("/v1/completions", "/collective_rpc"):
        for key in (None, "wrong"):
            with pytest.raises(RefusedError, match="401"):
                client(server, key).post(path, {"prompt": "w1", "method": "reload_weights"})
    assert client(server, None).get("/health") == {"status": "ok"}


def answer_in_process(server: ModelServer, path: str, body: dict[str, object] | None = None) -> tuple[int, str]:
    """What the server's application answers, without its socket, which it may have closed."""

    async def ask() -> tuple[int, str]:
        transport = httpx.ASGITransport(app=_app(server))
        async with httpx.AsyncClient(transport=transport, base_url="http://swe") as asker:
            given = asker.get(path) if body is None else asker.post(path, json=body)
            answer = await asyncio.wait_for(given, 10)
            return answer.status_code, answer.text

    return asyncio.run(ask())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_after_the_engines_thread_has_failed_requests_and_health_are_errors_at_once(tmp_path: Path) -> None:
    with served(tmp_path / "tiny", tiny_model()) as server:
        assert answer_in_process(server, "/health") == (200, '{"status":"ok"}')
        broken = [Job(Future(), (1, 2), 50), Job(Future(), (1, 2), cast("int", "many")), Job(Future(), (1, 2), 50)]
        with pytest.raises(TrainerError, match="the server has stopped"):  # those beside it too
            asyncio.run(asyncio.wait_for(server.sample(*broken), 10))
        assert all(job.future.done() for job in broken)
        with pytest.raises(TypeError):
            server.wait()
        for path, body in (("/health", None), ("/v1/completions", {"prompt": "w1", "max_tokens": 1})):
            status, text = answer_in_process(server, path, body)
            assert status == 503 and "the server has stopped" in text


def test_a_server_that_was_closed_answers_so(tmp_path: Path) -> None:
    with served(tmp_path / "tiny", tiny_model()) as server:
        pass
    for path, body in (("/health", None), ("/v1/completions", {"prompt": "w1", "max_tokens": 1})):
        status, text = answer_in_process(server, path, body)
        assert status == 503 and "it was closed" in text


def test_a_request_whose_asker_is_gone_is_not_generated_and_the_server_goes_on(tmp_path: Path) -> None:
    with served(tmp_path / "tiny", tiny_model(), n_slots=1) as server:
        jobs = [Job(Future(), (1, 2), 80) for _ in range(30)]

        async def leave() -> None:
            *gone, last = [asyncio.ensure_future(server.sample(job)) for job in jobs]
            await asyncio.sleep(0.01)
            for task in gone:
                task.cancel()
            (answer,) = await asyncio.wait_for(last, 20)
            assert answer.token_ids

        asyncio.run(leave())
        assert jobs[-2].future.cancelled(), "the others had time for a few of 29 requests"


@pytest.mark.parametrize("content", [b"", b"no weights"])
def test_a_damaged_file_of_weights_is_refused_and_the_server_goes_on(
    server: ModelServer, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "weights.pt").write_bytes(content)
    with pytest.raises(TrainerError, match="not reloaded: "):
        asyncio.run(asyncio.wait_for(server.sample(Job(Future(), weights=tmp_path / "weights.pt")), 10))
    assert client(server).get("/health") == {"status": "ok"}
