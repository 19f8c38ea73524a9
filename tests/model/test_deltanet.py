"""The gated delta rule: token by token, in chunks and in PyTorch's plainest words; convolution,
decay, pads."""

import itertools

import pytest
import torch
from helpers import difference

from qwenlab.fast.deltanet import delta_step_
from qwenlab.model.deltanet import delta_chunks, delta_step, delta_steps, l2norm, log_decay

LENGTHS = [1, 2, 3, 4, 5, 63, 64, 65, 127, 128, 129]


def heads(tokens, count=6, key=8, value=12, strongest=3.0, start=1.0):
    """Random arguments of the rule: 2 rows of `count` heads, decays from almost 0 to e^-strongest."""
    q = l2norm(torch.randn(2, tokens, count, key))
    k = l2norm(torch.randn(2, tokens, count, key))
    v = torch.randn(2, tokens, count, value)
    g = -strongest * torch.rand(2, tokens, count) ** 4
    return q, k, v, g, torch.rand(2, tokens, count), start * torch.randn(2, count, key, value)


def by_definition(q, k, v, g, beta, memory):
    """S <- e^g S; d = beta (v - S^T k); S <- S + k d^T; o = S^T q. One head, one token at a time."""
    q, k, v, g, beta, memory = (x.double() for x in (q, k, v, g, beta, memory))
    outs = torch.zeros_like(v)
    memories = torch.zeros_like(memory)
    for row, head in itertools.product(range(len(q)), range(q.shape[2])):
        S = memory[row, head]
        for t in range(q.shape[1]):
            at = (row, t, head)
            S = g[at].exp() * S
            d = beta[at] * (v[at] - S.T @ k[at])
            S = S + torch.outer(k[at], d)
            outs[at] = S.T @ q[at]
        memories[row, head] = S
    return outs, memories


def close(got, expected, limit=1e-5):
    return all(difference(ours, theirs) < limit for ours, theirs in zip(got, expected, strict=True))


@pytest.mark.parametrize("tokens", [1, 2, 5, 65])
def test_steps_follow_the_definition(tokens):
    arguments = heads(tokens)
    assert close(delta_steps(*arguments), by_definition(*arguments))


@pytest.mark.parametrize("chunk", [1, 16, 64])
@pytest.mark.parametrize("tokens", LENGTHS)
def test_chunks_equal_steps(tokens, chunk):
    arguments = heads(tokens)
    assert close(delta_chunks(*arguments, chunk), delta_steps(*arguments))


@pytest.mark.parametrize("strongest", [0.0, 0.01, 20.0, 300.0, 5000.0])
def test_chunks_equal_steps_however_fast_a_head_forgets(strongest):
    """The exponents' sums go far below what exp can hold, and their differences must not lose the
    small decays."""
    arguments = heads(130, strongest=strongest)
    assert close(delta_chunks(*arguments), delta_steps(*arguments))


def test_beta_at_its_ends_and_no_decay():
    """beta 0 writes nothing; beta 1 with no decay stores a value for good: asked for its key, S
    gives it back."""
    q, k, v, g, _, memory = heads(20)
    zero = torch.zeros_like(g)
    assert torch.equal(delta_chunks(q, k, v, zero, zero, memory)[1], memory)
    for way in (delta_chunks, delta_steps):
        new = way(q, k, v, zero, torch.ones_like(g), memory)[1]
        assert torch.allclose(torch.einsum("bhk,bhkv->bhv", k[:, -1], new), v[:, -1], atol=1e-5)


def test_what_came_before_is_only_the_memory():
    """In two calls or in one; neither changes the memory it is given."""
    arguments = heads(70)
    memory = arguments[-1].clone()
    whole = delta_chunks(*arguments)
    first = delta_chunks(*(x[:, :31] for x in arguments[:-1]), memory)
    rest = delta_chunks(*(x[:, 31:] for x in arguments[:-1]), first[1])
    assert close((torch.cat((first[0], rest[0]), 1), rest[1]), whole)
    assert torch.equal(memory, arguments[-1])


def test_the_fast_step_changes_the_memory_in_place():
    q, k, v, g, beta, memory = heads(1)
    now = [x[:, 0] for x in (q, k, v, g, beta)]
    before = memory.clone()
    expected = delta_step(*now, memory)
    assert torch.equal(memory, before)
    place = memory.data_ptr()
    out = delta_step_(*now[:3], now[3].exp()[..., None], now[4][..., None], memory)
    assert memory.data_ptr() == place
    assert close((out, memory), expected, 1e-6)


@pytest.mark.parametrize("way", [delta_chunks, delta_steps])
@pytest.mark.parametrize("tokens", [1, 5, 100])
def test_a_pad_leaves_the_memory_bit_by_bit(way, tokens):
    """Log-decay 0 and beta 0, whatever the pad's key and value are. One alone is not enough."""
    q, k, v, g, beta, memory = heads(tokens)
    loud, zero = 100 * v, torch.zeros_like(g)
    assert torch.equal(way(q, k, loud, zero, zero, memory)[1], memory)
    assert not torch.equal(way(q, k, loud, g - 0.1, zero, memory)[1], memory)
    assert not torch.equal(way(q, k, loud, zero, beta, memory)[1], memory)


def test_pads_after_the_real_tokens_change_nothing():
    q, k, v, g, beta, memory = heads(80)
    alone = delta_chunks(*(x[:, :50] for x in (q, k, v, g, beta)), memory)
    pads = torch.arange(80)[:, None] >= 50  # (W, 1): for all heads
    padded = delta_chunks(q, k, v, g.masked_fill(pads, 0), beta.masked_fill(pads, 0), memory)
    assert close((padded[0][:, :50], padded[1]), alone, 1e-6)


def test_decay_is_worked_out_in_float32_and_never_grows():
    a = torch.tensor([[-200.0, 0.0, 30.0]]).expand(2, 3)
    A_log, dt_bias = torch.tensor([-3.0, 0.0, 2.7]), torch.tensor([0.0, 1.0, -4.0])
    g = log_decay(a.bfloat16(), A_log.bfloat16(), dt_bias.bfloat16())
    assert g.dtype == torch.float32 and (g <= 0).all() and torch.isfinite(g).all()
    expected = -A_log.exp() * torch.log1p((a + dt_bias).double().exp())
    assert torch.allclose(log_decay(a, A_log, dt_bias).double(), expected, rtol=1e-5)


def test_unit_length_with_eps_inside_the_root():
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [3e-4, 4e-4]])
    assert torch.allclose(l2norm(x)[0], torch.tensor([0.6, 0.8])) and not l2norm(x)[1].any()
    assert torch.allclose(l2norm(x)[2], x[2] / (25e-8 + 1e-6) ** 0.5)


def test_gradients_of_chunks_are_those_of_the_steps():
    """The steps written without in-place changes, so that autograd can follow them."""
    arguments = [x.requires_grad_() for x in heads(37, count=3)]
    weights = torch.randn(2, 37, 3, 12), torch.randn(2, 3, 8, 12)
    out, memory = delta_chunks(*arguments, chunk_size=16)
    ours = torch.autograd.grad((out * weights[0]).sum() + (memory * weights[1]).sum(), arguments)
    q, k, v, g, beta, S = arguments
    total = 0
    for t in range(37):
        out, S = delta_step(q[:, t], k[:, t], v[:, t], g[:, t], beta[:, t], S)
        total = total + (out * weights[0][:, t]).sum()
    theirs = torch.autograd.grad(total + (S * weights[1]).sum(), arguments)
    assert close(ours, theirs, 1e-4) and all(torch.isfinite(grad).all() for grad in ours)
