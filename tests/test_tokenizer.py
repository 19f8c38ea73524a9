"""Text to ids and back: control tokens stay out of text, and streaming gives what decoding gives."""

import json
import os
from functools import lru_cache

import pytest
import tokenizers
from helpers import count
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizer import CONTROL, small_spec, write_small_tokenizer

from qwenlab.errors import QwenlabError
from qwenlab.text.tokenizer import Tokenizer, TokenizerError

SMALL = Tokenizer(small_spec(), pad_token="<|endoftext|>")
REFERENCE = tokenizers.Tokenizer.from_str(json.dumps(small_spec()))
QWEN3 = os.environ.get("QWENLAB_QWEN3_TOKENIZER")
needs_qwen3 = pytest.mark.skipif(not QWEN3, reason="QWENLAB_QWEN3_TOKENIZER names no folder")

snippets = st.sampled_from([*CONTROL, "é", "👩\u200d🚀", "\n\n", " the", "<|im_", "end|>"])
texts = st.lists(st.one_of(st.text(max_size=8), snippets)).map("".join)
id_lists = st.lists(st.integers(0, SMALL.vocab_size - 1), max_size=40)


@pytest.fixture(scope="module")
def qwen3() -> Tokenizer:
    return Tokenizer.from_folder(QWEN3)


@given(texts)
@settings(max_examples=count(100, 1000))
def test_text_never_becomes_a_control_token_and_comes_back_whole(text):
    ids = SMALL.encode(text)
    assert not set(ids) & set(SMALL.control.values())
    assert SMALL.decode(ids) == REFERENCE.normalizer.normalize_str(text)


@given(texts)
@settings(max_examples=count(100, 1000))
def test_text_without_control_tokens_has_the_ids_of_the_tokenizers_library(text):
    for token in CONTROL:
        text = text.replace(token, "")
    if not any(token in text for token in CONTROL):  # removing one may have joined another
        assert SMALL.encode(text) == REFERENCE.encode(text).ids


@given(id_lists, st.booleans())
@settings(max_examples=count(200, 2000))
def test_decode_and_stream_agree_with_the_tokenizers_library(ids, skip):
    expected = REFERENCE.decode(ids, skip_special_tokens=skip)
    assert SMALL.decode(ids, skip_control=skip) == expected
    stream = SMALL.stream(skip_control=skip)
    assert "".join([*map(stream.push, ids), stream.end()]) == expected


def test_stream_waits_for_the_last_byte_of_a_character():
    ids = SMALL.encode("a👍b")  # the emoji is four bytes, each its own token here
    stream = SMALL.stream()
    assert [stream.push(id) for id in ids] == ["a", "", "", "", "👍", "b"]
    assert stream.end() == ""


def test_stream_ends_an_open_character_with_the_replacement():
    stream = SMALL.stream()
    assert [stream.push(id) for id in SMALL.encode("👍")[:2]] == ["", ""]
    assert stream.end() == "\ufffd"
    assert stream.push(SMALL.encode("a")[0]) == "a"


def test_a_control_token_between_two_halves_of_a_character_joins_nothing():
    first, second = SMALL.encode("👍")[:2], SMALL.encode("👍")[2:]
    ids = [*first, SMALL.control["<|im_end|>"], *second]
    assert SMALL.decode(ids) == REFERENCE.decode(ids, skip_special_tokens=False) == "\ufffd<|im_end|>\ufffd\ufffd"


def test_no_ids_are_no_text():
    assert SMALL.decode([]) == "" and SMALL.encode("") == []
    assert SMALL.stream().end() == ""


def test_pad_id_is_the_pad_token_of_the_checkpoint(tmp_path):
    write_small_tokenizer(tmp_path)
    assert Tokenizer.from_folder(tmp_path).pad_id == SMALL.control["<|endoftext|>"] == SMALL.pad_id


@pytest.mark.parametrize("id", [-1, SMALL.vocab_size, 10**6])
def test_an_id_outside_the_vocabulary_is_named(id):
    with pytest.raises(TokenizerError, match=rf"^token id {id} is outside the vocabulary of {SMALL.vocab_size}$"):
        SMALL.decode([5, id])
    with pytest.raises(TokenizerError, match=f"token id {id} "):
        SMALL.stream().push(id)


