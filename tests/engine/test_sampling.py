"""Sampling: vectorised against the definition, one row at a time; each request with its own stream."""

import math
import random

import numpy as np
import pytest
import torch
from helpers import alone_logits, count, random_prompts

import qwenlab
from qwenlab.engine.request import Request, SamplingParams
from qwenlab.engine.sampling import (
    inverse_cdf,
    logprobs_of,
    most_probable,
    penalise,
    sample,
    uniform,
)


def request(index=0, prompt=(1,), **options):
    return Request(index, list(prompt), params=SamplingParams(**options), rng_key=(3, index, 0))


def slow_kept(logits, temperature, top_k, top_p):
    """The definition: ids from the most probable down, the lower id first in a tie."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    order = order[: top_k or len(logits)]
    weights = [math.exp((logits[i] - logits[order[0]]) / temperature) for i in order]
    kept, mass = [], 0.0
    for i, weight in zip(order, weights, strict=True):
        if kept and mass >= top_p and top_p < 1:
            break
        kept.append(i)
        mass += weight / sum(weights)
    return kept


@pytest.mark.parametrize("seed", range(count(20, 200)))
def test_kept_ids_are_the_definition(seed):
    rng = random.Random(seed)
    rows, size = rng.randint(1, 6), rng.choice([3, 17, 100])
    logits = torch.tensor(
        [[rng.choice([rng.uniform(-4, 4), 1.0]) for _ in range(size)] for _ in range(rows)]
    )
    requests = [
        request(
            row,
            temperature=rng.choice([0.3, 1.0, 2.0]),
            top_k=rng.choice([0, 1, 2, 5, 500]),
            top_p=rng.choice([0.0, 1e-4, 0.33, 0.9, 1.0]),
        )
        for row in range(rows)
    ]
    scaled = (logits - logits.amax(-1, keepdim=True)) / torch.tensor(
        [[r.params.temperature] for r in requests]
    )
    kept = most_probable(scaled, requests)
    for row, r in enumerate(requests):
        assert kept[row].nonzero()[:, 0].tolist() == sorted(
            slow_kept(logits[row].tolist(), r.params.temperature, r.params.top_k, r.params.top_p)
        )


def test_top_p_ends_with_the_id_that_reaches_it():
    """Exactly half is reached by the first of two equal ids, three quarters by the third of four."""
    for size, top_p, kept in [(2, 0.5, 1), (2, 0.51, 2), (4, 0.75, 3), (4, 0.2, 1)]:
        assert (
            most_probable(torch.zeros(1, size), [request(temperature=1.0, top_p=top_p)]).sum()
            == kept
        )


def test_the_most_probable_id_is_sampled_at_the_limits_also_from_bfloat16():
    logits = torch.tensor([[10, 0, 0]], dtype=torch.bfloat16).float()
    for options in ({"top_p": 1e-4}, {"top_p": 0.0}):
        assert sample(logits, [request(temperature=1.0, **options)]).tolist() == [0]
    for temperature in (0, 1e-4, 1e-300):
        both = [request(temperature=temperature), request(1, temperature=1.0, top_k=1)]
        ids = sample(logits.expand(2, -1), both)
        assert (
            ids.tolist() == [0, 0]
            and torch.isfinite(logprobs_of(logits.expand(2, -1), ids, both)).all()
        )
    tied = torch.tensor([[1.0, 7.0, 7.0]])
    assert {int(sample(tied, [request(i, temperature=1.0, top_p=0.0)])) for i in range(20)} == {1}


def test_the_penalty_divides_positive_and_multiplies_negative_logits():
    """Of ids that the row has seen; where none is asked for, nothing is copied."""
    logits = torch.tensor([[2.0, -2.0, 5.0]])
    assert penalise(logits, [request(prompt=[0, 1], repetition_penalty=2.0)]).tolist() == [
        [1.0, -4.0, 5.0]
    ]
    assert penalise(logits, [request(prompt=[0, 1])]) is logits


def test_pads_are_never_seen(dense):
    """The pad of left_pad is id 0: a penalty must not count it for a short row."""
    prompts = [[5], [9, 8, 7, 6, 5, 4]]
    alone = qwenlab.generate(dense, prompts[:1], max_new_tokens=8, stop=(), repetition_penalty=1.8)
    assert (
        qwenlab.generate(
            dense, prompts, max_new_tokens=8, stop=(), repetition_penalty=1.8
        ).token_ids[0]
        == alone.token_ids[0]
    )
    seen = []

    def always_33(logits, requests):
        ones = torch.ones(len(requests), 320)
        seen.append([row.nonzero()[:, 0].tolist() for row in penalise(ones, requests) != 1])
        return torch.full((len(requests),), 33)

    qwenlab.generate(
        dense, prompts, max_new_tokens=3, stop=(), repetition_penalty=2.0, sampler=always_33
    )
    assert seen == [
        [[5], [4, 5, 6, 7, 8, 9]],
        [[5, 33], [4, 5, 6, 7, 8, 9, 33]],
        [[5, 33], [4, 5, 6, 7, 8, 9, 33]],
    ]


def test_inverse_cdf_never_picks_the_impossible():
    probabilities = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]])
    for u, expected in [(0.0, 1), (0.2499, 1), (0.25, 3), (0.9999999999999999, 3)]:
        assert inverse_cdf(probabilities, torch.tensor([u], dtype=torch.float64)).tolist() == [
            expected
        ]


def test_draws_follow_the_distribution():
    logits = torch.tensor([[1.0, 0.0, -1.0, 0.5]])
    n = 4000
    ids = sample(logits.expand(n, -1), [request(i, temperature=0.7) for i in range(n)])
    share = torch.bincount(ids, minlength=4) / n
    expected = (logits[0] / 0.7).softmax(-1)
    # five standard deviations of a share
    assert ((share - expected).abs() < 5 * (expected * (1 - expected) / n).sqrt()).all()


def test_a_stream_is_the_requests_own(dense):
    """Seeds: (s, i, k) for one seed, (seeds[i], 0, k) for a list; neighbours, order and filters
    change nothing."""
    rng = random.Random(5)
    prompts = random_prompts(rng, 4, 20)
    options = {"max_new_tokens": 12, "stop": (), "temperature": 1.0}
    together = qwenlab.generate(dense, prompts, n=2, seed=7, **options)
    again = qwenlab.generate(dense, prompts, n=2, seed=7, strategy="sequential", **options)
    assert together.token_ids == again.token_ids
    assert together.token_ids[0] != together.token_ids[1], "two samples of one prompt"
    assert together.token_ids != qwenlab.generate(dense, prompts, n=2, seed=8, **options).token_ids
    twice = qwenlab.generate(dense, [prompts[0]] * 2, seed=7, **options).token_ids
    assert twice[0] != twice[1], "the same prompt asked twice"
    listed = qwenlab.generate(dense, prompts, n=2, seed=[11, 12, 13, 14], **options)
    alone = qwenlab.generate(dense, [prompts[2]], n=2, seed=[13], **options)
    assert listed.token_ids[4:6] == alone.token_ids
    filtered = {**options, "top_k": [0, 3, 0, 5], "top_p": [1.0, 1.0, 1.0, 0.5]}
    assert (
        qwenlab.generate(dense, prompts, n=2, seed=7, **filtered).token_ids[0]
        == together.token_ids[0]
    )


def test_large_seeds_do_not_collide():
    """A seed of 2^32 must not be read as seed 0 of another request."""
    streams = [(2**32, 0, 0), (0, 1, 0), (0, 0, 1)]
    assert len({uniform(stream, 0) for stream in streams}) == 3


@pytest.mark.parametrize("place", [0, 1, 63, 64, 65, 200])
def test_a_number_belongs_to_its_place_in_the_stream(place):
    """Whatever was drawn before: also the first that is asked for may be the 200th."""
    generator = np.random.Generator(
        np.random.PCG64(np.random.SeedSequence(9, spawn_key=(place, 2)))
    )
    assert uniform((9, place, 2), place) == generator.random(place + 1)[place]


def test_logprobs_are_of_the_whole_distribution(dense):
    """softmax(logits / temperature) after the penalty and before top-k and top-p; temperature 1
    where greedy."""
    prompt = [3, 1, 4, 1, 5]
    for temperature in (0.0, 0.6):
        result = qwenlab.generate(
            dense, [prompt], max_new_tokens=6, stop=(), temperature=temperature, top_k=3
        )[0]
        logits = dense(torch.tensor([prompt + result.token_ids]))[0, 4:-1]
        expected = (
            (logits / (temperature or 1.0))
            .log_softmax(-1)
            .gather(1, torch.tensor(result.token_ids)[:, None])[:, 0]
        )
        assert np.allclose(result.logprobs, expected.tolist(), atol=1e-4)


def slow_answer(model, prompt, cap, stop, temperature, top_k, top_p, penalty, stream):
    """One request alone, by the definition: whole rows read again, in float64, one id after the
    other."""
    seed, *key = stream
    uniforms = (
        np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))
        .random(cap)
        .tolist()
    )
    ids, logprobs = list(prompt), []
    for number in uniforms:
        logits = alone_logits(model, ids)[-1].double().tolist()
        for seen in set(ids):
            logits[seen] = logits[seen] / penalty if logits[seen] > 0 else logits[seen] * penalty
        scaled = torch.tensor(logits, dtype=torch.float64) / (temperature or 1.0)
        token_id = int(scaled.argmax())
        if temperature:
            kept = slow_kept(logits, temperature, top_k, top_p)
            line = (
                torch.zeros_like(scaled)
                .index_put((torch.tensor(kept),), scaled[kept].softmax(-1))
                .cumsum(-1)
            )
            token_id = int(torch.searchsorted(line, number * float(line[-1]), right=True))
        logprobs.append(float(scaled.log_softmax(-1)[token_id]))
        if token_id in stop:
            return ids[len(prompt) :], token_id, logprobs
        ids.append(token_id)
    return ids[len(prompt) :], None, logprobs


@pytest.mark.parametrize("seed", range(count(6, 60)))
def test_every_setting_at_once_is_the_definition(dense, seed):
    """Ragged prompts, every option one a prompt, any strategy: ids, ends and log-probabilities as
    worked out alone."""
    rng = random.Random(seed)
    prompts, n = random_prompts(rng, rng.randint(2, 5), 20), rng.choice([1, 2])
    options = {
        "max_new_tokens": [rng.choice([1, 2, 8]) for _ in prompts],
        "stop": [rng.choice([(), range(0, 320, 9)]) for _ in prompts],
        "temperature": [rng.choice([0.0, 0.6, 1.0, 2.0]) for _ in prompts],
        "top_k": [rng.choice([0, 1, 5, 400]) for _ in prompts],
        "top_p": [rng.choice([1.0, 0.9, 0.5, 0.0]) for _ in prompts],
        "repetition_penalty": [rng.choice([1.0, 1.3, 0.8]) for _ in prompts],
    }
    seeds = rng.choice([rng.randrange(99), [rng.randrange(2**40) for _ in prompts]])
    strategy, slots = (
        rng.choice(["sequential", "static", "early-stop", "continuous"]),
        rng.choice([2, 3, 64]),
    )
    result = qwenlab.generate(
        dense, prompts, n=n, seed=seeds, strategy=strategy, slots=slots, **options
    )
    for i, prompt in enumerate(prompts):
        for k in range(n):
            stream = (seeds[i], 0, k) if isinstance(seeds, list) else (seeds, i, k)
            own = [values[i] for values in options.values()]
            token_ids, stop_id, logprobs = slow_answer(dense, prompt, *own, stream)
            got = result[i * n + k]
            assert (got.token_ids, got.stop_id) == (token_ids, stop_id)
            assert got.logprobs == pytest.approx(logprobs, abs=1e-4)


def test_own_sampler_takes_part(dense):
    shapes = []

    def second_best(logits, requests):
        shapes.append((logits.shape, logits.dtype, [r.index for r in requests]))
        return logits.topk(2).indices[:, 1]

    result = qwenlab.generate(dense, [[1, 2], [3]], max_new_tokens=2, stop=(), sampler=second_best)
    assert shapes[0] == (torch.Size([2, 320]), torch.float32, [0, 1])
    assert result.token_ids[1][0] == int(dense(torch.tensor([[3]]))[0, -1].topk(2).indices[1])


@pytest.mark.parametrize(
    ("sampler", "given"),
    [
        (lambda logits, requests: None, "None"),
        (lambda logits, requests: [1, 2], "[1, 2]"),
        (lambda logits, requests: logits.argmax(-1, keepdim=True), "tensor([["),
        (lambda logits, requests: logits.argmax(-1)[:1], "tensor(["),
        (
            lambda logits, requests: torch.tensor([1, 2], dtype=torch.int32),
            "tensor([1, 2], dtype=torch.int32)",
        ),
        (lambda logits, requests: logits.amax(-1), "tensor(["),
        (lambda logits, requests: torch.tensor([5, 320]), "tensor([ 5, 320])"),
        (lambda logits, requests: torch.tensor([-1, 5]), "tensor([-1, 5])"),
    ],
)
def test_a_wrong_sampler_is_told_what_was_expected(dense, sampler, given):
    with pytest.raises(ValueError) as caught:
        qwenlab.generate(dense, [[1], [2]], sampler=sampler)
    text = str(caught.value)
    assert text.startswith(f"the sampler gave {given}") and "\n" not in text
    assert text.endswith(", expected ids (2,) int64 within 0..319")


def test_a_sampler_may_scribble_on_its_logits(dense):
    """The log-probabilities are of the model's distribution, not of what a sampler made of it."""

    def all_but_the_best(logits, requests):
        kept.append(logits)
        logits.scatter_(1, logits.argmax(-1, keepdim=True), float("-inf"))
        return logits.argmax(-1)

    kept = []

    result = qwenlab.generate(dense, [[1, 2]], max_new_tokens=1, stop=(), sampler=all_but_the_best)[
        0
    ]
    expected = dense(torch.tensor([[1, 2]]))[0, -1].log_softmax(-1).topk(2)
    assert result.token_ids == [int(expected.indices[1])]
    assert result.logprobs == pytest.approx([float(expected.values[1])], abs=1e-5)
    kept[0][0, 0] = 5  # and what it kept is a tensor like any other
    (kept[0] * torch.ones(1, requires_grad=True)).sum().backward()


