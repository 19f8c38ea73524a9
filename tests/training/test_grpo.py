"""GRPO on models: sampling and training agree, a batch is cut at no cost, what is rewarded becomes
likelier."""

import random
import re
from types import SimpleNamespace

import pytest
import torch
from helpers import PAD, count, random_prompts, with_marks

import qwenlab
from qwenlab.evaluation.problems import Problem, load_problems
from qwenlab.training import rl
from qwenlab.training.rl import (
    accumulate,
    completion,
    grpo,
    problem_order,
    rate_factor,
    rectangle,
)
from qwenlab.training.trainer import Training, TrainingError, last_checkpoint, token_logprobs

SMALL = {
    "lr": 1e-3,
    "num_rollouts": 4,
    "prompts_per_step": 3,
    "batch_size": 8,
    "max_new_tokens": 48,
}


@pytest.fixture
def base():
    return qwenlab.load("tiny-base", torch.float32, "cpu")


@pytest.fixture(scope="module")
def problems():
    return load_problems("tiny-train", 40)


def sampled(model, rows=4, temperature=0.6, seed=0, cap=12):
    """Finished requests for unequal prompts, some of which hold the pad's id and some of whose
    answers were cut off."""
    prompts = random_prompts(random.Random(seed), rows, 20, vocab=302)
    prompts[-1] = [PAD, *prompts[-1]]
    return list(
        qwenlab.generate(
            model, prompts, max_new_tokens=cap, temperature=temperature, seed=seed, stop=range(60)
        )
    )


def test_logprobs_scored_again_are_those_kept_while_sampling(model):
    """Without an update between, the ratio is 1 within 1e-4 on every completion token."""
    kinds = set()
    for seed in range(count(3, 40)):
        requests = sampled(model, seed=seed)
        kinds |= {request.finish_reason for request in requests}
        ids, mask, completions, kept = rectangle(requests, PAD, "cpu")
        with torch.no_grad():
            found = token_logprobs(model, ids, mask, completions, temperature=0.6)
        assert int(completions.sum()) == sum(len(request.logprobs) for request in requests)
        assert ((found - kept).exp() - 1).abs().max() < 1e-4
        wrong = token_logprobs(model, ids, mask, completions, temperature=1.0)
        assert ((wrong - kept).exp() - 1).abs().max() > 1e-2
    assert kinds == {"stop", "length"}


def test_the_rectangle_keeps_the_stop_and_nothing_after_it():
    ends = SimpleNamespace(
        prompt=[1, 2, 3], token_ids=[7, 8], stop_id=PAD, logprobs=[-1.0, -2.0, -3.0]
    )
    cut = SimpleNamespace(prompt=[PAD], token_ids=[9], stop_id=None, logprobs=[-4.0])
    ids, mask, completions, kept = rectangle([ends, cut], PAD, "cpu")
    assert ids.tolist() == [[1, 2, 3, 7, 8, PAD], [PAD] * 5 + [9]]
    assert mask.long().tolist() == [[1] * 6, [0, 0, 0, 0, 1, 1]]
    assert completions.long().tolist() == [[0, 0, 0, 1, 1, 1], [0] * 5 + [1]]
    assert kept.tolist() == [[0, 0, 0, -1, -2, -3], [0] * 5 + [-4]]


def slow_loss(model, answers, how, clip_ratio, kl, reference, cap, temperature):
    """The loss token by token, every row by itself, all its logits at once."""
    rows = []
    for request, advantage in answers:
        ids, said = request.prompt + completion(request), len(request.logprobs)
        logs = (model(torch.tensor([ids]))[0] / temperature).log_softmax(-1)
        frozen = (reference(torch.tensor([ids]))[0] / temperature).log_softmax(-1)
        losses = []
        for place, kept in zip(range(len(ids) - said, len(ids)), request.logprobs, strict=True):
            now, then = logs[place - 1, ids[place]], frozen[place - 1, ids[place]]
            ratio = (now - kept).exp()
            gain = min(
                ratio * advantage,
                max(min(ratio, ratio * 0 + 1 + clip_ratio), 1 - clip_ratio) * advantage,
            )
            losses.append(-gain + kl * ((then - now).exp() - (then - now) - 1))
        rows.append(losses)
    total, tokens = sum(sum(row) for row in rows), sum(map(len, rows))
    if how == "sequence":
        return sum(sum(row) / len(row) for row in rows) / len(rows)
    return total / tokens if how == "token" else total / (len(rows) * cap)


