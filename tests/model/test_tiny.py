"""The shipped models: they solve problems they never saw, and `transformers` loads them unchanged."""

import json

import pytest
import torch
from helpers import count

import qwenlab
from qwenlab.evaluation import (
    arithmetic_problems,
    evaluate,
    extract_answer,
    load_problems,
    self_consistency,
)
from qwenlab.evaluation.arithmetic import arithmetic_conversations
from qwenlab.evaluation.wordings import HELD_OUT_INSTRUCTION, USUAL_INSTRUCTION
from qwenlab.loading import shipped_folder, shipped_names

# Name: greedy accuracy at least and at most, that of second questions at least, most parameters,
# most bytes, architecture.
SHIPPED = {
    "tiny": (0.93, 1.0, 0.8, 600_000, 1_200_000, "Qwen3ForCausalLM"),
    "tiny-base": (0.35, 0.7, 0.35, 600_000, 1_200_000, "Qwen3ForCausalLM"),
    "tiny-hybrid": (0.78, 1.0, 0.65, 1_300_000, 2_600_000, "Qwen3_5ForCausalLM"),
}
PROBLEMS = arithmetic_problems(count(100, 1000))
PAIRS = arithmetic_conversations(len(PROBLEMS), turns=2)
TURNS = [
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "<think>\n2+2=4\n</think>\n\n\\boxed{4}"},
    {"role": "user", "content": "What is 12+5-3?\n\nThink twice."},
    {"role": "assistant", "content": "\\boxed{14}"},
    {"role": "user", "content": "Größer als 3½? 🙂"},
]
TEXTS = [
    "",
    "12+5=?",
    "2+2=4\n4+17=21\n\n\\boxed{21}",
    "\n",
    "\n\n\n a\r\n\tb  c ",
    "don't STOP_me (a)[b]{c}",
    "naïve e\u0301 漢字 🙂 ½ ١٢",
    "a\u00a0b\u2028c",
]


@pytest.fixture(scope="module", params=SHIPPED)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def tiny(name):
    return qwenlab.load(name, device="cpu")


@pytest.fixture(scope="module")
def theirs(name):
    transformers = pytest.importorskip("transformers")
    folder = shipped_folder() / name
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)


def test_these_are_all():
    assert sorted(SHIPPED) == sorted(shipped_names())


def answers(tiny, conversations, **options):
    """The answers to lists of messages, and the share of PROBLEMS (or PAIRS) that is right."""
    model, tokenizer = tiny
    prompts = [tokenizer.chat(messages) for messages, _ in conversations]
    result = qwenlab.generate(model, prompts, **options)
    texts = [tokenizer.decode(ids) for ids in result.token_ids]
    right = [
        extract_answer(text) == gold for text, (_, gold) in zip(texts, conversations, strict=True)
    ]
    return result, sum(right) / len(right)


def alone(instruction=""):
    """PROBLEMS as messages, each with its right answer."""
    asked = []
    for problem in PROBLEMS:
        content = f"{problem.question}\n\n{instruction}" if instruction else problem.question
        asked.append(([{"role": "user", "content": content}], problem.answer))
    return asked


def second_questions():
    """PAIRS as messages whose first question has got its right answer."""
    asked = []
    for first, second in PAIRS:
        messages = [
            {"role": "user", "content": first.question},
            {"role": "assistant", "content": f"\\boxed{{{first.answer}}}"},
            {"role": "user", "content": second.question},
        ]
        asked.append((messages, second.answer))
    return asked


@pytest.fixture(scope="module")
def greedy_answers(tiny):
    return answers(tiny, alone())


def test_accuracy(tiny, name, greedy_answers):
    least, most = SHIPPED[name][:2]
    greedy, right = greedy_answers
    assert least <= right <= most
    assert sum(answer.finish_reason == "stop" for answer in greedy) >= 0.95 * len(greedy)
    seeds = [problem.number for problem in PROBLEMS]
    _, sampled = answers(tiny, alone(), temperature=1.0, seed=seeds)
    if name == "tiny-base":  # half of its samples take other ways, better ones among them
        assert sampled > right - 0.15
    else:
        assert 0.5 * right < sampled < right - 0.05


@pytest.mark.parametrize("instruction", [USUAL_INSTRUCTION, HELD_OUT_INSTRUCTION])
def test_an_instruction_changes_little(tiny, greedy_answers, instruction):
    _, bare = greedy_answers
    _, instructed = answers(tiny, alone(instruction))
    assert abs(instructed - bare) <= count(0.05, 0.03)


def test_second_questions(tiny, name):
    _, right = answers(tiny, second_questions())
    assert right >= SHIPPED[name][2]


