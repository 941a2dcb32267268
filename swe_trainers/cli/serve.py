"""`swe-serve FOLDER`: a trained model behind an OpenAI-compatible address."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swe_trainers.cli.completion import add_print_completion
from swe_trainers.cli.evaluate import positive
from swe_trainers.cli.parser import Parser
from swe_trainers.errors import ConfigurationError, TrainerError, install_hint

__all__ = ["main"]

_EXAMPLE = """\
example:
  swe-serve runs/frozen_lake/model --port 8001
  curl -s localhost:8001/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Hello"}]}'
  SWE_SERVE_KEY=tml-secret swe-serve runs/frozen_lake/model --port 8001 --tinker

If SWE_SERVE_KEY is set, every request must carry it as a bearer token. Tinker's client takes keys that begin with tml-.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `swe-serve`.

    Returns:
        0; 2 if the model cannot be loaded or the address cannot be used (one line on stderr); 130 after Ctrl-C.
    """
    parser = Parser(
        prog="swe-serve",
        description="Serve a trained model with OpenAI's completions and chat completions.",
        epilog=_EXAMPLE,
    )
    parser.add_argument("folder", help="folder of the model, e.g. RUN/model")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s: this machine only)")
    parser.add_argument("--port", type=_port, default=8000, help="port to listen on (%(default)s); 0: any free port")
    parser.add_argument(
        "--slots",
        type=positive,
        default=16,
        help="number of requests that are generated at the same time (%(default)s)",
    )
    parser.add_argument(
        "--max-tokens", type=positive, help="maximum length of a sequence in tokens (default: the model's limit)"
    )
    parser.add_argument("--threads", type=positive, help="CPU threads of PyTorch; default: PyTorch's choice")
    parser.add_argument(
        "--tinker", action="store_true", help="serve Tinker's API instead: clients train copies of the model"
    )
    parser.add_argument("--states", help="with --tinker: folder of saved weights; default: one removed at the end")
    add_print_completion(parser)
    options = parser.parse_args(arguments)
    if options.states is not None and not options.tinker:
        parser.error("--states: has no effect without --tinker")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    try:
        _serve(options)
    except TrainerError as error:
        if options.debug:
            raise
        print(f"swe-serve: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 65535, got {text!r}")
    return int(text)


def _serve(options: argparse.Namespace) -> None:
    import torch

    try:
        from swe_trainers.engines.serving import ModelServer

        if options.tinker:
            from swe_trainers.tinker.server import TinkerServer
    except ModuleNotFoundError as error:
        from swe_trainers.planning.architecture import find_config

        if isinstance(reason := find_config(options.folder), str):
            raise ConfigurationError(reason) from error  # first: with the package, it would be the next error
        extra = "tinker" if options.tinker else "serve"
        raise ConfigurationError(f"{error.name} is not installed. {install_hint(extra)}") from error
    from swe_trainers.model.chat import chat_format
    from swe_trainers.provenance import read_provenance

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    shared: dict[str, Any] = {
        "host": options.host,
        "port": options.port,
        "n_slots": options.slots,
        "max_tokens": options.max_tokens,
        "api_key": os.environ.get("SWE_SERVE_KEY", ""),
    }
    server: ModelServer
    if options.tinker:
        server = TinkerServer(options.folder, states=options.states, **shared)
    else:
        trained = read_provenance(Path(options.folder))
        kind: Any = None if trained is None else trained.chat
        server = ModelServer(options.folder, lambda tokenizer: chat_format(tokenizer, kind), **shared)
        try:
            _ = server.chat
        except TrainerError as error:
            print(f"swe-serve: no chat completions: {error}", file=sys.stderr, flush=True)
    with server:
        print(f"swe-serve: {server.name} at {server.url}", flush=True)
        server.wait()


if __name__ == "__main__":
    sys.exit(main())