@pytest.mark.parametrize("how", ["token", "sequence", "fixed"])
def test_gradients_are_those_of_one_big_batch(model, how):
    """And those of the slow path: ragged rows, micro-batches of 1, 3 and all, some ratios
    clipped."""
    reference = model
    learner = type(model)(model.config)
    learner.load_state_dict(model.state_dict())
    with torch.no_grad():
        learner.model.embed_tokens.weight.mul_(1.05)  # so that the ratios are not 1
    requests = sampled(model, rows=7)
    answers = [(request, (-1.0) ** i * (i + 1) / 4) for i, request in enumerate(requests)]
    options = {"clip_ratio": 0.2, "kl": 0.3, "temperature": 0.6, "cap": 12, "reference": reference}
    slow = slow_loss(learner, answers, how, **options)
    slow.backward()
    expected = [p.grad for p in learner.parameters()]
    for size in (1, 3, 7):
        learner.zero_grad()
        told = accumulate(learner, answers, PAD, batch_size=size, averaging=how, **options)
        assert told["loss"] == pytest.approx(slow.item(), rel=1e-4) and told["divergence"] > 0
        for parameter, gradient in zip(learner.parameters(), expected, strict=True):
            assert (parameter.grad - gradient).abs().max() <= 1e-4 * max(1, gradient.abs().max())


def test_a_step_makes_the_rewarded_answer_likelier(model):
    learner = type(model)(model.config)
    learner.load_state_dict(model.state_dict())
    good, bad = sampled(model, rows=2)
    ids, mask, completions, _ = rectangle([good, bad], PAD, "cpu")

    def score():
        with torch.no_grad():
            return token_logprobs(learner, ids, mask, completions, temperature=0.6).sum(1)

    before, training = score(), Training(learner, None, lr=1e-4)
    options = {
        "batch_size": 2,
        "temperature": 0.6,
        "averaging": "token",
        "clip_ratio": 0.2,
        "cap": 12,
    }
    told = accumulate(learner, [(good, 1.0), (bad, -1.0)], PAD, **options)
    training.update()
    after = score()
    assert told["ratio"] < 1e-4 and after[0] > before[0] and after[1] < before[1]


def test_what_is_rewarded_grows(base, problems, monkeypatch):
    """A reward that anyone can check: an answer of fewer than 22 tokens."""
    monkeypatch.setattr(
        rl, "reward", lambda tokenizer, request, problem: float(len(request.logprobs) < 22)
    )
    options = SMALL | {"prompts_per_step": 4, "batch_size": 32, "num_rollouts": 8}
    metrics = grpo(*base, problems[:4], steps=12, **options)  # the same in every step
    lengths = [record["length"] for record in metrics]
    assert (
        sum(record["reward"] for record in metrics[-3:])
        > sum(record["reward"] for record in metrics[:3]) + 0.3
    )
    assert sum(lengths[-3:]) < sum(lengths[:3])
    assert not any(parameter.requires_grad for parameter in base[0].parameters())


def test_groups_without_spread_change_nothing(base, problems, tmp_path, monkeypatch):
    monkeypatch.setattr(rl, "reward", lambda *_: 1.0)
    before = [parameter.clone() for parameter in base[0].parameters()]
    metrics = grpo(*base, problems, steps=1, folder=tmp_path / "run", **SMALL)
    assert (
        metrics[0]["silent"] == 1 and metrics[0]["reward"] == 1 and metrics[0]["gradient_norm"] == 0
    )
    assert all(map(torch.equal, before, base[0].parameters()))
    fresh = qwenlab.load("tiny-base", torch.float32, "cpu")
    assert (
        len(grpo(*fresh, problems, steps=2, folder=tmp_path / "run", **SMALL)) == 2
    )  # an optimiser that never moved


def test_metrics_count_what_they_say(base, problems, monkeypatch):
    seen = []
    real = rl.generate
    monkeypatch.setattr(rl, "generate", lambda *a, **k: seen.append(real(*a, **k)) or seen[-1])
    (record,) = grpo(*base, problems, steps=1, **SMALL)
    (result,) = seen
    right = [
        rl.reward(base[1], request, problems[i])
        for request, i in zip(result, asked(40, 3, 4), strict=True)
    ]
    assert record["reward"] == pytest.approx(sum(right) / 12)
    assert record["cut_off"] == sum(request.finish_reason == "length" for request in result) / 12
    assert record["length"] == sum(len(request.logprobs) for request in result) / 12
    assert record["silent"] == sum(sum(right[i : i + 4]) in (0, 4) for i in (0, 4, 8)) / 3
    assert (
        record["ratio"] < 1e-4
        and record["seconds"] >= record["rollout_seconds"] + record["training_seconds"]
    )