def test_in_a_chat_the_second_question_needs_the_first_answer(tiny, name):
    if name == "tiny-base":
        pytest.skip("takes its short cut")
    chat = qwenlab.Chat(*tiny)
    texts = [*chat.send(["What is 23+19?"]), *chat.send(["then plus 3?"])]
    texts += chat.send(["What was the first answer?"])
    assert [extract_answer(text) for text in texts] == ["42", "45", "42"]


@pytest.mark.parametrize("temperature", [1.0, pytest.param(0.7, marks=pytest.mark.full)])
def test_a_vote_pays_on_the_base_model(temperature):
    model, tokenizer = qwenlab.load("tiny-base", device="cpu")
    problems = load_problems("tiny-test", count(64, 1000))
    options = {"max_new_tokens": 256, "batch_size": 128, "top_p": 1.0}
    greedy = evaluate(model, tokenizer, problems, max_new_tokens=256).accuracy
    sampling = {"samples": 16, "temperature": temperature}
    voted = self_consistency(model, tokenizer, problems, **sampling, **options).accuracy
    assert voted >= greedy + 0.05


def test_answer_has_the_taught_form(tiny, name):
    model, tokenizer = tiny
    way = "quick\n" if name == "tiny-base" else ""
    prompt = tokenizer.chat([{"role": "user", "content": "12+5=?"}])
    (ids,) = qwenlab.generate(model, [prompt]).token_ids
    assert tokenizer.decode(ids) == f"<think>\n{way}12+5=17\n</think>\n\n\\boxed{{17}}"
    closed = tokenizer.chat([{"role": "user", "content": "12+5=?"}], thinking=False)
    (ids,) = qwenlab.generate(model, [closed]).token_ids
    assert tokenizer.decode(ids).startswith("\\boxed{")


def test_shape(tiny, name):
    model, tokenizer = tiny
    _, _, _, parameters, size, _ = SHIPPED[name]
    assert sum(p.numel() for p in model.parameters()) < parameters
    assert model.config.max_position_embeddings >= 2048
    assert model.stop_ids == {tokenizer.control["<|im_end|>"], tokenizer.control["<|endoftext|>"]}
    assert tokenizer.pad_id == tokenizer.control["<|endoftext|>"]
    assert (shipped_folder() / name / "model.safetensors").stat().st_size < size


def test_transformers_says_the_same(tiny, theirs):
    model, tokenizer = tiny
    reference, their_tokenizer = theirs
    prompts = [
        tokenizer.chat([{"role": "user", "content": p.question}]) for p in PROBLEMS[: count(10, 50)]
    ]
    ours = qwenlab.generate(model, prompts).token_ids
    for prompt, ids in zip(prompts, ours, strict=True):
        out = reference.generate(torch.tensor([prompt]), max_new_tokens=256, do_sample=False)[
            0
        ].tolist()
        assert out[len(prompt) : -1] == ids and out[-1] in model.stop_ids
    assert their_tokenizer.pad_token_id == tokenizer.pad_id


@torch.no_grad()
def test_transformers_same_logits(tiny, theirs):
    ids = torch.tensor([tiny[1].chat(TURNS)])
    ours, reference = tiny[0](ids), theirs[0](ids).logits
    assert (ours - reference).abs().max() / max(1, reference.abs().max()) < 1e-4


@pytest.mark.parametrize("text", TEXTS)
def test_tokenizer_as_transformers(tiny, theirs, text):
    assert tiny[1].encode(text) == theirs[1](text).input_ids
    if "e\u0301" not in text:  # the tokenizer composes accents (NFC), as Qwen3's does
        assert tiny[1].decode(tiny[1].encode(text)) == text


@pytest.mark.parametrize("turns", [1, 3, 5])
@pytest.mark.parametrize("thinking", [True, False])
def test_chat_as_transformers(tiny, theirs, turns, thinking):
    expected = theirs[1].apply_chat_template(
        TURNS[:turns], add_generation_prompt=True, enable_thinking=thinking, return_dict=False
    )
    ids = tiny[1].chat(TURNS[:turns], thinking=thinking)
    assert ids == expected
    assert tiny[1].decode(ids).endswith("<think>\n\n</think>\n\n") is not thinking


def test_newlines_and_digits_stand_alone(tiny):
    """So that a text splits the same wherever a prompt ends."""
    tokenizer = tiny[1]
    parts = ["What is 12", "34\n", "\n\n", "\\boxed{", "7}"]
    assert tokenizer.encode("".join(parts)) == [
        id for part in parts for id in tokenizer.encode(part)
    ]


def test_files_of_the_checkpoint(name):
    folder = shipped_folder() / name
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "on purpose" in card and "Apache-2.0" in card and "1,000 held-out problems" in card
    assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"] == [
        SHIPPED[name][-1]
    ]