def test_an_id_that_only_the_model_has_shows_as_the_replacement_character():
    wider = Tokenizer(small_spec(), vocab_size=SMALL.vocab_size + 8)
    assert wider.decode([65, SMALL.vocab_size + 3]) == SMALL.decode([65]) + "\ufffd"


def test_text_that_is_no_text_is_refused():
    with pytest.raises(TokenizerError, match="encode takes a string, not NoneType"):
        SMALL.encode(None)
    with pytest.raises(TokenizerError, match="half a surrogate pair at character 2"):
        SMALL.encode("ab\ud800")


def test_a_tokenizer_of_another_kind_is_refused_by_name():
    with pytest.raises(TokenizerError, match=r"tokenizer.json: model BPE with decoder Metaspace, expected byte-level"):
        Tokenizer(small_spec(decoder={"type": "Metaspace", "replacement": "_", "prepend_scheme": "always"}))
    with pytest.raises(TokenizerError, match=r"with decoder None|not a tokenizer.json as expected"):
        Tokenizer(small_spec(decoder=None))
    spec = small_spec()
    spec["model"]["vocab"]["日"] = 999
    with pytest.raises(TokenizerError, match="'日', which stands for no byte"):
        Tokenizer(spec)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("model", "vocab"), []),
        (("model", "vocab", "a"), None),
        (("model", "vocab", "a"), "5"),
        (("added_tokens", 0, "id"), None),
        (("added_tokens", 0, "content"), 5),
        (("added_tokens", 0), "<|im_end|>"),
        (("model",), "BPE"),
    ],
)
def test_a_tokenizer_with_a_wrong_field_is_refused_in_one_line(path, value):
    spec = small_spec()
    inner = spec
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: not a tokenizer\.json as expected") as caught:
        Tokenizer(spec)
    assert "\n" not in str(caught.value)


def test_a_pad_token_of_a_strange_kind_is_none(tmp_path):
    for entry in (["<|endoftext|>"], {"content": [1]}, 5):
        write_small_tokenizer(tmp_path)
        path = tmp_path / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"pad_token": entry}))
        assert Tokenizer.from_folder(tmp_path).pad_id == 0


def test_a_folder_without_a_readable_tokenizer_is_named(tmp_path):
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: no such file"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{ half")
    with pytest.raises(QwenlabError, match=r"tokenizer\.json: not readable as JSON"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: not a tokenizer\.json as expected"):
        Tokenizer.from_folder(tmp_path)


def test_a_control_token_that_is_also_in_the_vocabulary_cannot_be_typed():
    # `tokenizers` trainers put special tokens into the vocabulary; with ignore_merges a whole word is looked up there.
    spec = small_spec()
    spec["pre_tokenizer"] = spec["pre_tokenizer"] | {"use_regex": False}
    spec["model"] |= {"ignore_merges": True}
    spec["model"]["vocab"] |= {token["content"]: token["id"] for token in spec["added_tokens"]}
    tokenizer = Tokenizer(spec)
    for token in CONTROL:
        ids = tokenizer.encode(token)
        assert len(ids) > 1 and tokenizer.decode(ids) == token


@needs_qwen3
@given(text=texts)
@settings(max_examples=count(50, 1000))
def test_the_real_tokenizer_gives_the_librarys_ids(qwen3, text):
    reference = tokenizers_of_qwen3()
    for token in qwen3.control:
        text = text.replace(token, "")
    if not any(token in text for token in qwen3.control):
        assert qwen3.encode(text) == reference.encode(text).ids


@needs_qwen3
@given(ids=st.lists(st.integers(0, 151_668), max_size=30))
@settings(max_examples=count(100, 2000))
def test_the_real_tokenizer_decodes_and_streams_as_the_library(qwen3, ids):
    expected = tokenizers_of_qwen3().decode(ids, skip_special_tokens=False)
    assert qwen3.decode(ids) == expected
    stream = qwen3.stream()
    assert "".join([*map(stream.push, ids), stream.end()]) == expected


@needs_qwen3
def test_the_real_tokenizers_pad_and_stop_ids(qwen3):
    assert qwen3.pad_id == 151643 and qwen3.control["<|im_end|>"] == 151645


@lru_cache
def tokenizers_of_qwen3() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(f"{QWEN3}/tokenizer.json")
