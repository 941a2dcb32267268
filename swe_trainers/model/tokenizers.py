"""Text to token ids and back: the interface, Hugging Face tokenizers, word tokenizers, trained SentencePiece models."""

from __future__ import annotations

import io
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from swe_trainers.config import Configuration
from swe_trainers.errors import ConfigurationError
from swe_trainers.model.hub import loadable, reason_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

__all__ = [
    "SENTENCEPIECE_FILE",
    "SPECIAL_TOKENS",
    "UNKNOWN_TOKEN",
    "HuggingFaceTokenizer",
    "SentencePiece",
    "SentencePieceTokenizer",
    "Tokenizer",
    "WordTokenizer",
    "load_tokenizer",
    "read_corpus",
    "train_sentencepiece",
]

SPECIAL_TOKENS = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
"""Tokens that delimit the messages of a conversation in the tokenizers made here; no text encodes to them."""

UNKNOWN_TOKEN = "<|unknown|>"
"""The token of a word outside a vocabulary of words."""

SENTENCEPIECE_FILE = "sentencepiece.model"
_WORDS_FILE = "words.json"
_UNKNOWN_WARNINGS = 20


@runtime_checkable
class Tokenizer(Protocol):
    """The interface that the trainer needs."""

    @property
    def vocab_size(self) -> int:
        """The number of ids, special tokens included: every id is below it."""
        ...

    @property
    def end_id(self) -> int:
        """The token that ends a turn."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of a text. Special tokens are never produced, so no observation can forge a turn."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids without special tokens; defined for any ids that a model may sample."""
        ...

    def special_id(self, token: str) -> int:
        """The id of a special token. Raises `ConfigurationError` if there is no such token."""
        ...

    def save(self, folder: str | Path) -> None:
        """Write the tokenizer into an existing folder, from which `load_tokenizer` reads it."""
        ...


def load_tokenizer(source: str | Path) -> Tokenizer:
    """Load a tokenizer from a folder or, by name, from the Hugging Face Hub.

    Args:
        source: a folder written by `Tokenizer.save` or by Hugging Face, or a model's name.

    Raises:
        ConfigurationError: there is no readable tokenizer.
    """
    folder = Path(source)
    if (folder / SENTENCEPIECE_FILE).is_file():
        return SentencePieceTokenizer.load(folder)
    if (folder / _WORDS_FILE).is_file():
        return WordTokenizer.load(folder)
    if folder.is_absolute() and not folder.is_dir():
        raise ConfigurationError(f"{folder}: no tokenizer there, and no such folder")
    place = loadable(source)
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoTokenizer

    try:
        return HuggingFaceTokenizer(AutoTokenizer.from_pretrained(place))
    except (AttributeError, KeyError, OSError, TypeError, ValueError, StrictDataclassError) as error:
        raise ConfigurationError(f"{source}: no tokenizer can be loaded from there: {reason_of(error)}") from error


