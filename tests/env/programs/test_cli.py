"""`swegym agents` and `swegym run --agent`."""

from __future__ import annotations

import contextlib
import io
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from swegym_env.cli.main import main
from tests.env.programs.conftest import SMALL


class Endpoint(BaseHTTPRequestHandler):
    """A model that answers `ls` first and then `submit`."""

    seen: ClassVar[list[Any]] = []

    def do_GET(self) -> None:
        self.reply({"data": [{"id": "served"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append(body)
        text = "ls calc* tests*; ls" if len(body["messages"]) == 2 else "submit"
        self.reply({"choices": [{"message": {"role": "assistant", "content": text}}], "usage": {"prompt_tokens": 1}})

    def reply(self, value: Any) -> None:
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


class Confused(Endpoint):
    """A server whose replies are JSON, but not those of a model."""

    replies: ClassVar[list[Any]] = []

    def do_GET(self) -> None:
        self.reply(self.replies[0])

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.reply(self.replies[1])


class CutOff(Endpoint):
    """A server that closes the connection within its reply."""

    def do_GET(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n99\r\n{")


@contextlib.contextmanager
def serving(handler: type[Endpoint]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()
        thread.join()


@pytest.fixture
def endpoint() -> Iterator[str]:
    Endpoint.seen.clear()
    with serving(Endpoint) as address:
        yield address


def test_agents_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agents", "list"]) == 0
    assert "mini-swe-agent" in capsys.readouterr().out
    assert main(["agents", "list", "--json"]) == 0
    assert {"agent", "description"} == set(json.loads(capsys.readouterr().out.splitlines()[0]))


def test_an_agent_is_checked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["agents", "check", str(SMALL), "--answer", "echo hello", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["protocol"], found["then"], found["continues"]) == ("chat", "asks again", True)
    assert found["observation"] == "hello\n[0]"
    assert main(["agents", "check", str(SMALL), "--answer", "fail 3"]) == 0
    shown = capsys.readouterr().out
    assert "then: crashed" in shown
    assert re.search(r"^small: first request after \d+\.\d s \(chat completions, not streamed\)$", shown, re.MULTILINE)
    (tmp_path / "agent.yaml").write_text("command: echo nothing to ask")
    assert main(["agents", "check", str(tmp_path)]) == 2
    assert "ended with exit code 0 before its first request: nothing to ask" in capsys.readouterr().err


def test_a_model_at_an_address_plays_an_agent(
    endpoint: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["run", "--agent", str(SMALL), "--model", endpoint, "--dataset", "mini", "--record", str(tmp_path)]
    assert main(arguments) == 0
    assert "resolved: False" in capsys.readouterr().out
    assert [body["model"] for body in Endpoint.seen] == ["served", "served"]
    assert [len(body["messages"]) for body in Endpoint.seen] == [2, 4]
    (record,) = tmp_path.iterdir()
    assert json.loads((record / "meta.json").read_text())["notes"] == {"agent": str(SMALL), "model": endpoint}


@pytest.mark.parametrize("how", [(), ("--json",)])
@pytest.mark.parametrize(("answer", "crash"), [("submit", None), ("fail 3", 3), ("kill -9 -- -1", -1)])
def test_the_exit_code_tells_whether_the_agent_submitted_its_work(
    answer: str,
    crash: int | None,
    how: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(answer.encode())))
    code = main(["run", "--agent", str(SMALL), "--dataset", "mini-edit", *how])
    why = f"swegym: the episode ended before the work was submitted: the agent crashed with exit code {crash}\n"
    assert (code, capsys.readouterr().err) == ((0, "") if crash is None else (1, why))


def test_a_reply_that_is_cut_off_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(CutOff) as address:
        assert main(["run", "--agent", str(SMALL), "--model", address]) == 2
    error = capsys.readouterr().err
    assert "/models: no response: IncompleteRead" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("replies", "named"),
    [
        ([{"data": []}, None], "/models: expected data.0.id in the reply, got {"),
        ([["x"], None], "/models: expected data.0.id in the reply"),
        ([{"data": [{"id": "m"}]}, {"error": "overloaded"}], "/chat/completions: expected choices.0.message"),
        ([{"data": [{"id": "m"}]}, {"choices": [{"message": "ls"}]}], "/chat/completions: expected choices.0.message"),
    ],
)
def test_a_reply_that_is_none_of_a_model_is_named(
    replies: list[Any], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Confused.replies[:] = replies
    with serving(Confused) as address:
        assert main(["run", "--agent", str(SMALL), "--model", address]) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--model", "http://127.0.0.1:9/v1"], "--model: only with --agent"),
        (["--agent", str(SMALL), "--model-name", "x"], "--model-name: only with"),
        (["--agent", str(SMALL), "--tools", "search"], "--tools: an agent program has its own"),
        (["--agent", str(SMALL), "--model", "http://127.0.0.1:9/v1"], "/models: no response"),
        (["--agent", str(SMALL), "--model", "file:///etc/passwd"], "expected an address"),
        (["--agent", "nobody"], "no agent 'nobody'"),
    ],
)
def test_mistakes_are_named(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *arguments]) == 2
    assert named in capsys.readouterr().err