def asked(problems, prompts, rollouts):
    return [i for _, i in problem_order(problems, 0, 0, prompts) for _ in range(rollouts)]


def test_rewards_are_the_grader_s(base):
    tokenizer = base[1]

    def one(text, prompt="x"):
        ids = tokenizer.encode(text)
        said = {"token_ids": ids, "logprobs": ids, "finish_reason": "stop", "error": None}
        request = SimpleNamespace(prompt=with_marks(tokenizer, prompt), **said)
        return rl.reward(tokenizer, request, Problem(0, "3 + 4", "7", "0"))

    assert (
        one("\\boxed{5} wrong \\boxed{7}") == 1
        and one("\\boxed{7} so \\boxed{") == 0
        and one("\\boxed{5}") == 0
    )
    assert (
        one("so \\boxed{7}", prompt="a<think>\n") == 0
        and one("so</think>\\boxed{7}", prompt="a<think>\n") == 1
    )
    assert one("so \\boxed{7}", prompt="<think>\n</think>") == 1


def test_the_order_of_problems_follows_from_its_place():
    line = problem_order(5, seed=3, start=0, many=20)
    for epoch in range(4):
        part = line[5 * epoch : 5 * epoch + 5]
        assert {e for e, _ in part} == {epoch} and sorted(i for _, i in part) == list(range(5))
    assert line[:5] != [(0, i) for _, i in line[5:10]]
    for start in range(0, 20, 3):
        assert problem_order(5, 3, start, 3) == line[start : start + 3] or start + 3 > 20
    assert problem_order(5, 4, 0, 20) != line


@pytest.mark.parametrize(
    "changes",
    [
        {"warm_up": 3, "decay_steps": 9},
        {"kl": 0.05, "updates": 2, "averaging": "sequence", "temperature": 0.8},
    ],
)
def test_going_on_is_exact(problems, tmp_path, changes):
    """Two steps, then two more from the checkpoint, are the four steps of one go, bit by bit; and
    so is the seed."""
    results = {}
    for name, stops in {"one go": [4], "two": [2, 4], "again": [4]}.items():
        for steps in stops:
            model, tokenizer = qwenlab.load("tiny-base", torch.float32, "cpu")
            metrics = grpo(
                model, tokenizer, problems, steps=steps, folder=tmp_path / name, **SMALL, **changes
            )
        results[name] = model, [{k: v for k, v in r.items() if "second" not in k} for r in metrics]
        assert last_checkpoint(tmp_path / name).name == "step-000004"
    model, metrics = results["one go"]
    assert any(record["gradient_norm"] for record in metrics)
    if "kl" in changes:
        resumed = [record["divergence"] for record in metrics[2:]]
        assert max(resumed) > 0  # 0 in a step whose groups are all without variance
    for other, records in results.values():
        assert records == metrics and all(map(torch.equal, model.parameters(), other.parameters()))
    loaded, _ = qwenlab.load(last_checkpoint(tmp_path / "two"), torch.float32, "cpu")
    assert all(map(torch.equal, model.parameters(), loaded.parameters()))


def test_the_rate_rises_in_the_warm_up(problems):
    """AdamW's first step moves every weight that has a gradient by about the rate."""
    moved = []
    for warm_up in (0, 10):
        model, tokenizer = qwenlab.load("tiny-base")
        before = [p.clone() for p in model.parameters()]
        grpo(model, tokenizer, problems, steps=1, warm_up=warm_up, **SMALL)
        moved.append(
            max((a - b).abs().max().item() for a, b in zip(model.parameters(), before, strict=True))
        )
    assert moved[0] == pytest.approx(10 * moved[1], rel=1e-3) and moved[0] == pytest.approx(
        SMALL["lr"], rel=0.02
    )


def test_the_rate_falls_to_0():
    shares = [rate_factor(step, warm_up=2, decay_steps=5) for step in range(6)]
    assert shares == pytest.approx([0.5, 0.8, 0.6, 0.4, 0.2, 0.0])
    assert [rate_factor(step, 2, None) for step in range(4)] == [0.5, 1, 1, 1]


