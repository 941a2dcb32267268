"""A real server over a tiny model, and an engine in front of it, for the tests of both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from swe_trainers.engines.http import JsonClient
from swe_trainers.engines.served import ServedEngine
from swe_trainers.engines.serving import ModelServer
from swe_trainers.engines.vllm import VLLM
from swe_trainers.model.chat import CompactChat
from swe_trainers.model.language_model import LanguageModel


@contextmanager
def served(folder: Path, model: LanguageModel, *, n_slots: int = 4, api_key: str = "") -> Iterator[ModelServer]:
    model.save_pretrained(folder)
    with ModelServer(folder, CompactChat, n_slots=n_slots, max_tokens=96, api_key=api_key) as server:
        yield server


def engine_of(server: ModelServer, *, n_slots: int = 3, max_tokens: int = 96) -> ServedEngine:
    client = JsonClient(server.url, tries=2, pause_s=0.01, timeout_s=30, api_key=server.api_key or None)
    return ServedEngine(client, VLLM(server.name), n_slots=n_slots, max_tokens=max_tokens)
