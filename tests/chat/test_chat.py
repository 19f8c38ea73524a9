"""Chat: every turn says what a computation of the whole conversation says, and reads nothing twice."""

import os
import random

import pytest
import torch
from helpers import FAMILIES, alone_greedy, alone_logits, count, difference
from hypothesis import given, settings
from hypothesis import strategies as st
from small_checkpoint import VOCAB
from small_tokenizer import TEMPLATE, small_spec

import qwenlab
from qwenlab.loading import shipped_folder, shipped_names
from qwenlab.text.chat_template import ChatTemplate, ChatTemplateError
from qwenlab.text.tokenizer import Tokenizer

QWEN3 = os.environ.get("QWENLAB_QWEN3_TOKENIZER")
SMALL = Tokenizer(small_spec(), ChatTemplate(TEMPLATE), "<|endoftext|>")
SYSTEM = {"role": "system", "content": "Be brief."}


def user(text):
    return {"role": "user", "content": text}


@pytest.fixture(scope="module", params=FAMILIES)
def model(request):
    """Random, over the small tokenizer's vocabulary; a tenth of it ends an answer, so that answers
    end now and then."""
    model = FAMILIES[request.param](seed=0, vocab_size=VOCAB, eos_token_id=VOCAB - 3)
    model.stop_ids = frozenset(range(100, 124)) | {VOCAB - 3, VOCAB - 5}
    return model


def by_itself(model, prompt, cap):
    """(ids, finish reason): every token reads the whole conversation again."""
    ids = alone_greedy(model, prompt, cap)
    end = next((place for place, token_id in enumerate(ids) if token_id in model.stop_ids), None)
    return (ids, "length") if end is None else (ids[:end], "stop")


def random_text(rng):
    return "".join(rng.choice("abc the in 12 é🙂\n") for _ in range(rng.randint(0, 25)))


def check_state(chat):
    """The state holds what was said, but for what is still to be read, and its next logits are
    those alone."""
    for row, said in enumerate(chat.token_ids):
        held = int(chat.state.lengths[row])
        assert held <= len(said)
        if said:
            unread = said[held:] or [0]
            ours = chat.model(
                torch.tensor([unread]), state=chat.state.snapshot(), rows=[row], last_only=True
            )[0]
            hybrid = "linear_attention" in chat.model.config.layer_types
            bound = 1e-4 if hybrid else 1e-5  # a random hybrid is badly conditioned
            assert difference(ours, alone_logits(chat.model, said[:held] + unread)[-1]) <= bound


@pytest.mark.parametrize("seed", range(count(6, 150)))
def test_random_talks(model, seed):
    """One to five conversations, two to four turns, some sitting a turn out: as each alone,
    computed as a whole."""
    rng = random.Random(seed)
    rows, cap = rng.randint(1, 5), rng.randint(1, 9)
    system = rng.choice([None, "Be brief."])
    chat = qwenlab.Chat(model, SMALL, rows, max_new_tokens=cap, system=system)
    before = [[] for _ in range(rows)]
    for _ in range(rng.randint(2, 4)):
        chat.thinking = rng.random() < 0.5
        texts = [random_text(rng) if rng.random() < 0.7 else None for _ in range(rows)]
        answers = chat.send(texts)
        for row, text in enumerate(texts):
            if text is None:
                assert answers[row] is None and chat.token_ids[row] == before[row]
                continue
            first = [SYSTEM, user(text)] if system else [user(text)]
            opening = (
                SMALL.next_turn(text, chat.thinking)
                if before[row]
                else SMALL.chat(first, chat.thinking)
            )
            request, prompt = chat.requests[row], before[row] + opening
            assert request.prompt == prompt
            assert (request.token_ids, request.finish_reason) == by_itself(model, prompt, cap)
            assert answers[row] == SMALL.decode(request.token_ids)
            before[row] = prompt + request.token_ids
        check_state(chat)