class HuggingFaceTokenizer:
    """A Hugging Face tokenizer as a `Tokenizer`.

    Args:
        tokenizer: a fast tokenizer: only those can read special tokens in a text as plain characters.

    Attributes:
        inner: the Hugging Face tokenizer.

    Raises:
        ConfigurationError: the tokenizer is not a fast one, or it has no end-of-sequence token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.is_fast:
            raise ConfigurationError(f"{type(tokenizer).__name__}: only tokenizers with a tokenizer.json can be used")
        if tokenizer.eos_token_id is None:
            raise ConfigurationError(
                f"{tokenizer.name_or_path or type(tokenizer).__name__}: the tokenizer has no eos token"
            )
        self.inner = tokenizer
        self._delimiter: re.Pattern[str] | None = None

    @cached_property  # servers ask for it at each request, and the vocabulary is copied to find it
    def vocab_size(self) -> int:
        """One more than the largest id, special tokens included: ids may have gaps."""
        return max(self.inner.get_vocab().values()) + 1

    @property
    def end_id(self) -> int:
        """The token that ends a turn."""
        return int(self.inner.eos_token_id)

    def reserve(self, ids: Iterable[int]) -> None:
        """Let no text encode to these ids, which delimit turns: not all tokenizers mark such tokens as special."""
        added = self.inner.added_tokens_decoder
        names = {str(added[i]) for i in ids if i in added and not added[i].special}
        # Blanks, and single characters, which cannot be divided, are no delimiters: texts have them too.
        names = {name for name in names if len(name.strip()) > 1}
        self._delimiter = re.compile("|".join(map(re.escape, sorted(names)))) if names else None

    def encode(self, text: str) -> list[int]:
        """Ids of a text, in which special tokens are plain characters; a lone surrogate is U+FFFD, as in UTF-8."""
        text = _SURROGATES.sub("\ufffd", text)
        ids, begun = list[int](), 0
        if self._delimiter is not None:  # what looks like one is encoded in two parts
            while (found := self._delimiter.search(text, begun)) is not None:
                ids += self._encoded(text[begun : found.start() + 1])
                begun = found.start() + 1
        return [*ids, *self._encoded(text[begun:])]

    def _encoded(self, text: str) -> list[int]:
        return list(self.inner.encode(text, add_special_tokens=False, split_special_tokens=True))

    def encode_scaffold(self, text: str) -> list[int]:
        """Ids of a chat template's own text, in which special tokens are special tokens."""
        text = _SURROGATES.sub("\ufffd", text)
        return list(self.inner.encode(text, add_special_tokens=False, split_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids without special tokens."""
        text = self.inner.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)

    def special_id(self, token: str) -> int:
        """The id of a token."""
        found = self.inner.get_vocab().get(token)
        if found is None:
            raise ConfigurationError(f"the tokenizer has no token {token!r}")
        return int(found)

    def save(self, folder: str | Path) -> None:
        """Write the tokenizer's own files."""
        self.inner.save_pretrained(str(folder))


_WORD = re.compile(r"\w+|\W")
_WORD_BY_CATEGORY = r"[\p{L}\p{N}_]+|[^\p{L}\p{N}_]"
"""What Python's `\\w` matches, for an engine whose own `\\w` has marks too."""


class WordTokenizer:
    """A closed vocabulary of whole words, for small text environments: there is no spelling to learn.

    A token is a word (a run of letters, digits and `_`) or one other character. `decode(encode(text)) == text` for
    every text that consists of the words.

    Args:
        words: the vocabulary, without the special tokens, which have the first ids.
        unknown: read any other word as one more token, `<|unknown|>`, with a warning for each of the first words; it
            has the last id and no text. Else such a word is an error.

    Raises:
        ConfigurationError: a word is given twice, or is not one word.
    """

    def __init__(self, words: Sequence[str], *, unknown: bool = False) -> None:
        for word in words:
            if not _WORD.fullmatch(word):
                raise ConfigurationError(
                    f"WordTokenizer: {word!r} is not one word. Try: WordTokenizer.from_texts, which takes texts"
                )
        if len(set(words)) != len(words):
            raise ConfigurationError("WordTokenizer: a word is given twice")
        self.words = tuple(words)
        self._first = len(SPECIAL_TOKENS)
        self._ids = {word: self._first + index for index, word in enumerate(self.words)}
        self.unknown_id = self._first + len(self.words) if unknown else None
        self._met: set[str] = set()  # unknown words that were warned of

    @classmethod
    def from_texts(cls, texts: Iterable[str], *, unknown: bool = False) -> WordTokenizer:
        """A vocabulary of all words of some texts, sorted; `unknown` is as of the constructor."""
        return cls(sorted({piece for text in texts for piece in _WORD.findall(text)}), unknown=unknown)

    @property
    def vocab_size(self) -> int:
        """The number of ids, special tokens included."""
        return self._first + len(self.words) + (self.unknown_id is not None)

    @property
    def end_id(self) -> int:
        """The token that ends a turn."""
        return SPECIAL_TOKENS.index("<|end|>")

    def encode(self, text: str) -> list[int]:
        """Ids of a text.

        Raises:
            ConfigurationError: the text has a word outside the vocabulary, and there is no unknown token.
        """
        if self.unknown_id is not None:
            return [self._ids[piece] if piece in self._ids else self._unknown(piece) for piece in _WORD.findall(text)]
        try:
            return [self._ids[piece] for piece in _WORD.findall(text)]
        except KeyError as error:
            raise ConfigurationError(
                f"WordTokenizer: {error.args[0]!r} is not in the vocabulary of {len(self.words)} words. Try: a "
                "vocabulary of all texts that the environment can produce"
            ) from error

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; special tokens, the unknown one and ids past the vocabulary are skipped."""
        return "".join(self.words[i - self._first] for i in ids if self._first <= i < self._first + len(self.words))

    def token_bytes(self, token: int) -> bytes:
        """What a token adds to a text, in UTF-8; empty for a special one, and the unknown one."""
        return self.decode([token]).encode()

    def _unknown(self, word: str) -> int:
        """The unknown token, with a warning where the word is new and there were few before it."""
        assert self.unknown_id is not None
        if word not in self._met and len(self._met) < _UNKNOWN_WARNINGS:
            self._met.add(word)
            last = "; further words are not reported" if len(self._met) == _UNKNOWN_WARNINGS else ""
            warnings.warn(
                f"WordTokenizer: {word!r} is not in the vocabulary of {len(self.words)} words and is read as "
                f"{UNKNOWN_TOKEN}{last}. Try: model.words, with all texts that the environment can produce",
                stacklevel=3,
            )
        return self.unknown_id

    def special_id(self, token: str) -> int:
        """The id of a special token."""
        if token not in SPECIAL_TOKENS:
            raise ConfigurationError(f"the tokenizer has no token {token!r}; it has {', '.join(SPECIAL_TOKENS)}")
        return SPECIAL_TOKENS.index(token)

    def save(self, folder: str | Path) -> None:
        """Write the words, ordered by id, and the same as Hugging Face's files."""
        content = {"words": self.words} | ({} if self.unknown_id is None else {"unknown": True})
        text = json.dumps(content, ensure_ascii=False, indent=0)
        (Path(folder) / _WORDS_FILE).write_text(text, encoding="utf-8")
        _write_hugging_face(self.to_hugging_face(), Path(folder))

    @classmethod
    def load(cls, folder: str | Path) -> WordTokenizer:
        """Read what `save` wrote."""
        content = json.loads((Path(folder) / _WORDS_FILE).read_text(encoding="utf-8"))
        return cls(content["words"], unknown=content.get("unknown", False))

    def to_hugging_face(self) -> PreTrainedTokenizerFast:
        """The same ids by the `tokenizers` library, with the format of `CompactChat` as its chat template.

        Unlike this class, it reads the names of special tokens in a text as special tokens.
        """
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

        ids = {name: number for number, name in enumerate(SPECIAL_TOKENS)} | self._ids
        names = {} if self.unknown_id is None else {"unk_token": UNKNOWN_TOKEN}
        if self.unknown_id is not None:
            ids[UNKNOWN_TOKEN] = self.unknown_id
        # Without an unknown token a word outside the vocabulary is an error, as it is here.
        inner = Tokenizer(models.WordLevel(ids, **names))
        inner.pre_tokenizer = pre_tokenizers.Split(Regex(_WORD_BY_CATEGORY), "isolated")
        inner.decoder = decoders.Fuse()
        return _with_special_tokens(inner, **names)


# SentencePiece writes a blank as ▁ and cannot distinguish the two: a ▁ in a text is escaped by two other characters.
_BLANK, _MARK = "\u2581", "\ue001"
_ESCAPED = re.compile(_MARK + "([01])")
_SURROGATES = re.compile("[\ud800-\udfff]")
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


class SentencePieceTokenizer:
    """A byte-pair tokenizer trained by SentencePiece, lossless on code: blanks, indentation and line ends survive.

    `decode(encode(text)) == text` for every text that UTF-8 can represent; a lone surrogate becomes U+FFFD. The ids
    are SentencePiece's own.

    Args:
        model: a serialised SentencePiece model, as `train_sentencepiece` makes it.

    Raises:
        ConfigurationError: the bytes are not a SentencePiece model, or it lacks one of `SPECIAL_TOKENS`.
    """

    def __init__(self, model: bytes) -> None:
        import sentencepiece

        self._model = model
        try:
            self._processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise ConfigurationError(f"not a SentencePiece model: {str(error).splitlines()[0]}") from error
        self._special: dict[str, int] = {}
        for name in SPECIAL_TOKENS:
            self._special[name] = int(self._processor.piece_to_id(name))
            if not self._processor.is_control(self._special[name]):
                raise ConfigurationError(
                    f"the SentencePiece model has no control symbol {name}. Try: a model made by train_sentencepiece"
                )
        skipped = self._processor.is_control, self._processor.is_unknown
        self._readable = frozenset(i for i in range(self.vocab_size) if not any(test(i) for test in skipped))

    @property
    def vocab_size(self) -> int:
        """The number of ids, special tokens included."""
        return int(self._processor.get_piece_size())

    @property
    def end_id(self) -> int:
        """The token that ends a turn."""
        return self._special["<|end|>"]

    def encode(self, text: str) -> list[int]:
        """Ids of a text; none of them is special."""
        text = _SURROGATES.sub("\ufffd", text)
        if _MARK in text or _BLANK in text:
            text = text.replace(_MARK, _MARK + "1").replace(_BLANK, _MARK + "0")
        return list(self._processor.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; special tokens and ids past the vocabulary are skipped, incomplete bytes become U+FFFD."""
        text: str = self._processor.decode([int(i) for i in ids if i in self._readable])
        return _ESCAPED.sub(lambda found: _BLANK if found[1] == "0" else _MARK, text) if _MARK in text else text

    def token_bytes(self, token: int) -> bytes:
        """What a token adds to a text, in UTF-8; empty for a special one. Parts of an escape write nothing."""
        if self._processor.is_byte(token):
            return bytes([int(self._processor.id_to_piece(token)[3:-1], 16)])
        if token not in self._readable:
            return b""
        piece: str = self._processor.id_to_piece(token)
        return b"" if _MARK in piece else piece.replace(_BLANK, " ").encode()

    def special_id(self, token: str) -> int:
        """The id of a special token."""
        if token not in self._special:
            raise ConfigurationError(f"the tokenizer has no token {token!r}; it has {', '.join(self._special)}")
        return self._special[token]

    def save(self, folder: str | Path) -> None:
        """Write the SentencePiece model and, for engines that read only those, Hugging Face's files."""
        (Path(folder) / SENTENCEPIECE_FILE).write_bytes(self._model)
        _write_hugging_face(self.to_hugging_face(), Path(folder))

    @classmethod
    def load(cls, folder: str | Path) -> SentencePieceTokenizer:
        """Read what `save` wrote."""
        return cls((Path(folder) / SENTENCEPIECE_FILE).read_bytes())

    def to_hugging_face(self) -> PreTrainedTokenizerFast:
        """The same ids by the `tokenizers` library, with the format of `CompactChat` as its chat template.

        Unlike this class, it reads the names of special tokens in a text as special tokens, and of sampled bytes that
        are not UTF-8 it makes one U+FFFD for each byte of their run, also where a part of the run is UTF-8.
        """
        from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

        processor = self._processor
        vocabulary = {processor.id_to_piece(i): i for i in range(self.vocab_size)}
        # Longer than a character, and neither special nor a byte: separators, which come before the bytes, and merges.
        longer = {
            piece: i
            for piece, i in vocabulary.items()
            if len(piece) > 1 and not (processor.is_control(i) or processor.is_unknown(i) or processor.is_byte(i))
        }
        first_byte = next((i for i in range(self.vocab_size) if processor.is_byte(i)), 0)
        # An added token is looked up as it is written, and found in the normalized text, first and longest.
        separators = {piece: piece.replace(_BLANK, " ") for piece, i in longer.items() if i < first_byte}
        vocabulary = {separators.get(piece, piece): i for piece, i in vocabulary.items()}
        scores = {piece: processor.get_score(i) for piece, i in longer.items() if i >= first_byte}
        merges = [
            (piece[:at], piece[at:])
            for piece in sorted(scores, key=lambda piece: -scores[piece])
            for at in range(1, len(piece))
            if piece[:at] in vocabulary and piece[at:] in vocabulary
        ]
        unknown = processor.id_to_piece(processor.unk_id())
        inner = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, byte_fallback=True))
        swaps = ((_MARK, _MARK + "1"), (_BLANK, _MARK + "0"), (" ", _BLANK))
        inner.normalizer = normalizers.Sequence([normalizers.Replace(old, new) for old, new in swaps])
        back = [decoders.Replace(new, old) for old, new in reversed(swaps)]
        inner.decoder = decoders.Sequence([back[0], decoders.ByteFallback(), decoders.Fuse(), *back[1:]])
        inner.add_tokens([AddedToken(each, normalized=True, special=False) for each in separators.values()])
        return _with_special_tokens(inner, unk_token=unknown)


def _with_special_tokens(inner: Any, **names: str) -> PreTrainedTokenizerFast:
    """A tokenizer of the `tokenizers` library whose vocabulary has `SPECIAL_TOKENS`, as one of `transformers`."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=inner,
        eos_token="<|end|>",
        additional_special_tokens=[name for name in SPECIAL_TOKENS if name != "<|end|>"],
        chat_template=_CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        **names,
    )


def _write_hugging_face(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a tokenizer under the names of class and fields that transformers 4 reads too."""
    tokenizer.save_pretrained(str(folder))
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings.pop("backend", None)
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    settings["additional_special_tokens"] = settings.pop("extra_special_tokens")
    path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def train_sentencepiece(
    texts: Iterable[str],
    vocab_size: int,
    *,
    split_by_whitespace: bool = True,
    separators: Iterable[str] = "",
    max_piece_length: int = 32,
) -> SentencePieceTokenizer:
    """Train a byte-pair tokenizer.

    Args:
        texts: the training texts; a text may contain line ends.
        vocab_size: the largest number of ids, including 256 bytes and the special tokens. There are fewer if the texts
            have too few pairs to merge.
        split_by_whitespace: keep words apart. False lets tokens cross blanks and line ends, so that repeated text
            (headers, prompts) becomes few tokens.
        separators: characters, or longer strings, that are tokens by themselves and that no token crosses: with `_` the
            parts of an identifier stay apart, with the digits every number is spelled. Of two that begin alike the
            longer one is taken.
        max_piece_length: in characters.

    Returns:
        The tokenizer. The same texts and settings give the same ids.

    Raises:
        ConfigurationError: there is no text, or `vocab_size` is too small for the bytes and the characters.
    """
    import sentencepiece

    sentences = [
        _SURROGATES.sub("\ufffd", text).replace(_BLANK, " ").replace("\0", " ") for text in texts if text.strip()
    ]
    if not sentences:
        raise ConfigurationError("train_sentencepiece: no text to train on")

    symbols = [*(["\n"] if split_by_whitespace else []), *(each.replace(" ", _BLANK) for each in separators)]

    def trained(vocab_size: int) -> bytes:
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            byte_fallback=True,
            character_coverage=1.0,
            control_symbols=list(SPECIAL_TOKENS),
            user_defined_symbols=symbols,
            split_by_whitespace=split_by_whitespace,
            split_by_unicode_script=split_by_whitespace,
            split_by_number=split_by_whitespace,
            max_sentencepiece_length=max_piece_length,
            max_sentence_length=max(len(sentence.encode()) for sentence in sentences) + 1,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            num_threads=1,
            minloglevel=2,
        )
        return model.getvalue()

    try:
        return SentencePieceTokenizer(trained(vocab_size))
    except RuntimeError as error:
        ceiling = re.search(r"too high \(\d+\)\. Please set it to a value <= (\d+)", str(error))
        if ceiling is None:
            raise ConfigurationError(f"train_sentencepiece: {str(error).strip().splitlines()[-1]}") from error
    return SentencePieceTokenizer(trained(int(ceiling[1])))


