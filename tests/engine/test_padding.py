"""Padding is exact: the kinds of fault that other people's systems had, one after another."""

import random

import pytest
import torch
from helpers import (
    FAMILIES,
    PAD,
    alone_greedy,
    alone_logits,
    count,
    difference,
    random_prompts,
    rectangle,
)

import qwenlab

SIDES = ["left", "right", "inner"]


def test_every_id_as_alone_from_the_second_step_on(model):
    """A mask dropped after prefill shows only from the second token."""
    prompts = [[5, 9, 77], [4, 8, 15, 16, 23, 42, 108, 11, 7]]
    result = qwenlab.generate(model, prompts, max_new_tokens=8, stop=())
    assert result.token_ids == [alone_greedy(model, prompt, 8) for prompt in prompts]


def test_positions_count_real_tokens_only(model):
    """RoPE is relative, so logits cannot catch a wrong position: look at what the model asks
    for."""
    seen = []
    note = model.model.rotary.register_forward_pre_hook(
        lambda module, args: seen.append(args[0].position_ids)
    )
    mask = torch.tensor([[False, False, True, True, True], [True] * 5])
    state = model.new_state(2)
    model(torch.ones(2, 5, dtype=torch.long), mask, state)
    model(torch.ones(2, 1, dtype=torch.long), state=state)
    note.remove()
    first = seen[0]  # row 0 has its three real tokens at its front
    assert first[0, :3].tolist() == [0, 1, 2] and first[1].tolist() == [0, 1, 2, 3, 4]
    assert seen[1].tolist() == [[3], [5]]
    assert qwenlab.position_ids(mask).tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]]
    mask = qwenlab.left_pad([[1, 2, 3], list(range(9))], PAD)[1]
    assert mask[0].int().tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1]
    assert qwenlab.position_ids(mask)[0, -3:].tolist() == [0, 1, 2]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("pads", [0, 1, 2, 31, 32, 33])
def test_finite_at_every_position_after_every_layer(pads, attention, dtype, family):
    """By the library's own path and, without linear attention, by the explicit mask."""
    model = FAMILIES[family](seed=1, dtype=dtype)
    model.attention = attention
    outputs = []
    for layer in model.model.layers:
        layer.register_forward_hook(lambda module, args, out: outputs.append(out))
    ids, mask = qwenlab.left_pad([[3, 1, 4], list(range(3 + pads))], PAD)
    by_length = by_mask = model(ids, mask)
    if family == "dense":
        by_mask = model(ids, qwenlab.combined_mask(mask), position_ids=qwenlab.position_ids(mask))
    assert len(outputs) >= 4 and all(torch.isfinite(out).all() for out in outputs)
    assert torch.isfinite(by_length).all() and torch.isfinite(by_mask).all()
    if dtype == torch.float32:
        assert difference(by_length[mask], by_mask[mask]) < 1e-5


@pytest.mark.parametrize("shift", [-1, -2, -70, 3, 10_000])
def test_only_distances_between_positions_count(dense, shift):
    """RoPE is relative; a reader's positions may lie anywhere, below 0 too."""
    ids, mask = qwenlab.left_pad([[3, 1, 4], [2, 7, 1, 8, 2]], PAD)
    explicit, positions = qwenlab.combined_mask(mask), qwenlab.position_ids(mask)
    moved = dense(ids, explicit, position_ids=positions + shift)
    assert difference(moved[mask], dense(ids, explicit, position_ids=positions)[mask]) < (
        1e-3 if shift > 9 else 1e-5
    )


def test_positions_far_away_make_no_table(dense):
    ids, mask = torch.tensor([[1, 2]]), torch.ones(1, 1, 2, 2, dtype=torch.bool)
    assert torch.isfinite(dense(ids, mask, position_ids=torch.tensor([[0, 2**40]]))).all()


@pytest.mark.parametrize("prompt", [[5, PAD, 7], [PAD, 5, 7], [5, 7, PAD]])
def test_a_real_token_may_have_the_pad_id(model, prompt):
    """The mask comes from lengths, never from ids."""
    ids, mask = qwenlab.left_pad([prompt, [9, 8, 7, 6, 5, 4]], PAD)
    assert mask[0].int().tolist() == [0, 0, 0, 1, 1, 1]
    assert difference(model(ids, mask)[0, 3:], alone_logits(model, prompt)) < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_which_id_pads_does_not_matter(family):
    """Among them a loud pad, with 100 in every slot of its embedding, so that a leak cannot
    hide."""
    model = FAMILIES[family](
        seed=2, tie_word_embeddings=False
    )  # a tied head would shout, and drown the leak
    loud = 319
    model.model.embed_tokens.weight[loud] = 100.0
    prompts = [[5, 9, 77], [4, 8, 15, 16, 23, 42, 108, 11, 7]]
    outputs = []
    for pad in (PAD, 0, loud):
        ids, mask = qwenlab.left_pad(prompts, pad)
        outputs.append(model(ids, mask)[mask])
    assert difference(outputs[1], outputs[0]) < 1e-6 and difference(outputs[2], outputs[0]) < 1e-6
    ids, mask = qwenlab.left_pad(prompts, loud)
    assert difference(model(ids)[mask], outputs[0]) > 1e-2, (
        "without the mask the loud pad must show"
    )