def test_finished_rows_are_not_penalised():
    """In a static batch a finished row waits for the others; what it has seen is of no interest."""
    ended, running = (request(prompt=[0, 1], repetition_penalty=2.0) for _ in range(2))
    ended.finish_reason = "stop"
    logits = torch.tensor([[2.0, -2.0, 5.0]] * 2)
    assert penalise(logits, [ended, running]).tolist() == [[2.0, -2.0, 5.0], [1.0, -4.0, 5.0]]


class NoDouble(torch.Tensor):
    """A tensor on a device without float64, as Apple's are: it becomes an ordinary one by `.cpu()`
    only."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        result = super().__torch_function__(function, types, arguments, options or {})
        if function is torch.Tensor.cpu:
            return result.as_subclass(torch.Tensor)
        if isinstance(result, torch.Tensor) and result.dtype == torch.float64:
            raise TypeError(
                "Cannot convert a tensor to float64: the framework doesn't support float64"
            )
        return result


def test_a_device_without_float64_draws_the_same_ids(dense, monkeypatch):
    prompts = random_prompts(random.Random(8), 4, 12)
    options = {
        "max_new_tokens": 8,
        "stop": (),
        "temperature": [0.0, 0.7, 1.0, 2.0],
        "top_p": [1.0, 1.0, 0.8, 1.0],
    }
    options |= {"top_k": [0, 0, 0, 9], "repetition_penalty": [1.0, 1.2, 1.0, 1.0], "seed": 3}
    expected = qwenlab.generate(dense, prompts, **options)
    compute = dense.compute
    monkeypatch.setattr(
        dense, "compute", lambda *args, **own: compute(*args, **own).as_subclass(NoDouble)
    )
    result = qwenlab.generate(dense, prompts, **options)
    assert result.token_ids == expected.token_ids
    assert [request.logprobs for request in result] == [request.logprobs for request in expected]
