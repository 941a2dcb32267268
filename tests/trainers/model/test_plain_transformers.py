"""A model made here from nothing is one that `transformers` loads by itself, tokenizer and chat template included."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_trainers.errors import ConfigurationError
from swe_trainers.model.chat import CompactChat, TemplateChat
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.model.tokenizers import (
    SPECIAL_TOKENS,
    HuggingFaceTokenizer,
    Tokenizer,
    WordTokenizer,
    train_sentencepiece,
)
from tests.programs import run_to_end
from tests.trainers.tiny import FAMILIES

WORDS = "go left right 14 x_1 é a\u0301 日本 ½ . \n\t ' ▁ < | > user end system"
SENTENCES = ["def add(a, b):\n    return a + b\n", "\tself.items.append(item)  # ▁ é\n"] * 5
TOKENIZERS: dict[str, Tokenizer] = {
    "words": WordTokenizer.from_texts([WORDS]),
    "sentencepiece": train_sentencepiece(SENTENCES, 400, split_by_whitespace=False),
    "separators": train_sentencepiece(SENTENCES, 400, split_by_whitespace=False, separators=["(", " + ", "+", " +"]),
}
MESSAGES = [
    {"role": "user", "content": "go left"},
    {"role": "assistant", "content": "right"},
    {"role": "user", "content": "14"},
]

# Reads a folder, texts and ids; writes what transformers makes of them. Our own packages cannot be imported.
ALONE = """
import json, sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("swe_trainers", "swegym_env"):
            raise ModuleNotFoundError(f"{name} was asked for")

sys.meta_path.insert(0, Refused())
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

asked = json.load(sys.stdin)
tokenizer = AutoTokenizer.from_pretrained(asked["folder"])
model = AutoModelForCausalLM.from_pretrained(asked["folder"])
ids = [tokenizer.encode(text, split_special_tokens=True) for text in asked["texts"]]
conversation = tokenizer.apply_chat_template(asked["messages"], add_generation_prompt=True)["input_ids"]
with torch.no_grad():
    logits = model(torch.tensor([conversation])).logits[0].tolist()
    sampled = model.generate(torch.tensor([conversation]), max_new_tokens=8, do_sample=False)[0].tolist()
json.dump({
    "ids": ids, "texts": [tokenizer.decode(each) for each in ids], "conversation": conversation, "logits": logits,
    "end": [tokenizer.eos_token_id, model.generation_config.eos_token_id], "sampled": sampled,
    "special": tokenizer.convert_tokens_to_ids(asked["special"]),
}, sys.stdout)
"""


def texts_of(kind: str) -> list[str]:
    """Every word, special tokens written as text, and random texts that the tokenizer knows."""
    rng = random.Random(0)
    pieces = [*WORDS.split(" "), " ", *SPECIAL_TOKENS[1:2], "<|end|>", "user"]
    if kind != "words":
        pieces += [" + ", "a +b", "    ", "\ue001", "\ue0010", "😀", "def add(", "\r\n", "\0", "\u0301"]
    between = " " if kind == "words" else ""  # two words without a blank are another word
    return [*pieces, *(between.join(rng.choices(pieces, k=12)) for _ in range(200))]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_model_from_random_weights_loads_without_this_package(kind: str, tmp_path: Path) -> None:
    tokenizer = TOKENIZERS[kind]
    shape: dict[str, Any] = {**FAMILIES["llama"], "hidden_size": 32, "num_hidden_layers": 2}
    model = LanguageModel.from_config(shape, tokenizer, seed=3)
    model.save_pretrained(tmp_path / "model")
    texts = texts_of(kind)
    asked = {"folder": str(tmp_path / "model"), "texts": texts, "messages": MESSAGES, "special": SPECIAL_TOKENS}
    ended = run_to_end([sys.executable, "-I", "-c", ALONE], {}, cwd=tmp_path, stdin=json.dumps(asked))
    assert ended.returncode == 0, ended.stderr
    theirs = json.loads(ended.stdout)
    assert theirs["ids"] == [tokenizer.encode(text) for text in texts]
    assert theirs["texts"] == texts
    assert theirs["end"] == [tokenizer.end_id] * 2
    assert theirs["special"] == [tokenizer.special_id(name) for name in SPECIAL_TOKENS]
    chat = CompactChat(tokenizer)
    ids = [*chat.start("go left"), *tokenizer.encode("right"), *chat.observe("14", closed=False)]
    assert theirs["conversation"] == ids
    tokens, positions = torch.tensor([ids]), torch.arange(len(ids))[None]
    with torch.no_grad():
        hidden = model.trunk_hidden(tokens, positions, torch.ones_like(tokens))
    torch.testing.assert_close(torch.tensor(theirs["logits"]), model.logits(hidden)[0].detach(), rtol=1e-4, atol=1e-5)
    assert theirs["sampled"][: len(ids)] == ids and len(theirs["sampled"]) > len(ids)


@given(st.lists(st.sampled_from([*WORDS, "go", "left", "a\u0301", "left14", "½"])).map("".join))
@settings(deadline=None, max_examples=300)
def test_words_are_divided_as_by_the_word_tokenizer(text: str) -> None:
    """Also where a word is not in the vocabulary: both refuse the text."""
    tokenizer = TOKENIZERS["words"]
    assert isinstance(tokenizer, WordTokenizer)
    theirs = HuggingFaceTokenizer(tokenizer.to_hugging_face())
    try:
        expected = tokenizer.encode(text)
    except ConfigurationError:
        with pytest.raises(Exception, match="UNK"):
            theirs.encode(text)
        return
    assert theirs.encode(text) == expected
    assert theirs.decode(expected) == text


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_chat_template_gives_the_ids_of_the_compact_format(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    assert not isinstance(tokenizer, HuggingFaceTokenizer)
    template = TemplateChat(HuggingFaceTokenizer(tokenizer.to_hugging_face()))
    compact = CompactChat(tokenizer, system=True)
    for system in (None, "go"):
        assert template.start("left <|end|>", system=system) == compact.start("left <|end|>", system=system)
    for closed in (True, False):
        assert template.observe("<|user|> 14", closed=closed) == compact.observe("<|user|> 14", closed=closed)
    assert template.end_id == compact.end_id


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_saved_tokenizers_name_what_older_versions_of_transformers_know(kind: str, tmp_path: Path) -> None:
    """Version 4 has neither the class `TokenizersBackend` nor a list of extra tokens."""
    TOKENIZERS[kind].save(tmp_path)
    written = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert written["tokenizer_class"] == "PreTrainedTokenizerFast" and "extra_special_tokens" not in written
    assert {*written["additional_special_tokens"], written["eos_token"]} == {*SPECIAL_TOKENS}