def test_a_pad_may_be_no_id_at_all(model):
    """Labels are often padded with -100; the model never looks a pad up."""
    ids, mask = rectangle([[5, 9], [4, 8, 15]], 5, "right", -100)
    expected = [alone_logits(model, [5, 9]), alone_logits(model, [4, 8, 15])]
    for state in (None, model.new_state(2)):
        assert difference(model(ids, mask, state)[mask], torch.cat(expected)) < 1e-5


def test_neighbours_and_order_do_not_matter(model):
    """A row says the same beside any neighbour, wherever it stands in the batch."""
    rng = random.Random(0)
    prompt = random_prompts(rng, 1, 4)[0]
    neighbours = [[rng.randrange(300) for _ in range(length)] for length in (4, 9, 60)]
    alone = qwenlab.generate(model, [prompt], max_new_tokens=12, stop=()).token_ids[0]
    for neighbour in neighbours:
        assert (
            qwenlab.generate(model, [neighbour, prompt], max_new_tokens=12, stop=()).token_ids[1]
            == alone
        )
    batch = [prompt, *neighbours]
    straight = qwenlab.generate(model, batch, max_new_tokens=12, stop=()).token_ids
    order = [2, 0, 3, 1]
    permuted = qwenlab.generate(
        model, [batch[i] for i in order], max_new_tokens=12, stop=()
    ).token_ids
    assert permuted == [straight[i] for i in order]


@pytest.mark.parametrize("pads", [0, 3])
@pytest.mark.parametrize("cuts", [[10], [7, 3], [1, 9], [7, 2, 1]])
def test_chunks_give_the_logits_of_one_pass_and_see_the_right_keys(model, cuts, pads):
    """With 7 cached and 3 new, query i sees 8, 9, 10 keys."""
    ids = [7, 3, 9, 1, 4, 4, 2, 8, 5, 6]
    expected = alone_logits(model, ids)
    state, at = model.new_state(1), 0
    for cut in cuts:
        block, mask = rectangle([ids[at : at + cut]], cut + pads, "left", PAD)
        logits = model(block, mask, state)
        assert difference(logits[0, pads:], expected[at : at + cut]) < 1e-5
        at += cut
    seen = []

    def counting(q, k, v, mask, scale):
        seen.append(mask[0, 0].sum(-1).tolist() if mask is not None else None)
        return torch.zeros_like(q)

    state = model.new_state(1)
    model(torch.tensor([ids[:7]]), state=state)
    try:
        model.attention = counting
        model(torch.tensor([ids[7:]]), state=state)
    finally:
        model.attention = "sdpa"
    assert seen[0] == [8, 9, 10]


def test_an_empty_state_changes_nothing_and_the_future_stays_unseen(model):
    """And what comes later changes no earlier logits."""
    ids = torch.tensor([[7, 3, 9, 1], [1, 2, 3, 4]])
    assert difference(model(ids, state=model.new_state(2)), model(ids)) < 1e-5
    other = ids.clone()
    other[:, -1] = 250
    assert torch.equal(model(ids)[:, 0], model(other)[:, 0])
    assert not torch.equal(model(ids)[:, -1], model(other)[:, -1])