@pytest.mark.parametrize("seed", range(count(4, 40)))
def test_a_sampled_conversation_is_the_one_alone(model, seed):
    rng = random.Random(seed)
    seeds = [rng.randrange(1000) for _ in range(rng.randint(2, 5))]
    options = {"temperature": 1.0, "top_p": 0.9, "top_k": 50, "max_new_tokens": 7}
    chat = qwenlab.Chat(model, SMALL, len(seeds), seed=seeds, **options)
    alone = [qwenlab.Chat(model, SMALL, seed=[number], **options) for number in seeds]
    for _ in range(3):
        texts = [random_text(rng) if rng.random() < 0.8 else None for _ in seeds]
        answers = chat.send(texts)
        assert answers == [lone.send([text])[0] for lone, text in zip(alone, texts, strict=True)]
    assert chat.token_ids == [lone.token_ids[0] for lone in alone]


def test_the_first_turn_is_what_generate_says_and_turns_draw_anew(model):
    texts = ["a", "the the", ""]
    options = {"temperature": 1.0, "seed": 5, "max_new_tokens": 8}
    result = qwenlab.generate(model, [SMALL.chat([user(text)]) for text in texts], **options)
    chat = qwenlab.Chat(model, SMALL, 3, **options)
    assert chat.send(texts) == [SMALL.decode(ids) for ids in result.token_ids]
    chat.send(texts)
    assert [request.rng_key for request in chat.requests] == [(5, row, 1) for row in range(3)]


def test_no_token_is_read_twice(model):
    """Over all turns the model reads as many tokens as the conversations have, less an answer's
    last where cut off."""
    read = []

    def note(batch, **options):
        read.append(sum(batch.num_new_tokens))
        return compute(batch, **options)

    compute = model.compute
    model.compute = note
    try:
        chat = qwenlab.Chat(model, SMALL, 3, max_new_tokens=6)
        for texts in (["a", "the the", None], ["b", None, "in"], ["a" * 30, "b", "c"]):
            chat.send(texts)
            unread = sum(request.finish_reason == "length" for request in chat.requests if request)
            assert (
                sum(read) == sum(map(len, chat.token_ids)) - unread == int(chat.state.lengths.sum())
            )
    finally:
        del model.compute


# --- The template's words between turns ------------------------------------------------------------------------------

FOLDERS = {name: shipped_folder() / name for name in shipped_names()} | (
    {"qwen3": QWEN3} if QWEN3 else {}
)
PARTS = st.sampled_from(
    ["a", " the", "\n", "12", "é", "🙂", "<|im_end|>", "<|im_start|>", "<", "|>", "im_end", " "]
)
TEXT = st.lists(PARTS, max_size=8).map("".join)


@pytest.fixture(scope="module", params=["small", *FOLDERS])
def tokenizer(request):
    return SMALL if request.param == "small" else Tokenizer.from_folder(FOLDERS[request.param])


@given(TEXT, TEXT, TEXT, st.booleans(), st.booleans())
@settings(max_examples=count(40, 400))
def test_the_seam_is_that_of_a_conversation_written_anew(
    tokenizer, first, answer, second, system, thinking
):
    answer = (
        answer.lstrip()
    )  # a space or line break of its own would melt into the one that the template ends with
    begin = [*([SYSTEM] if system else []), user(first)]
    said = tokenizer.chat(begin) + tokenizer.encode(answer)
    anew = [*begin, {"role": "assistant", "content": answer}, user(second)]
    assert said + tokenizer.next_turn(second, thinking) == tokenizer.chat(anew, thinking)
    again = [*anew, {"role": "assistant", "content": answer}, user(first)]
    if thinking:
        assert said + tokenizer.next_turn(second) + tokenizer.encode(answer) + tokenizer.next_turn(
            first
        ) == tokenizer.chat(again)


