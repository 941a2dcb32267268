"""Evaluating a model behind an API, with `swe-eval`; here the API is a server on this machine that follows a script.

    python examples/evaluate_api.py --output runs/api

Against a real one, nothing but the address changes, and the key is in a variable:

    swe-eval --model gpt-5-mini --base-url https://api.openai.com/v1 --dataset mini --slice :20 --n-parallel 8
"""

from __future__ import annotations

import argparse
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from swe_trainers.cli.main import main_eval
from swegym_env.tasks.datasets import load_tasks

TASKS = load_tasks("mini", seed=0, select=":4")


def scripted(model: str, messages: list[dict[str, str]]) -> str:
    """What the model answers: it looks, applies the gold patch, submits; `hasty` leaves every other task unrepaired."""
    asked = "\n".join(message["content"] for message in messages if message["role"] == "user")
    number, task = next((n, task) for n, task in enumerate(TASKS) if task.problem_statement.strip() in asked)
    turns = sum(message["role"] == "assistant" for message in messages)
    if turns == 0:
        return "I look first.\n<execute>git log --oneline && ls</execute>"
    if turns == 1 and (model == "careful" or number % 2):
        return f"<execute>git apply - <<'END_OF_PATCH'\n{task.patch}END_OF_PATCH</execute>"
    return "<execute>submit</execute>"


class ChatApi(BaseHTTPRequestHandler):
    """As much of OpenAI's chat API as an evaluation needs."""

    def do_POST(self) -> None:
        """Answer one request."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = scripted(asked["model"], asked["messages"])
        tokens = {"prompt_tokens": len(str(asked["messages"])) // 4, "completion_tokens": len(text) // 4}
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        body = json.dumps({"object": "chat.completion", "choices": [choice], "usage": tokens}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Requests are not worth a line each."""


def main() -> None:
    parser = argparse.ArgumentParser(description="evaluating a model behind an API")
    parser.add_argument("--output", type=Path, default=Path("runs/api"))
    options = parser.parse_args()

    server = ThreadingHTTPServer(("127.0.0.1", 0), ChatApi)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    chosen = [word for task in TASKS for word in ("--instance", task.instance_id)]
    summaries = {}
    for model in ("hasty", "careful"):
        folder = options.output / model
        main_eval(["--model", model, "--base-url", url, "--dataset", "mini", *chosen, "--output", str(folder)])
        summaries[model] = json.loads((folder / "summary.json").read_text())
    server.shutdown()
    main_eval(["compare", str(options.output / "hasty"), str(options.output / "careful")])
    print(json.dumps({model: summary["resolve_rate"] for model, summary in summaries.items()}))


if __name__ == "__main__":
    main()