@pytest.mark.parametrize("seed", range(count(10, 200)))
def test_random_scripts_of_calls(model, seed):
    """Ragged calls on one state, pads anywhere, rows chosen, kept and doubled: logits and memory as
    the row alone."""
    rng = random.Random(seed)
    rows = rng.randint(1, 6)
    state = model.new_state(rows, capacity=rng.choice([None, 100]))
    said = [[] for _ in range(rows)]
    for _ in range(rng.randint(2, 5)):
        if rng.random() < 0.4:
            kept = [rng.randrange(len(said)) for _ in range(rng.randint(1, 6))]
            state, said = state.select(kept), [list(said[row]) for row in kept]
        if rng.random() < 0.2:
            state, said = state.repeat(2), [list(ids) for ids in said for _ in range(2)]
        chosen = rng.sample(range(len(said)), rng.randint(1, len(said)))
        new = [[rng.randrange(300) for _ in range(rng.choice([0, 1, 1, 2, 9, 20]))] for _ in chosen]
        if rng.random() < 0.3:  # a decode step
            new = [ids[:1] for ids in new]
        width = max(1, max(map(len, new))) + rng.choice([0, 0, 2])
        ids, mask = rectangle(new, width, rng.choice(SIDES), PAD, rng)
        last_only = rng.random() < 0.3
        mask_or_none = None if mask.all() and rng.random() < 0.5 else mask
        if rng.random() < 0.5:  # rows in order, read through a view
            chosen = list(range(len(chosen)))
        logits = model(
            ids,
            mask_or_none,
            state,
            rows=rng.choice([chosen, range_or(chosen)]),
            last_only=last_only,
        )
        for place, (row, ids_new) in enumerate(zip(chosen, new, strict=True)):
            said[row] += ids_new
            if not ids_new:
                assert not logits[place].any()
                continue
            expected = alone_logits(model, said[row])[-len(ids_new) :]
            got = logits[place][None] if last_only else logits[place][mask[place]]
            assert difference(got, expected[-1:] if last_only else expected) < 1e-5
            assert last_only or not logits[place][~mask[place]].any()
    assert state.lengths.tolist() == [len(ids) for ids in said]
    for row, ids in enumerate(said):
        alone = model.new_state(1, capacity=state.capacity or 1)
        if ids:
            model(torch.tensor([ids]), state=alone)
        for held, expected in zip(state.layers, alone.layers, strict=True):
            assert all(difference(held[name][row], expected[name][0]) < 1e-5 for name in expected)


def range_or(rows):
    """The rows as a range where they are one, as a call with rows in order would name them."""
    return range(len(rows)) if rows == list(range(len(rows))) else rows


@pytest.mark.parametrize(
    ("family", "vocab_size", "pad", "stop"),
    [("dense", 151936, 151643, 151645), ("hybrid", 248320, 248044, 248046)],
)
def test_real_ids_once(family, vocab_size, pad, stop):
    """The families' own pad and stop ids, in a model of width 16 with the published vocabulary."""
    narrow = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "head_dim": 8,
        "eos_token_id": [stop, pad],
    }
    model = FAMILIES[family](vocab_size=vocab_size, **narrow)
    prompts = [[5, pad, 7], [9, 8, 7, stop, 5, 4]]
    ids, mask = qwenlab.left_pad(prompts, pad)
    logits = model(ids, mask)
    assert difference(logits[0, 3:], alone_logits(model, prompts[0])) < 1e-5
    result = qwenlab.generate(model, prompts, max_new_tokens=4, stop=())
    assert result.token_ids == [alone_greedy(model, prompt, 4) for prompt in prompts]


