"""Text to ids and back: control tokens stay out of text, and streaming gives what decoding gives."""

import json
import os
import re
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
    assert (
        SMALL.decode(ids)
        == REFERENCE.decode(ids, skip_special_tokens=False)
        == "\ufffd<|im_end|>\ufffd\ufffd"
    )


def test_no_ids_are_no_text():
    assert SMALL.decode([]) == "" and SMALL.encode("") == []
    assert SMALL.stream().end() == ""


def test_pad_id_is_the_pad_token_of_the_checkpoint(tmp_path):
    write_small_tokenizer(tmp_path)
    assert Tokenizer.from_folder(tmp_path).pad_id == SMALL.control["<|endoftext|>"] == SMALL.pad_id


@pytest.mark.parametrize("id", [-1, SMALL.vocab_size, 10**6])
def test_an_id_outside_the_vocabulary_is_named(id):
    with pytest.raises(
        TokenizerError, match=rf"^token id {id} is outside the vocabulary of {SMALL.vocab_size}$"
    ):
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
    with pytest.raises(
        TokenizerError,
        match=r"tokenizer.json: model BPE with decoder Metaspace, expected byte-level",
    ):
        Tokenizer(
            small_spec(
                decoder={"type": "Metaspace", "replacement": "_", "prepend_scheme": "always"}
            )
        )
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
    with pytest.raises(
        TokenizerError, match=r"tokenizer\.json: not a tokenizer\.json as expected"
    ) as caught:
        Tokenizer(spec)
    assert "\n" not in str(caught.value)


def test_a_pad_token_of_a_strange_kind_is_none(tmp_path):
    for entry in (["<|endoftext|>"], {"content": [1]}, 5):
        write_small_tokenizer(tmp_path)
        path = tmp_path / "tokenizer_config.json"
        path.write_text(
            json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"pad_token": entry}),
            encoding="utf-8",
        )
        assert Tokenizer.from_folder(tmp_path).pad_id == 0


def test_a_folder_without_a_readable_tokenizer_is_named(tmp_path):
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: no such file"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{ half", encoding="utf-8")
    with pytest.raises(QwenlabError, match=r"tokenizer\.json: not readable as JSON"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: not a tokenizer\.json as expected"):
        Tokenizer.from_folder(tmp_path)


def test_a_control_token_that_is_also_in_the_vocabulary_cannot_be_typed():
    # `tokenizers` trainers put special tokens into the vocabulary; with ignore_merges a whole word
    # is looked up there.
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


def with_added(*tokens: dict) -> dict:
    """The small tokenizer.json with more added tokens, not special unless they say so."""
    spec = small_spec()
    kind = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": True,
        "special": False,
    }
    spec["added_tokens"] = spec["added_tokens"] + [kind | token for token in tokens]
    return spec


FIRST = SMALL.vocab_size
WORDS = ["foobar", "naïve", "日本", "foo bar", "C++", "user", "the"]


