"""A tokenizer's own section of a configuration: which texts it is trained on by SentencePiece, and how."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swe_trainers.errors import ConfigurationError
from swe_trainers.policy.sentencepiece_tokenizer import SentencePieceTokenizer, train_sentencepiece

__all__ = ["SentencePiece", "read_corpus", "tokenizer_of"]

_CHARACTERS = 4096
"""Of one training text; longer files are cut between lines."""


@dataclass(frozen=True)
class SentencePiece:
    """A byte-pair tokenizer, trained by SentencePiece when the run starts; the same texts give the same ids.

    Attributes:
        corpus: a text file, a folder of them, or a `.jsonl` of conversations, recorded episodes or `{"text": …}`.
        vocab_size: at most so many ids; 256 bytes and the special tokens are among them.
        split_by_whitespace: keep words apart; false lets pieces cross blanks and line ends, for text that repeats.
        separators: characters that are tokens of their own and that no piece crosses.
        max_piece_length: in characters.
    """

    corpus: Path
    vocab_size: int = 4096
    split_by_whitespace: bool = True
    separators: str = ""
    max_piece_length: int = 32

    def __post_init__(self) -> None:
        if self.vocab_size <= 256:
            raise ConfigurationError(f"vocab_size: got {self.vocab_size}, expected more than the 256 bytes")
        if self.max_piece_length < 1:
            raise ConfigurationError(f"max_piece_length: got {self.max_piece_length}, expected at least 1")


def tokenizer_of(config: SentencePiece) -> SentencePieceTokenizer:
    """Train the tokenizer.

    Raises:
        ConfigurationError: the corpus cannot be read, holds no text, or has more characters than the vocabulary.
    """
    return train_sentencepiece(
        read_corpus(config.corpus),
        config.vocab_size,
        split_by_whitespace=config.split_by_whitespace,
        separators=config.separators,
        max_piece_length=config.max_piece_length,
    )


def read_corpus(path: Path) -> Iterator[str]:
    """The texts of a file or of all files of a folder, in the order of their names; what is no UTF-8 there is left out.

    Raises:
        ConfigurationError: there is no such file, it is no text, or a line of a `.jsonl` holds none.
    """
    if path.is_dir():
        for file in sorted(file for file in path.rglob("*") if file.is_file()):
            try:
                yield from _texts(file)
            except UnicodeDecodeError:
                continue
        return
    try:
        yield from _texts(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"model.sentencepiece.corpus: {path}: {reason}") from error


def _texts(file: Path) -> Iterator[str]:
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".jsonl":
        yield from _pieces(text)
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield from _texts_of(json.loads(line))
            except (ValueError, TypeError, KeyError) as error:
                raise ConfigurationError(
                    f"{file}, line {number}: no text, no conversation and no recorded episode: {error}"
                ) from error


def _texts_of(row: dict[str, Any]) -> Iterator[str]:
    if "messages" in row:
        yield from (message["content"] for message in row["messages"])
    elif "turns" in row:
        yield from (turn[part] for turn in row["turns"] for part in ("observation", "action"))
    else:
        yield row["text"]


def _pieces(text: str) -> Iterator[str]:
    piece = ""
    for line in text.splitlines(keepends=True):
        if piece and len(piece) + len(line) > _CHARACTERS:
            yield piece
            piece = ""
        piece += line
    if piece:
        yield piece
