"""Byte-pair tokenizers trained by SentencePiece, lossless on code: blanks, indentation and line ends survive."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_trainers.errors import ConfigurationError
from swe_trainers.policy.tokenizer import SPECIAL_TOKENS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["MODEL_FILE", "SentencePieceTokenizer", "train_sentencepiece"]

MODEL_FILE = "sentencepiece.model"

# SentencePiece writes a blank as ▁ and so cannot tell the two apart; a ▁ in the text is kept as a pair of other
# characters.
_BLANK, _MARK = "\u2581", "\ue001"
_ESCAPED = re.compile(_MARK + "([01])")
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_SURROGATES = re.compile("[\ud800-\udfff]")


class SentencePieceTokenizer:
    """A SentencePiece model as a `Tokenizer`; ids are SentencePiece's own.

    `decode(encode(text)) == text` for every text that UTF-8 can hold; a lone surrogate becomes U+FFFD.

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
        self._special = {name: self._find(name) for name in SPECIAL_TOKENS}
        silent = self._processor.is_control, self._processor.is_unknown
        self._readable = frozenset(i for i in range(self.vocab_size) if not any(test(i) for test in silent))

    @property
    def vocab_size(self) -> int:
        """The number of ids, special ones included."""
        return int(self._processor.get_piece_size())

    @property
    def end_id(self) -> int:
        """The token that ends a turn."""
        return self._special["<|end|>"]

    def encode(self, text: str) -> list[int]:
        """Ids of a text; none of them special."""
        text = _SURROGATES.sub("\ufffd", text)
        if _MARK in text or _BLANK in text:
            text = text.replace(_MARK, _MARK + "1").replace(_BLANK, _MARK + "0")
        return list(self._processor.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; special ones, and any past the vocabulary, leave nothing; stray bytes become U+FFFD."""
        text: str = self._processor.decode([int(i) for i in ids if i in self._readable])
        return _ESCAPED.sub(lambda found: _BLANK if found[1] == "0" else _MARK, text) if _MARK in text else text

    def special_id(self, token: str) -> int:
        """The id of a special token, by its name."""
        if token not in self._special:
            raise ConfigurationError(f"the tokenizer has no token {token!r}; it has {', '.join(self._special)}")
        return self._special[token]

    def save(self, folder: str | Path) -> None:
        """Write the SentencePiece model, and the same tokenizer as Hugging Face's, for engines that know only that."""
        (Path(folder) / MODEL_FILE).write_bytes(self._model)
        self.to_hugging_face().save_pretrained(str(folder))

    @classmethod
    def load(cls, folder: str | Path) -> SentencePieceTokenizer:
        """Read what `save` wrote."""
        return cls((Path(folder) / MODEL_FILE).read_bytes())

    def to_hugging_face(self) -> PreTrainedTokenizerFast:
        """The same ids from the `tokenizers` library, with `CompactChat`'s form as its chat template.

        Unlike here, the names of special tokens in a text are read as special tokens.
        """
        from tokenizers import Tokenizer, decoders, models, normalizers
        from transformers import PreTrainedTokenizerFast

        processor = self._processor
        vocabulary = {processor.id_to_piece(i): i for i in range(self.vocab_size)}
        scores = {piece: processor.get_score(i) for piece, i in vocabulary.items() if _merged(processor, i)}
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
        return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=inner,
            unk_token=unknown,
            eos_token="<|end|>",
            additional_special_tokens=[name for name in SPECIAL_TOKENS if name != "<|end|>"],
            chat_template=_CHAT_TEMPLATE,
            clean_up_tokenization_spaces=False,
        )

    def _find(self, name: str) -> int:
        found = int(self._processor.piece_to_id(name))
        if not self._processor.is_control(found):
            raise ConfigurationError(
                f"the SentencePiece model has no control symbol {name}; train it with train_sentencepiece"
            )
        return found


def _merged(processor: Any, index: int) -> bool:
    """Whether a piece is the result of merges: more than a character, and neither special, a byte nor given by hand."""
    single = processor.is_control(index) or processor.is_unknown(index) or processor.is_byte(index)
    return not single and len(processor.id_to_piece(index)) > 1


def train_sentencepiece(
    texts: Iterable[str],
    vocab_size: int,
    *,
    split_by_whitespace: bool = True,
    separators: str = "",
    max_piece_length: int = 32,
) -> SentencePieceTokenizer:
    """Train a byte-pair tokenizer.

    Args:
        texts: what to train on; a text may hold line ends.
        vocab_size: at most so many ids: fewer where the texts do not have so many pairs worth merging. 256 bytes and
            the special tokens are among them.
        split_by_whitespace: keep words apart. False lets pieces cross blanks and line ends, so that text that repeats
            (headers, prompts) compresses to a few tokens.
        separators: characters that are tokens of their own and that no piece crosses: with `_` the parts of an
            identifier stay apart, with the digits every number is spelled.
        max_piece_length: in characters.

    Returns:
        The tokenizer. The same texts and settings give the same ids.

    Raises:
        ConfigurationError: there is no text, or `vocab_size` has no room for the bytes and the characters.
    """
    sentences = [
        _SURROGATES.sub("\ufffd", text).replace(_BLANK, " ").replace("\0", " ") for text in texts if text.strip()
    ]
    if not sentences:
        raise ConfigurationError("train_sentencepiece: no text to train on")
    train = partial(
        _trained,
        sentences,
        split_by_whitespace=split_by_whitespace,
        separators=separators,
        max_piece_length=max_piece_length,
    )
    try:
        return SentencePieceTokenizer(train(vocab_size))
    except RuntimeError as error:
        ceiling = re.search(r"too high \(\d+\)\. Please set it to a value <= (\d+)", str(error))
        if ceiling is None:
            raise ConfigurationError(f"train_sentencepiece: {str(error).strip().splitlines()[-1]}") from error
    return SentencePieceTokenizer(train(int(ceiling[1])))


def _trained(
    sentences: Sequence[str], vocab_size: int, *, split_by_whitespace: bool, separators: str, max_piece_length: int
) -> bytes:
    """SentencePiece's own model of them."""
    import sentencepiece

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
        user_defined_symbols=[*(["\n"] if split_by_whitespace else []), *separators],
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