@pytest.fixture(scope="module")
def with_words(tmp_path_factory):
    """Our tokenizer and transformers', of a folder whose vocabulary somebody has added words to."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("words")
    write_small_tokenizer(folder)
    theirs = AutoTokenizer.from_pretrained(folder)
    theirs.add_tokens(WORDS)
    theirs.save_pretrained(folder)
    return Tokenizer.from_folder(folder), theirs


@given(
    text=st.lists(
        st.one_of(st.sampled_from([*WORDS, "fo", "o", " ", "\n", "e\u0301"]), st.text(max_size=3))
    )
)
@settings(max_examples=count(100, 1000))
def test_words_added_to_the_vocabulary_are_tokens_as_in_transformers(with_words, text):
    ours, theirs = with_words
    text = "".join(text)
    ids = ours.encode(text)
    assert ids == theirs.encode(text, add_special_tokens=False)
    assert ours.decode(ids) == REFERENCE.normalizer.normalize_str(text)


def test_words_are_tokens_in_a_chat_and_control_tokens_stay_text(with_words):
    ours, theirs = with_words
    messages = [{"role": "user", "content": "foobar, naïve 日本語 user"}]
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert ours.chat(messages) == list(expected)
    assert not set(ours.control) & set(WORDS) and "<think>" in ours.control
    for token in CONTROL:
        assert ours.control[token] not in ours.encode(f"foobar{token}user")


def test_words_of_every_kind_are_found_as_the_library_finds_them():
    kinds = [{"lstrip": True}, {"rstrip": True}, {"single_word": True}, {"normalized": False}]
    spec = with_added(
        *({"id": FIRST + i, "content": f"w{i}x"} | kind for i, kind in enumerate(kinds))
    )
    ours, theirs = Tokenizer(spec), tokenizers.Tokenizer.from_str(json.dumps(spec))
    for text in ("a w0x b", "a w1x b", "aw2xb w2x", "w3x w1xw0x"):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids


def test_a_words_id_is_the_one_that_tokenizer_json_gives_it():
    tokenizer = Tokenizer(
        with_added({"id": FIRST + 40, "content": "gap"}, {"id": FIRST + 7, "content": "less"})
    )
    assert (
        tokenizer.encode("gapless") == [FIRST + 40, FIRST + 7]
        and tokenizer.vocab_size == FIRST + 41
    )
    assert tokenizer.decode([FIRST + 7, FIRST + 40]) == "lessgap"


@pytest.mark.parametrize("id", [-1, -(10**9), 10**30, True, 5.0])
@pytest.mark.parametrize("path", [("model", "vocab", "a"), ("added_tokens", 0, "id")])
def test_an_id_that_is_none_is_refused_by_its_token(path, id):
    spec = small_spec()
    inner = spec
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = id
    token = "a" if "vocab" in path else CONTROL[0]
    with pytest.raises(
        TokenizerError,
        match=rf"token {re.escape(repr(token))} has id {id}, expected a whole number",
    ):
        Tokenizer(spec)


def test_ids_that_tokens_share_are_refused_by_name():
    spec = small_spec()
    for token in spec["added_tokens"]:
        token["id"] = FIRST
    with pytest.raises(
        TokenizerError, match=rf"tokens '<\|endoftext\|>' and '<\|im_start\|>' share the id {FIRST}"
    ):
        Tokenizer(spec)
    with pytest.raises(TokenizerError, match=r"tokens 'a' and 'word' share the id"):
        Tokenizer(with_added({"id": small_spec()["model"]["vocab"]["a"], "content": "word"}))
    with pytest.raises(TokenizerError, match=rf"token 'the' has the ids \d+ and {FIRST}"):
        Tokenizer(with_added({"id": FIRST, "content": "the"}))


def test_the_end_of_sequence_id_is_that_of_the_checkpoint(tmp_path):
    write_small_tokenizer(tmp_path)
    assert Tokenizer.from_folder(tmp_path).eos_id == SMALL.control["<|im_end|>"]
    assert SMALL.eos_id is None


def test_more_whitespace_than_can_be_split_is_refused_in_one_line():
    for text, start in ((" " * 10_000_000 + "a", 0), ("a\n" + " \t" * 3_000_000, 1)):
        with pytest.raises(
            TokenizerError, match=rf"whitespace characters .* from character {start} on"
        ) as caught:
            SMALL.encode(text)
        assert "\n" not in str(caught.value)


def test_a_text_on_which_the_library_panics_is_refused_in_one_line():
    slow = {
        "type": "Split",
        "pattern": {"Regex": "(a+)+b"},
        "behavior": "Isolated",
        "invert": False,
    }
    spec = small_spec(
        pre_tokenizer={"type": "Sequence", "pretokenizers": [slow, small_spec()["pre_tokenizer"]]}
    )
    with pytest.raises(
        TokenizerError, match=r"tokenizer\.json: tokenizers can't split this text \("
    ) as caught:
        Tokenizer(spec).encode("a" * 40)
    assert "\n" not in str(caught.value)