@dataclass(frozen=True)
class SentencePiece(Configuration):
    """Settings of a byte-pair tokenizer that is trained when the run starts; the same texts give the same ids.

    Attributes:
        corpus: a text file, a folder of text files, or a `.jsonl` of conversations, recorded episodes or
            `{"text": …}`.
        vocab_size: the largest number of ids, including 256 bytes and the special tokens.
        split_by_whitespace: keep words apart; false lets tokens cross blanks and line ends, for repeated text.
        separators: characters, or a list of longer strings, that are tokens by themselves and that no token crosses.
        max_piece_length: in characters.
    """

    corpus: Path
    vocab_size: int = 4096
    split_by_whitespace: bool = True
    separators: str | tuple[str, ...] = ""
    max_piece_length: int = 32

    def __post_init__(self) -> None:
        if self.vocab_size <= 256:
            raise ConfigurationError(f"vocab_size: got {self.vocab_size}, expected more than the 256 bytes")
        if self.max_piece_length < 1:
            raise ConfigurationError(f"max_piece_length: got {self.max_piece_length}, expected at least 1")

    def train(self) -> SentencePieceTokenizer:
        """Train the tokenizer on the corpus.

        Raises:
            ConfigurationError: the corpus cannot be read, has no text, or has more characters than the vocabulary.
        """
        return train_sentencepiece(
            read_corpus(self.corpus),
            self.vocab_size,
            split_by_whitespace=self.split_by_whitespace,
            separators=self.separators,
            max_piece_length=self.max_piece_length,
        )


_TRAINING_TEXT_CHARACTERS = 4096
"""Longer files are cut into training texts of this length, between lines."""


def read_corpus(path: Path) -> Iterator[str]:
    """The texts of a file, or of all UTF-8 files of a folder, sorted by name.

    Raises:
        ConfigurationError: the file does not exist or is not text, or a line of a `.jsonl` has no text.
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
        piece = ""
        for line in text.splitlines(keepends=True):
            if piece and len(piece) + len(line) > _TRAINING_TEXT_CHARACTERS:
                yield piece
                piece = ""
            piece += line
        if piece:
            yield piece
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                row = json.loads(line)
                if "messages" in row:  # one that only calls tools has no content
                    found = [each["content"] for each in row["messages"] if each["content"] is not None]
                elif "turns" in row:
                    found = [turn[part] for turn in row["turns"] for part in ("observation", "action")]
                else:
                    found = [row["text"]]
                if not all(isinstance(each, str) for each in found):
                    raise TypeError("a text is of another type")
                yield from found
            except (ValueError, TypeError, KeyError) as error:
                raise ConfigurationError(
                    f"{file}, line {number}: neither a text, a conversation nor a recorded episode: {error}"
                ) from error
