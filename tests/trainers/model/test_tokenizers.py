"""Tokenizers: lossless, no text encodes to special tokens, ids equal those of SentencePiece; what they learn from."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import pytest
import sentencepiece
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from swe_trainers.errors import ConfigurationError
from swe_trainers.model.tokenizers import (
    SENTENCEPIECE_FILE,
    SPECIAL_TOKENS,
    HuggingFaceTokenizer,
    SentencePiece,
    SentencePieceTokenizer,
    Tokenizer,
    WordTokenizer,
    load_tokenizer,
    read_corpus,
    train_sentencepiece,
)

CODE = [
    (
        "def add(a, b):\n    return a + b\n\n\n"
        "def scale(xs, k):\n    out = []\n    for x in xs:\n        out.append(x * k)\n    return out\n"
    ),
    "class Stack:\n\tdef push(self, item):\n\t\tself.items.append(item)\n        \n",
    "Repair the file below.\n\n```python\n  x  =  1\n```\n",
] * 5
TRAINED = {split: train_sentencepiece(CODE, 600, split_by_whitespace=split) for split in (True, False)}
EXPORTED = {split: HuggingFaceTokenizer(tokenizer.to_hugging_face()) for split, tokenizer in TRAINED.items()}

fragments = st.sampled_from(
    ["def ", "return", "    ", "\t", "\n", "\n\n", " ", "x", "é", "▁", "\ue001", "0", "1", *SPECIAL_TOKENS]
)
texts = st.one_of(st.text(st.characters(codec="utf-8")), st.lists(fragments).map("".join))


@given(text=texts, split=st.booleans())
@example(text="  x\n\n   \t y \r\n", split=True)
@example(text="\ue0010▁\ue001", split=False)
@settings(max_examples=400, deadline=None)
def test_encoding_is_lossless(text: str, split: bool) -> None:
    assert TRAINED[split].decode(TRAINED[split].encode(text)) == text


@given(text=texts, split=st.booleans())
@settings(deadline=None)
def test_no_text_encodes_to_a_special_token(text: str, split: bool) -> None:
    tokenizer = TRAINED[split]
    special = {tokenizer.special_id(name) for name in SPECIAL_TOKENS}
    assert not special & set(tokenizer.encode(text))


@given(text=texts.filter(lambda text: not {"▁", "\ue001"} & set(text)), split=st.booleans())
@settings(deadline=None)
def test_ids_are_those_of_sentencepiece(text: str, split: bool) -> None:
    theirs = sentencepiece.SentencePieceProcessor(model_proto=TRAINED[split]._model)
    assert TRAINED[split].encode(text) == theirs.encode(text)


@given(text=texts.filter(lambda text: not any(name in text for name in SPECIAL_TOKENS)), split=st.booleans())
@settings(max_examples=400, deadline=None)
def test_the_exported_hugging_face_tokenizer_gives_the_same_ids_and_text(text: str, split: bool) -> None:
    ids = TRAINED[split].encode(text)
    assert EXPORTED[split].encode(text) == ids
    assert EXPORTED[split].decode(ids) == text


@given(data=st.data(), split=st.booleans())
@settings(deadline=None)
def test_any_ids_can_be_decoded_and_special_ones_have_no_text(data: st.DataObject, split: bool) -> None:
    tokenizer = TRAINED[split]
    ids = data.draw(
        st.lists(st.integers(0, tokenizer.vocab_size + 9))
    )  # a model may have more embeddings than there are ids
    special = {tokenizer.special_id(name) for name in SPECIAL_TOKENS}
    assert tokenizer.decode(ids) == tokenizer.decode([i for i in ids if i not in special and i < tokenizer.vocab_size])


def test_tokens_cross_blanks_only_if_allowed_and_then_compress_repeated_text() -> None:
    header = "def scale(xs, k):\n    out = []\n    for x in xs:\n"
    apart, crossing = len(TRAINED[True].encode(header)), len(TRAINED[False].encode(header))
    assert crossing * 3 < apart
    assert all(" " not in TRAINED[True].decode([i]).strip() for i in TRAINED[True].encode(header))


@given(
    separators=st.lists(st.sampled_from(["(", ".", " * ", "  =  ", "=", " =", "==", "out", "\n"]), unique=True),
    text=st.lists(st.sampled_from(["x", " ", "=", "*", "out", "(", ".", "▁", "def scale(xs, k)", "\n"])).map("".join),
)
@example(separators=["=", "==", " =", "  =  "], text="x  =  1 == 2 =3")
@settings(max_examples=100, deadline=None)
def test_separators_are_tokens_by_themselves_the_longest_first(separators: list[str], text: str) -> None:
    """Also those of several characters, and in the exported tokenizer."""
    tokenizer = train_sentencepiece(CODE, 600, split_by_whitespace=False, separators=separators)
    alternatives = "|".join(re.escape(each) for each in sorted(separators, key=len, reverse=True))
    parts = [part for part in re.split(f"({alternatives})", text) if part] if separators else [text]
    ids = tokenizer.encode(text)
    assert ids == [token for part in parts for token in tokenizer.encode(part)]
    assert tokenizer.decode(ids) == text
    assert all(len(tokenizer.encode(each)) == 1 for each in separators)
    assert HuggingFaceTokenizer(tokenizer.to_hugging_face()).encode(text) == ids


def test_a_vocabulary_too_large_is_reduced_and_one_too_small_is_an_error() -> None:
    assert 260 < train_sentencepiece(CODE, 50_000).vocab_size < 50_000
    with pytest.raises(ConfigurationError, match="train_sentencepiece"):
        train_sentencepiece(CODE, 100)
    with pytest.raises(ConfigurationError, match="no text"):
        train_sentencepiece(["  "], 400)


def test_a_lone_surrogate_becomes_a_replacement_character() -> None:
    assert TRAINED[True].decode(TRAINED[True].encode("a\ud800b")) == "a\ufffdb"


@pytest.mark.parametrize("tokenizer", [TRAINED[False], WordTokenizer.from_texts(["go left", "14"]), EXPORTED[True]])
def test_a_saved_tokenizer_loads_unchanged(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert type(again) is type(tokenizer)
    assert (again.vocab_size, again.end_id) == (tokenizer.vocab_size, tokenizer.end_id)
    assert again.encode("left 14 go") == tokenizer.encode("left 14 go")


def test_a_damaged_sentencepiece_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / SENTENCEPIECE_FILE).write_bytes(b"no model")
    with pytest.raises(ConfigurationError, match="not a SentencePiece model"):
        SentencePieceTokenizer.load(tmp_path)


def test_a_folder_without_a_tokenizer_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=str(tmp_path)):
        load_tokenizer(tmp_path)


@given(st.lists(st.sampled_from(["left", "right", "14", " ", "\n", ".", "_x1"])))
@settings(deadline=None)
def test_a_word_tokenizer_is_lossless_on_its_words(parts: list[str]) -> None:
    text = " ".join(parts)
    tokenizer = WordTokenizer.from_texts(["left right 14 .\n_x1"])
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_word_outside_the_vocabulary_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigurationError, match="'sideways'"):
        WordTokenizer.from_texts(["left right"]).encode("left sideways")
    with pytest.raises(ConfigurationError, match="not one word"):
        WordTokenizer(["two words"])
    with pytest.raises(ConfigurationError, match="twice"):
        WordTokenizer(["a", "a"])


def test_a_word_outside_the_vocabulary_is_the_unknown_token_with_one_warning(tmp_path: Path) -> None:
    tokenizer = WordTokenizer.from_texts(["go left"], unknown=True)
    unknown = tokenizer.unknown_id
    assert unknown == tokenizer.vocab_size - 1
    with pytest.warns(UserWarning, match="'sideways' is not in the vocabulary of 3 words"):
        first = tokenizer.encode("go sideways left")
    assert tokenizer.encode("sideways") == [unknown]  # warnings are errors here
    assert first[2] == unknown and tokenizer.decode(first) == "go  left"
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert isinstance(loaded, WordTokenizer) and loaded.unknown_id == unknown
    theirs = HuggingFaceTokenizer(tokenizer.to_hugging_face())
    assert theirs.encode("go sideways left") == first and theirs.vocab_size == tokenizer.vocab_size
    assert theirs.decode(first) == "go  left"


def test_a_vocabulary_with_gaps_is_as_large_as_its_largest_id_requires() -> None:
    inner = tokenizers.Tokenizer(WordLevel({"go": 0, "left": 5, "<|end|>": 9, "?": 10}, unk_token="?"))
    tokenizer = HuggingFaceTokenizer(PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>"))
    assert tokenizer.encode("left") == [5] and tokenizer.end_id == 9
    assert tokenizer.vocab_size == 11


def test_only_the_first_unknown_words_are_warned_of() -> None:
    tokenizer = WordTokenizer(["a"], unknown=True)
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        for number in range(100):
            tokenizer.encode(f"w{number}")
    assert len(met) == 20 and "further words are not reported" in str(met[-1].message)


def test_a_hugging_face_tokenizer_reads_special_tokens_in_a_text_as_plain_characters() -> None:
    tokenizer = EXPORTED[True]
    assert tokenizer.end_id not in tokenizer.encode("a<|end|>b")
    assert tokenizer.end_id in tokenizer.encode_scaffold("a<|end|>b")
    assert tokenizer.decode(tokenizer.encode("a<|end|>b")) == "a<|end|>b"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{}", "there is no 'added_tokens'"),
        ("tokenizer.json", "3", "no attribute"),
        ("tokenizer_config.json", '{"eos_token": 5}', "eos_token has to be either str or AddedToken"),
        ("config.json", '{"model_type": "llama", "hidden_size": "x"}', "'hidden_size' expected int, got str"),
    ],
)
def test_a_damaged_file_of_a_tokenizer_is_one_line(tmp_path: Path, name: str, content: str, message: str) -> None:
    EXPORTED[True].save(tmp_path)
    load_tokenizer(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigurationError, match=f"no tokenizer can be loaded from there: .*{message}") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_corpus_is_a_file_a_folder_or_json_lines(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "b.py").write_text("x = 1\n" * 2000)
    (folder / "a.md").write_text("first\n")
    (folder / "picture.png").write_bytes(b"\x89PNG\xff\xfe")
    texts = list(read_corpus(folder))
    assert texts[0] == "first\n"
    assert "".join(texts[1:]) == "x = 1\n" * 2000
    assert max(map(len, texts)) <= 4096
    lines = tmp_path / "lines.jsonl"
    written = [
        {"messages": [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "answer"}]},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": []}]},
        {"turns": [{"observation": "seen", "action": "done", "reward": 0.0}]},
        {"text": "plain"},
    ]
    lines.write_text("".join(json.dumps(row) + "\n" for row in written))
    assert list(read_corpus(lines)) == ["ask", "answer", "seen", "done", "plain"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "No such file"),
        (b"\xff\xfe", "utf-8"),
        (b'{"a": 1}\n', "line 1"),
        (b"no\n", "line 1"),
        (b'{"text": null}\n', "line 1"),
        (b'{"messages": [{"content": ["parts"]}]}\n', "line 1"),
    ],
)
def test_unreadable_corpus_is_a_one_line_error(tmp_path: Path, content: bytes | None, expected: str) -> None:
    path = tmp_path / "corpus.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=expected):
        list(read_corpus(path))


def test_tokenizer_training_follows_its_settings_and_is_deterministic(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("the_quick brown fox\n" * 50)
    config = SentencePiece(path, vocab_size=300, separators="_")
    tokenizer = config.train()
    assert 256 < tokenizer.vocab_size <= 300
    ids = tokenizer.encode("the_quick")
    assert tokenizer.decode(ids) == "the_quick"
    assert tokenizer.encode("_") == [i for i in ids if tokenizer.decode([i]) == "_"]
    assert config.train().encode("the_quick brown fox") == tokenizer.encode("the_quick brown fox")
    with pytest.raises(ConfigurationError, match="256 bytes"):
        SentencePiece(path, vocab_size=200)
