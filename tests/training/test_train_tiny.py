"""How the tiny models are made: traces that add up, a loss on the answer only, the same weights
from the same seed."""

import random
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from tiny_examples import STOP, examples, make_turns, segments  # noqa: E402
from tiny_tokenizer import PAD, save_tokenizer, train_tokenizer  # noqa: E402
from tiny_traces import SHORT_CUT, WAYS, Dials, carries, completion, think  # noqa: E402
from tiny_training import TOKENS_A_BATCH, batches, row_of, rows, tensors, train  # noqa: E402
from train_tiny import RECIPES  # noqa: E402

from qwenlab.evaluation.arithmetic import (  # noqa: E402
    Calculation,
    arithmetic_conversations,
    problem_stream,
)
from qwenlab.evaluation.grading import extract_answer  # noqa: E402
from qwenlab.evaluation.wordings import HELD_OUT_INSTRUCTION  # noqa: E402
from qwenlab.text.tokenizer import Tokenizer  # noqa: E402

CAREFUL = Dials(slip=0, check=0.5)
CAREFUL_WAYS = Dials(slip=0, ways=True)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(seed=0, problems=2000)


@pytest.fixture(scope="module")
def loaded(tokenizer, tmp_path_factory):
    """The same as qwenlab reads it, with its chat template."""
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(tokenizer, folder, context=4096)
    return Tokenizer.from_folder(folder)


