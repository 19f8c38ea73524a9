"""How the tiny models are made: traces that add up, a loss on the answer only, the same weights
from the same seed."""

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import train_tiny  # noqa: E402
from tiny_tokenizer import PAD, train_tokenizer  # noqa: E402
from tiny_traces import Dials, completion  # noqa: E402
from tiny_training import TOKENS_A_BATCH, batches, rows, tensors, train  # noqa: E402
from train_tiny import RECIPES  # noqa: E402

from qwenlab.evaluation.arithmetic import problem_stream  # noqa: E402
from qwenlab.evaluation.grading import extract_answer  # noqa: E402


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(seed=0, problems=2000)


def test_traces_without_slips_are_right():
    rng, stream = random.Random(0), problem_stream(0, "train")
    for _ in range(1000):
        problem = next(stream)
        thinking, text = completion(rng, problem, Dials(slip=0, check=0.5, direct=0))
        assert thinking and extract_answer(text) == problem.answer, (problem.question, text)
        steps = text.removeprefix("<think>\n").partition("\n</think>")[0].split("\n")
        assert steps.count("check") <= 1  # two passes without a slip agree
        for step in steps:
            if step != "check":
                left, _, right = step.partition("=")
                assert eval(left) == int(right), text


def test_slips_are_carried_on():
    rng, stream = random.Random(0), problem_stream(0, "train")
    wrong = 0
    for _ in range(2000):
        problem = next(stream)
        wrong += extract_answer(completion(rng, problem, Dials(direct=0))[1]) != problem.answer
    assert 0.03 < wrong / 2000 < 0.12


def test_direct_answers_are_right():
    rng, stream = random.Random(0), problem_stream(0, "train")
    problem = next(stream)
    assert completion(rng, problem, Dials(direct=1)) == (False, f"\\boxed{{{problem.answer}}}")


def test_loss_on_the_answer_only(tokenizer):
    """Targets begin with the answer's first token and end with the stop token; pads and prompt have
    none."""
    stop = tokenizer.token_to_id("<|im_end|>")
    pad = tokenizer.token_to_id(PAD)
    stream = rows(tokenizer, 0, Dials())
    batch = [next(stream) for _ in range(8)]
    input_ids, mask, targets = tensors(batch, pad)
    for row, (ids, prompt) in enumerate(batch):
        answer = targets[row][targets[row] >= 0].tolist()
        assert answer == ids[prompt:] and answer[-1] == stop and stop not in answer[:-1]
        assert input_ids[row][mask[row]].tolist() == ids
        assert targets[row, prompt - 1] == ids[prompt]


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
def test_wrong_arguments(tmp_path, arguments, message, monkeypatch, capsys):
    arguments = [argument.format(folder=tmp_path) for argument in arguments]
    monkeypatch.setattr(sys, "argv", ["train_tiny.py", *arguments])
    with pytest.raises(SystemExit) as end:
        train_tiny.main()
    err = capsys.readouterr().err
    assert end.value.code == 2 and message in err and "Traceback" not in err
    assert not list(tmp_path.iterdir())