def test_what_writing_it_anew_would_drop(tokenizer):
    """The difference that Chat's docstring tells of: thinking of earlier answers, and blocks closed
    at once."""
    think, end = tokenizer.control["<think>"], tokenizer.control["</think>"]
    thought = [think, *tokenizer.encode("\na\n"), end, *tokenizer.encode("\n\nb")]
    said = tokenizer.chat([user("x")]) + thought + tokenizer.next_turn("y")
    anew = tokenizer.chat(
        [user("x"), {"role": "assistant", "content": tokenizer.decode(thought)}, user("y")]
    )
    assert tokenizer.decode(said).replace("<think>\na\n</think>\n\n", "") == tokenizer.decode(anew)
    said = (
        tokenizer.chat([user("x")], thinking=False)
        + tokenizer.encode("b")
        + tokenizer.next_turn("y")
    )
    anew = tokenizer.chat([user("x"), {"role": "assistant", "content": "b"}, user("y")])
    assert tokenizer.decode(said).replace("<think>\n\n</think>\n\n", "") == tokenizer.decode(anew)


def test_a_text_may_hold_any_character_that_marks_the_answer():
    text = "\U000f0000\U000f0001<|im_end|>"
    assert (
        SMALL.decode(SMALL.next_turn(text))
        == f"<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_without_earlier_answers_is_refused(model):
    odd = Tokenizer(small_spec(), ChatTemplate("{{ messages[-1].content }}", "odd.jinja"))
    with pytest.raises(
        ChatTemplateError, match=r"^odd\.jinja: the template leaves out an earlier answer$"
    ):
        qwenlab.Chat(model, odd)
    with pytest.raises(ChatTemplateError, match="no chat template in this checkpoint"):
        qwenlab.Chat(model, Tokenizer(small_spec()))


# --- The tiny model --------------------------------------------------------------------------------------------------


def test_the_tiny_model_answers_its_first_turn():
    model, tokenizer = qwenlab.load("tiny", device="cpu")
    assert qwenlab.Chat(model, tokenizer).send(["12+5=?"]) == [
        "<think>\n12+5=17\n</think>\n\n\\boxed{17}"
    ]
    closed = qwenlab.Chat(model, tokenizer, thinking=False)
    assert "".join(closed.stream("2+2?")).startswith("\\boxed{")
    assert closed.requests[0].finish_reason == "stop"


# --- Piece by piece, and cut off -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a", "the in", "é" * 9, "🙂"])
def test_pieces_join_to_the_answer(model, text):
    streamed, sent = (
        qwenlab.Chat(model, SMALL, max_new_tokens=30, temperature=1.0) for _ in range(2)
    )
    for _ in range(2):
        pieces = list(streamed.stream(text))
        assert all(pieces) and ["".join(pieces)] == sent.send([text])
        assert streamed.token_ids == sent.token_ids


def test_a_character_is_never_split(model, monkeypatch):
    said = [*SMALL.encode("é🙂ü"), 240, VOCAB - 3]  # ends within a character
    monkeypatch.setattr(
        "qwenlab.engine.engine.sample",
        lambda logits, requests: torch.tensor([said[len(requests[0].token_ids)]]),
    )
    monkeypatch.setattr(model, "stop_ids", frozenset({VOCAB - 3}))
    assert list(qwenlab.Chat(model, SMALL).stream("a")) == [
        "é",
        "🙂",
        "ü",
        "\N{REPLACEMENT CHARACTER}",
    ]


@pytest.mark.parametrize("pieces", [1, 3])
def test_an_answer_left_early_stays_as_far_as_it_got(model, pieces):
    chat = qwenlab.Chat(model, SMALL, max_new_tokens=40)
    chat.send(["a"])
    before = chat.token_ids[0]
    answer = chat.stream("the")
    shown = "".join(next(answer) for _ in range(pieces))
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    answer.close()
    (request,) = chat.requests
    assert request.finish_reason == "cancelled" and SMALL.decode(request.token_ids) == shown
    assert chat.token_ids[0] == before + SMALL.next_turn("the") + request.token_ids
    check_state(chat)
    said = chat.token_ids[0] + SMALL.next_turn("b")
    chat.send(["b"])
    assert chat.requests[0].prompt == said
    assert chat.requests[0].token_ids == by_itself(model, said, 40)[0]
    assert chat.stats.prefill_tokens == len(SMALL.next_turn("b")) + 1  # and the last id shown


def test_a_turn_that_begins_ends_the_one_before_it(model):
    chat, plain = (qwenlab.Chat(model, SMALL, max_new_tokens=40) for _ in range(2))
    kept = chat.stream("the")
    next(kept)
    left = plain.stream("the")
    next(left)
    left.close()
    never = chat.stream("never asked for")
    assert chat.send(["b"]) == plain.send(["b"])
    assert list(kept) == [] and chat.token_ids == plain.token_ids
    assert "".join(never) == plain.send(["never asked for"])[0]


def interrupt(model, at):
    """Ctrl-C in the middle of pass number `at`, after most layers have written what they keep."""
    passes = []

    def note(*_):
        passes.append(1)
        if len(passes) > at:
            hook.remove()
            raise KeyboardInterrupt

    hook = model.model.layers[-1].mlp.register_forward_pre_hook(note)


@pytest.mark.parametrize("at", [0, 1, 4])
@pytest.mark.parametrize("turns", [0, 2])
def test_ctrl_c_within_a_pass_keeps_the_talk(model, turns, at):
    """The state may be spoiled; what was said is not. A turn without a word of answer was not
    asked."""
    chat = qwenlab.Chat(model, SMALL, 3, max_new_tokens=10)
    for turn in range(turns):
        chat.send(["a", "the", None if turn else "in the"])
    before = chat.token_ids
    interrupt(model, at)
    with pytest.raises(KeyboardInterrupt):
        chat.send(["in", None, "b the"])
    if at == 0:
        assert chat.token_ids == before
    else:
        running = [
            request for request in chat.requests if request and request.finish_reason == "cancelled"
        ]
        assert running and all(len(request.token_ids) == at for request in running)
        said = chat.token_ids
        assert (
            len(said[0]) > len(before[0]) and said[1] == before[1] and len(said[2]) > len(before[2])
        )
    said = chat.token_ids
    chat.send(["a", "b", "c"])
    for row, text in enumerate("abc"):
        opening = SMALL.next_turn(text) if said[row] else SMALL.chat([user(text)])
        assert chat.requests[row].prompt == said[row] + opening
        assert chat.requests[row].token_ids == by_itself(model, chat.requests[row].prompt, 10)[0]
    check_state(chat)


def test_an_answer_whose_logits_are_nan_ends_and_the_next_turn_is_right(model, monkeypatch):
    monkeypatch.setattr(model, "stop_ids", frozenset())
    chat, passes = qwenlab.Chat(model, SMALL, 2, max_new_tokens=4), []

    def broken(module, inputs, out):
        passes.append(1)
        if len(passes) == 3:
            out.view(2, -1)[0] = float("nan")  # so that the row's keys and memory are NaN as well

    hook = model.model.embed_tokens.register_forward_hook(broken)
    try:
        with pytest.warns(UserWarning, match="^request 0: its logits are NaN after 2 new tokens$"):
            chat.send(["a", "the"])
    finally:
        hook.remove()
    assert [request.finish_reason for request in chat.requests] == ["error", "length"]
    said = chat.token_ids
    for row in (0, 1):
        prompt = SMALL.chat([user(["a", "the"][row])])
        assert said[row] == prompt + by_itself(model, prompt, 4 - 2 * (row == 0))[0]
    chat.send(["b", "b"])
    for row in (0, 1):
        assert chat.requests[row].prompt == said[row] + SMALL.next_turn("b")
        assert chat.requests[row].token_ids == by_itself(model, chat.requests[row].prompt, 4)[0]
    check_state(chat)


# --- What is refused -------------------------------------------------------------------------------------------------


def tensors(state):
    return [state.lengths.clone(), *(t.clone() for layer in state.layers for t in layer.values())]


def test_a_turn_that_does_not_fit_is_refused_and_changes_nothing(model):
    limit = model.config.max_position_embeddings
    chat = qwenlab.Chat(model, SMALL, 2, max_new_tokens=5)
    chat.send(["a", "b"])
    before, said = tensors(chat.state), chat.token_ids
    length = len(said[1] + SMALL.next_turn("c" * limit))
    with pytest.raises(ValueError) as caught:
        chat.send(["a", "c" * limit])
    held = f"conversation 1 would hold {length} tokens with this turn"
    expected = f"{held}: no room for an answer in a context of {limit}"
    assert str(caught.value) == expected
    assert chat.token_ids == said and all(map(torch.equal, before, tensors(chat.state)))
    assert chat.send([None, "c"])[1] is not None

    lone = qwenlab.Chat(model, SMALL)
    with pytest.raises(ValueError, match=r"^conversation 0 would hold"):
        lone.stream("c" * limit)


def test_the_context_ends_an_answer(model, monkeypatch):
    limit = model.config.max_position_embeddings
    monkeypatch.setattr(model, "stop_ids", frozenset())
    chat = qwenlab.Chat(model, SMALL, max_new_tokens=10)
    chat.send(["a"])
    room = limit - len(chat.token_ids[0] + SMALL.next_turn(""))
    chat.send(["c" * (room - 3)])
    assert len(chat.requests[0].token_ids) == 3 and chat.requests[0].finish_reason == "length"
    assert len(chat.token_ids[0]) == limit
    with pytest.raises(ValueError, match="no room"):
        chat.send(["c"])


@pytest.mark.parametrize(
    "texts, complaint",
    [
        ("ab", "a turn got a str, expected a list of 2: a text or None for each conversation"),
        (["a"], "a turn got 1 texts, expected a list of 2: a text or None for each conversation"),
        (["a", 5], "text 1 of the turn is a int, expected a string or None"),
    ],
)
def test_turns_of_another_shape(model, texts, complaint):
    with pytest.raises(ValueError) as caught:
        qwenlab.Chat(model, SMALL, 2).send(texts)
    assert str(caught.value) == complaint


def test_nobody_says_anything(model):
    chat = qwenlab.Chat(model, SMALL, 2)
    assert chat.send([None, None]) == [None, None] and chat.token_ids == [[], []]
    with pytest.raises(
        ValueError, match="stream is for one conversation, this chat has 2: use send"
    ):
        chat.stream("a")


@pytest.mark.parametrize(
    "options, complaint",
    [
        ({"batch_size": 0}, "batch_size is 0, expected a whole number of at least 1"),
        (
            {"max_new_tokens": 0},
            "max_new_tokens of the chat is 0, expected a whole number of at least 1",
        ),
        ({"temperature": -1}, "temperature of the chat is -1, expected 0 or more"),
        ({"top_p": 2}, "top_p of the chat is 2, expected 0 to 1"),
        ({"top_k": 0.5}, "top_k of the chat is 0.5, expected a whole number of at least 0"),
        ({"seed": -1}, "seed is -1, expected a whole number of at least 0"),
        ({"seed": [1, 2]}, "seed has 2 values for 1 prompts"),
        ({"system": 5}, r"messages[0]: content is a int, expected a string"),
    ],
)
def test_a_wrong_option_is_named(model, options, complaint):
    with pytest.raises(ValueError) as caught:
        qwenlab.Chat(model, SMALL, **options)
    assert str(caught.value) == complaint


def test_a_model_without_a_tokenizer_chats_in_no_way(model):
    with pytest.raises(ValueError, match=r"^tokenizer is None, expected the checkpoint's"):
        qwenlab.Chat(model, None)