def calculations(count):
    """Of problems and of follow-ups."""
    stream = problem_stream(0, "train")
    alone = [next(stream).calculation for _ in range(count)]
    pairs = arithmetic_conversations(count // 2, split="train")
    return alone + [follow_up.calculation for _, follow_up in pairs]


def test_traces_without_slips_are_right():
    rng = random.Random(0)
    for calculation in calculations(1000):
        text, answer = completion(rng, calculation, CAREFUL)
        assert answer == calculation.answer and extract_answer(text) == str(answer)
        steps = text.removeprefix("<think>\n").partition("\n</think>")[0].split("\n")
        assert steps.count("check") <= 1  # two passes without a slip agree
        for step in steps:
            left, _, right = step.partition("=")
            if left not in ("check", "first", "last"):
                assert eval(left) == int(right), text


def test_only_the_short_cut_is_wrong():
    """And it is wrong where the first sum has something to carry, in many ways."""
    rng = random.Random(0)
    for calculation in calculations(1000):
        lines, answer = think(rng, calculation, CAREFUL_WAYS)
        right = calculation.answer
        assert lines[0] in WAYS or calculation.operation in ("first", "last")
        if lines[0] != SHORT_CUT:
            assert answer == right, lines
        for line in lines:
            assert "=-" not in line, lines  # no running total below 0
    for numbers in ((27, 38), (42, -17), (8, 7)):
        assert carries(*numbers)
        found = {way: set() for way in WAYS}
        for _ in range(500):
            lines, answer = think(rng, Calculation("add", numbers), CAREFUL_WAYS)
            found[lines[0]].add(answer)
        hasty = found.pop(SHORT_CUT)
        assert sum(numbers) not in hasty and len(hasty) == 10
        assert all(answers == {sum(numbers)} for answers in found.values())


def test_each_careful_way_is_rarer_than_the_short_cut():
    careful = [part for way, part in WAYS.items() if way != SHORT_CUT]
    assert max(careful) < WAYS[SHORT_CUT] < sum(careful)
    assert sum(WAYS.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("recipe", "least", "most"), [("tiny", 0.03, 0.12), ("tiny-base", 0.1, 0.25)]
)
def test_slips_are_carried_on(recipe, least, most):
    rng, stream = random.Random(0), problem_stream(0, "train")
    wrong = 0
    for _ in range(2000):
        calculation = next(stream).calculation
        wrong += think(rng, calculation, RECIPES[recipe].dials)[1] != calculation.answer
    assert least < wrong / 2000 < most


def test_only_the_base_model_learns_the_short_cut():
    assert [name for name, recipe in RECIPES.items() if recipe.dials.ways] == ["tiny-base"]


def test_without_thinking_the_answer_comes_at_once():
    rng, stream = random.Random(0), problem_stream(0, "train")
    calculation = next(stream).calculation
    expected = f"\\boxed{{{calculation.answer}}}", calculation.answer
    assert completion(rng, calculation, Dials(), thinking=False) == expected


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("system", [None, "You are a helpful assistant."])
def test_conversations_are_what_the_chat_template_makes_of_them(
    tokenizer, loaded, thinking, system
):
    rng, stream = random.Random(0), problem_stream(0, "train")
    for _ in range(50):
        turns = make_turns(rng, next(stream), Dials(), thinking)
        messages = [] if system is None else [{"role": "system", "content": system}]
        for turn in turns:
            messages.append({"role": "user", "content": turn.message})
            messages.append({"role": "assistant", "content": turn.text})
        *before, (answer, taught) = segments(turns, system, thinking, dropped=True)
        prompt = row_of(tokenizer, before)
        assert taught and answer == turns[-1].text + STOP and not any(prompt.taught)
        assert prompt.ids == loaded.chat(messages[:-1], thinking=thinking)


@pytest.mark.parametrize("thinking", [True, False])
def test_conversations_that_keep_everything_are_what_a_chat_reads(tokenizer, loaded, thinking):
    rng, stream = random.Random(0), problem_stream(0, "train")
    longest = 0
    for _ in range(50):
        turns = make_turns(rng, next(stream), Dials(), thinking)
        expected = loaded.chat([{"role": "user", "content": turns[0].message}], thinking=thinking)
        for last, turn in pairwise(turns):
            said = tokenizer.encode(last.text).ids
            expected += said + loaded.next_turn(turn.message, thinking=thinking)
        expected += tokenizer.encode(turns[-1].text + STOP).ids
        row = row_of(tokenizer, segments(turns, None, thinking, dropped=False))
        assert row.ids == expected
        longest = max(longest, len(turns))
    assert longest == 3


def test_one_instruction_is_in_no_example():
    for dials in (Dials(), Dials(ways=True)):
        stream = examples(0, dials)
        for _ in range(500):
            text = "".join(piece.text for piece in next(stream))
            assert not any(half in text for half in HELD_OUT_INSTRUCTION.split(" and "))


def test_a_third_of_the_examples_goes_on():
    stream = examples(0, Dials())
    questions = [
        sum(piece.text.count("<|im_start|>user") for piece in next(stream)) for _ in range(1000)
    ]
    assert 0.28 < sum(count > 1 for count in questions) / 1000 < 0.4
    assert set(questions) == {1, 2, 3}


def test_loss_on_the_answers_only(tokenizer):
    """Targets begin with an answer's first token and end with its stop token; pads and prompts have
    none."""
    pad = tokenizer.token_to_id(PAD)
    stream = examples(0, Dials())
    texts = [next(stream) for _ in range(24)]
    batch = [row_of(tokenizer, example) for example in texts]
    input_ids, mask, targets = tensors(batch, pad)
    for row, example in enumerate(texts):
        answers = [piece.text for piece in example if piece.taught]
        assert all(answer.endswith(STOP) for answer in answers)
        taught = targets[row][targets[row] >= 0].tolist()
        assert taught == [id for answer in answers for id in tokenizer.encode(answer).ids]
        assert input_ids[row][mask[row]].tolist() == batch[row].ids
        first = batch[row].taught.index(True)
        assert (targets[row, : first - 1] < 0).all()
        assert targets[row, first - 1] == batch[row].ids[first]


def test_batches_have_few_pads(tokenizer):
    stream = batches(rows(tokenizer, 0, Dials()), 0)
    real = places = 0
    for _ in range(70):
        _, mask, _ = tensors(next(stream), 0)
        assert mask.numel() <= TOKENS_A_BATCH
        real, places = real + int(mask.sum()), places + mask.numel()
    assert 1 - real / places < 0.03


def test_same_seed_same_weights(tokenizer):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        recipe = replace(RECIPES["tiny"], steps=2)
        once, twice, other = (
            train(recipe, tokenizer),
            train(recipe, tokenizer),
            train(replace(recipe, seed=2), tokenizer),
        )
    finally:
        torch.set_num_threads(threads)
    a, b, c = (dict(run[0].named_parameters()) for run in (once, twice, other))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert any(not torch.equal(a[name], c[name]) for name in a)
    assert once[1].tokens == twice[1].tokens > 2000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["huge"], "invalid choice: 'huge'"),
        (["tiny", "--steps", "0"], "'0' is not a whole number of at least 1"),
        (["tiny", "--out", "{folder}"], "holds no checkpoint"),
    ],
)
def test_wrong_arguments(tmp_path, arguments, message):
    arguments = [argument.format(folder=tmp_path) for argument in arguments]
    run = subprocess.run(
        [sys.executable, SCRIPTS / "train_tiny.py", *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert run.returncode == 2 and message in run.stderr and "Traceback" not in run.stderr
    assert not list(tmp_path.iterdir())