def explicit(batch, width):
    return {"attention_mask": torch.ones(batch, 1, width, width, dtype=torch.bool)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda m: {"input_ids": torch.ones(3, dtype=torch.long)}, "expected \\(B, T\\) int64"),
        (lambda m: {"input_ids": torch.ones(1, 3)}, "expected \\(B, T\\) int64"),
        (lambda m: {"input_ids": torch.ones(1, 0, dtype=torch.long)}, "T >= 1"),
        (lambda m: {"input_ids": torch.tensor([[1, 320]])}, "row 0: token id 320 .*0 to 319"),
        (lambda m: {"input_ids": torch.tensor([[1, -1]])}, "row 0: token id -1"),
        (
            lambda m: {"attention_mask": torch.ones(2, 4, dtype=torch.bool)},
            "expected \\(2, 3\\) bool",
        ),
        (
            lambda m: {"attention_mask": torch.ones(2, 3, dtype=torch.long)},
            "int64, expected \\(2, 3\\) bool",
        ),
        (
            lambda m: {"attention_mask": torch.ones(2, 1, 3, 4, dtype=torch.bool)},
            "expected \\(2, 1, 3, 3\\) bool",
        ),
        (
            lambda m: {"attention_mask": torch.tensor([[True] * 3, [False] * 3])},
            "row 1 has no real token",
        ),
        (lambda m: {"position_ids": torch.zeros(2, 3, dtype=torch.long)}, "position_ids needs"),
        (lambda m: {"input_ids": [[1, 2, 3]]}, "input_ids is a list, expected a tensor"),
        (
            lambda m: {"attention_mask": [[True] * 3] * 2},
            "attention_mask is a list, expected a tensor",
        ),
        (lambda m: {"position_ids": [[0, 1, 2]]}, "position_ids is a list, expected a tensor"),
        (
            lambda m: {**explicit(2, 3), "position_ids": torch.tensor(1)},
            "position_ids is \\(\\) torch.int64, expected",
        ),
        (
            lambda m: {**explicit(2, 3), "position_ids": torch.ones(3, 3).long()},
            "position_ids is \\(3, 3\\)",
        ),
        (
            lambda m: {**explicit(2, 3), "position_ids": torch.ones(2, 3)},
            "float32, expected \\(2, 3\\) int64",
        ),
        (lambda m: {"rows": [0, 1]}, "there is no state"),
        (lambda m: {"state": m.new_state(2), "rows": [0, 0]}, "names a slot twice"),
        (lambda m: {"state": m.new_state(2), "rows": [0, 2]}, "not all within 0..1"),
        (lambda m: {"state": m.new_state(3)}, "input_ids has 2 rows, but rows names 3 slots"),
        (
            lambda m: {"state": m.new_state(2, capacity=2)},
            "slot 0 would hold 3 tokens, the state has room for 2",
        ),
        (
            lambda m: {
                "state": m.new_state(2),
                "attention_mask": torch.ones(2, 1, 3, 3, dtype=torch.bool),
            },
            "without a state only",
        ),
    ],
)
def test_bad_calls_say_what_was_expected(dense, arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        dense(**{"input_ids": torch.ones(2, 3, dtype=torch.long), **arguments(dense)})
    assert "\n" not in str(caught.value)


def test_bad_prompts_for_left_pad():
    with pytest.raises(ValueError, match="prompt 1 is empty"):
        qwenlab.left_pad([[1], []], 0)
    with pytest.raises(ValueError, match="no prompt"):
        qwenlab.left_pad([], 0)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("problem", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_call_leaves_no_nan_either(dense, attention, problem):
    """NaN from a reader's first layer, then an exception in the second: once its rows are read
    again, a shorter one must not see what was stored."""
    state = dense.new_state(2)
    dense(torch.tensor([[1, 2], [3, 4]]), state=state)
    dense(torch.tensor([[5, 6, 7, 8]]), state=state, rows=[1])
    kept, calls = state.snapshot(), []

    def broken(q, k, v, mask, scale):
        calls.append(1)
        if len(calls) == 2:
            raise problem
        return torch.full_like(q, float("nan"))

    for rows in (None, [1], [1, 0]):  # a block of rows, one row, rows out of order
        calls.clear()
        dense.attention = broken
        try:
            with pytest.raises(problem):
                dense(torch.tensor([[9, 9, 9]] * len(rows or [0, 1])), state=state, rows=rows)
        finally:
            dense.attention = "sdpa"
        lost = rows or [0, 1]
        assert state.lengths.tolist() == kept.lengths.tolist() and state.invalid == set(lost)
        state.put(lost, kept.select(lost))
    dense.attention = attention
    try:
        logits = dense(torch.tensor([[9], [10]]), state=state)
    finally:
        dense.attention = "sdpa"
    assert difference(logits[0, 0], alone_logits(dense, [1, 2, 9])[-1]) < 1e-5
    assert difference(logits[1, 0], alone_logits(dense, [3, 4, 5, 6, 7, 8, 10])[-1]) < 1e-5


def test_a_call_interrupted_at_its_head_is_refused_until_the_row_is_read_again(dense):
    """The caller never saw the logits, so the tokens don't count as read."""
    state = dense.new_state(1)
    dense(torch.tensor([[7, 3]]), state=state)

    def interrupt(*_):
        raise KeyboardInterrupt

    hook = dense.model.norm.register_forward_hook(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            dense(torch.tensor([[9]]), state=state)
    finally:
        hook.remove()
    assert state.lengths.tolist() == [2]
    with pytest.raises(ValueError, match="slot 0 is invalid"):
        dense(torch.tensor([[2]]), state=state)
    state.reset()
    dense(torch.tensor([[7, 3]]), state=state)
    assert (
        difference(dense(torch.tensor([[2]]), state=state)[0], alone_logits(dense, [7, 3, 2])[-1:])
        < 1e-5
    )


def test_own_attention_takes_part_and_unknown_names_are_refused(model):
    calls = []

    def mine(q, k, v, mask, scale):
        calls.append((q.shape, k.shape))
        from qwenlab.model.attention import eager

        return eager(q, k, v, mask, scale)

    expected = model(torch.tensor([[1, 2, 3]]))
    model.attention = mine
    try:
        assert difference(model(torch.tensor([[1, 2, 3]])), expected) < 1e-5
    finally:
        model.attention = "sdpa"
    assert calls[0] == (torch.Size([1, 4, 3, 32]), torch.Size([1, 2, 3, 32])) and len(
        calls
    ) == model.config.layer_types.count("full_attention")
    with pytest.raises(ValueError, match="'flash'"):
        model.attention = "flash"