def test_the_fall_moves_the_weights_less(problems):
    """AdamW's second step moves a weight by about the rate, as the first does."""
    moved = []
    for decay_steps in (None, 2):
        model, tokenizer = qwenlab.load("tiny-base")
        grpo(model, tokenizer, problems, steps=2, decay_steps=decay_steps, **SMALL)
        moved.append([p.detach().clone() for p in model.parameters()])
    start = list(qwenlab.load("tiny-base")[0].parameters())
    far, near = (
        max((a - b).abs().max().item() for a, b in zip(weights, start, strict=True))
        for weights in moved
    )
    assert near < 0.9 * far


def test_another_seed_samples_other_answers(problems):
    runs = [
        grpo(*qwenlab.load("tiny-base"), problems, steps=1, seed=seed, **SMALL) for seed in (0, 1)
    ]
    assert runs[0][0]["length"] != runs[1][0]["length"]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"steps": 0}, "steps is 0"),
        ({"num_rollouts": 1}, "num_rollouts is 1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"prompts_per_step": 0}, "prompts_per_step is 0"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"updates": 0}, "updates is 0"),
        ({"warm_up": -1}, "warm_up is -1"),
        ({"decay_steps": 0}, "decay_steps is 0"),
        ({"steps": 3, "decay_steps": 2}, "steps is 3, expected at most decay_steps, 2"),
        ({"save_every": 0}, "save_every is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"temperature": 0}, "temperature is 0"),
        ({"lr": 0}, "lr is 0"),
        ({"minutes": 0}, "minutes is 0"),
        ({"clip": 0}, "clip is 0, expected a number above 0"),
        ({"clip": None}, "clip is None, expected a number above 0"),
        ({"kl": -0.1}, "kl is -0.1, expected a number of at least 0 and at most 1000"),
        ({"lr": 2}, "lr is 2, expected a number above 0 and at most 1"),
        (
            {"temperature": 1e-9},
            "temperature is 1e-09, expected a number above 0.001 and at most 1000",
        ),
        (
            {"steps": 10**12},
            "steps is 1000000000000, expected a whole number of at least 1 and at most",
        ),
        ({"num_rollouts": 10**12}, "num_rollouts is 1000000000000, expected"),
        ({"prompts_per_step": 10**12}, "prompts_per_step is 1000000000000, expected"),
        ({"batch_size": 10**30}, "batch_size is 10000000000000000000000"),
        ({"steps": 2.0}, "steps is 2.0, expected a whole number"),
        ({"updates": True}, "updates is True, expected a whole number"),
        ({"plain": "no"}, "plain is 'no', expected True or False"),
        ({"thinking": None}, "thinking is None, expected True or False"),
        ({"averaging": "mean"}, "averaging is 'mean', expected one of token, sequence, fixed"),
    ],
)
def test_wrong_options_are_named(base, problems, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        grpo(*base, problems, folder=tmp_path / "run", **{"steps": 1, **SMALL, **changes})
    assert not (tmp_path / "run").exists()


def test_a_model_or_problems_that_can_not_be_trained_on(base, problems, tmp_path):
    with pytest.raises(ValueError, match="no problem"):
        grpo(*base, [], steps=1, **SMALL)
    base[0].bfloat16()
    with pytest.raises(TrainingError, match="bfloat16, expected"):
        grpo(*base, problems, steps=1, folder=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["lr", "clip_ratio", "clip", "kl", "temperature", "minutes"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 1e300, True, "0.5"])
def test_options_that_would_spoil_the_weights_are_refused(base, problems, tmp_path, name, value):
    with pytest.raises(ValueError, match=re.escape(f"{name} is {value!r}, expected a number ")):
        grpo(
            *base, problems, **{"steps": 1, "lr": 1e-3, "folder": tmp_path / "run"} | {name: value}
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore:request .+ its logits are NaN")
def test_a_model_whose_logits_are_nan_is_not_trained_on(base, problems):
    model, tokenizer = base
    before = model.model.norm.weight.clone()
    hook = model.model.register_forward_hook(lambda module, inputs, out: out.fill_(float("nan")))
    try:
        with pytest.raises(
            TrainingError, match=r"^step 0: request 0: its logits are NaN after 0 new tokens$"
        ):
            grpo(model, tokenizer, problems, steps=1, **SMALL)
    finally:
        hook.remove()
    assert torch.equal(model.model.norm.weight, before)
