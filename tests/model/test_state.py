"""The state: rows chosen, copied, emptied and replaced; nothing else moves."""

import random
from copy import deepcopy

import pytest
import torch
from helpers import FAMILIES, alone_logits, count, difference

import qwenlab
from qwenlab.fast import attention


def filled(model, rows):
    """A state holding `rows` (lists of ids), read one by one."""
    state = model.new_state(len(rows))
    for number, ids in enumerate(rows):
        model(torch.tensor([ids]), state=state, rows=[number])
    return state


ROWS = [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10], [11]]


def tensors(state):
    return [t for layer in state.layers for t in layer.values()]


def test_select_removes_rows_everywhere(model):
    """Rows {0, 2} removed, every tensor has 2 rows, and old rows 1 and 3 are bit-equal to what they
    were."""
    state = filled(model, ROWS)
    for kept in (state.select([1, 3]), state.select(torch.tensor([False, True, False, True]))):
        assert kept.lengths.tolist() == [2, 1]
        for old, new in zip(tensors(state), tensors(kept), strict=True):
            assert new.shape[0] == 2 and torch.equal(new, old[[1, 3]])
    logits = model(torch.tensor([[20], [21]]), state=kept)
    assert difference(logits[0, -1], alone_logits(model, [*ROWS[1], 20])[-1]) < 1e-5
    assert difference(logits[1, -1], alone_logits(model, [*ROWS[3], 21])[-1]) < 1e-5


def test_repeat_and_snapshot_are_copies(model):
    state = filled(model, ROWS[:2])
    kept, double = state.snapshot(), state.repeat(2)
    assert double.lengths.tolist() == [3, 3, 2, 2]
    model(torch.tensor([[9], [8]]), state=state)
    assert kept.lengths.tolist() == [3, 2] and state.lengths.tolist() == [4, 3]
    logits = model(torch.tensor([[20], [21], [22], [23]]), state=double)
    for row, (ids, new) in enumerate(
        zip([ROWS[0], ROWS[0], ROWS[1], ROWS[1]], [20, 21, 22, 23], strict=True)
    ):
        assert difference(logits[row, -1], alone_logits(model, [*ids, new])[-1]) < 1e-5


def test_reset_leaves_nothing_of_the_last_tenant(model):
    state = filled(model, ROWS)
    state.reset([2])
    assert state.lengths.tolist() == [3, 2, 0, 1]
    assert all(not t[2].any() and t[0].any() for t in tensors(state))
    assert (
        difference(
            model(torch.tensor([[9, 9]]), state=state, rows=[2])[0], alone_logits(model, [9, 9])
        )
        < 1e-5
    )
    state.reset()
    assert not state.lengths.any() and not any(t.any() for t in tensors(state))


def test_a_nan_of_the_last_tenant_does_not_reach_the_next(model):
    """A masked weight of 0 times NaN is NaN: reset must empty the memory, not only the length."""
    state = filled(model, ROWS[2:3])
    for t in tensors(state):
        t.fill_(float("nan"))
    state.reset()
    ids, mask = torch.tensor([[9, 9, 9]]), torch.tensor([[True, True, False]])
    assert torch.isfinite(model(ids, mask, state)).all()


@pytest.mark.parametrize(
    "rows", [range(0, 4, 2), range(3, -1, -2), range(1, 3), [3, 1], [False, True, True, False]]
)
def test_rows_of_a_call_in_any_form(model, rows):
    state = filled(model, ROWS)
    index = state.index_of(rows).tolist()
    logits = model(torch.tensor([[20], [21]]), state=state, rows=rows)
    for place, row in enumerate(index):
        assert difference(logits[place], alone_logits(model, [*ROWS[row], 20 + place])[-1:]) < 1e-5
    assert state.lengths.tolist() == [len(ids) + (row in index) for row, ids in enumerate(ROWS)]


def test_put_leaves_nothing_of_the_longer_row_it_replaces(model):
    state, short = filled(model, ROWS[1:3]), filled(model, ROWS[3:])
    for t in tensors(state):
        t[1] = float("nan")
    state.put([1], short)
    model(torch.tensor([[7, 8, 9]]), state=state, rows=[0])  # the other row is the longer one now
    logits = model(torch.tensor([[20], [21]]), state=state)
    assert difference(logits[1, -1], alone_logits(model, [*ROWS[3], 21])[-1]) < 1e-5


def test_put_copies_rows_in_place(model):
    state, other = filled(model, ROWS), filled(model, [[30, 31, 32, 33, 34, 35, 36], [40]])
    before = [t.clone() for t in tensors(state.select([1, 3]))]
    state.put([2, 0], other)
    assert state.lengths.tolist() == [1, 2, 7, 1]
    for was, now in zip(before, tensors(state.select([1, 3])), strict=True):
        assert torch.equal(was, now[:, :, : was.shape[2]]), "rows 1 and 3 must not move"
    logits = model(torch.tensor([[20], [21]]), state=state, rows=[2, 0])
    assert (
        difference(logits[0, -1], alone_logits(model, [30, 31, 32, 33, 34, 35, 36, 20])[-1]) < 1e-5
    )
    assert difference(logits[1, -1], alone_logits(model, [40, 21])[-1]) < 1e-5


@pytest.mark.parametrize("seed", range(count(5, 50)))
def test_rows_of_unlike_length_attend_in_parts(model, seed, monkeypatch):
    """A decode step cuts them where that spares enough keys: the same logits, and few keys beyond a
    row's own."""
    rng = random.Random(seed)
    lengths = [rng.choice([3, 9, 40]) for _ in range(4)]  # four short rows in front of a long one
    lengths += [rng.choice([3, 9, 40, 90]) for _ in range(4)] + [90]
    prompts = [[rng.randrange(300) for _ in range(length)] for length in lengths]
    asked = []
    monkeypatch.setattr(attention, "BYTES_PER_CALL", 2**13)
    one_query = attention.one_query

    def watched(q, k, *rest):
        asked.append(tuple(k.shape[::2]))  # rows, keys
        return one_query(q, k, *rest)

    monkeypatch.setattr(attention, "one_query", watched)
    state = filled(model, prompts)
    asked.clear()
    logits = model(torch.full((9, 1), 20), state=state)
    layers = model.config.layer_types.count("full_attention")
    once = asked[: len(asked) // layers]
    assert once * layers == asked and sum(rows for rows, _ in once) == 9 and len(once) > 1
    for row, prompt in enumerate(prompts):
        assert difference(logits[row, -1], alone_logits(model, [*prompt, 20])[-1]) < 1e-5


def test_parts_are_cut_where_it_pays():
    split = attention.split_rows
    assert split([7] * 5, 0, 0) == [(slice(0, 5), 7)]
    assert split([100, 100, 10, 10, 10], 50, 0) == [(slice(0, 2), 100), (slice(2, 5), 10)]
    assert split([100, 100, 10, 10, 10], 500, 0) == [(slice(0, 5), 100)]
    assert split([10, 100, 12], 50, 0) == [(slice(0, 1), 10), (slice(1, 2), 100), (slice(2, 3), 12)]


def test_move_copies_rows_over_others(model):
    """Who stood there is gone; who was copied is still where it was, too."""
    state = filled(model, ROWS)
    for t in tensors(state):
        t[1, :, : len(ROWS[1])] = float("nan")  # as far as it held anything
    state.move([3, 0], [1, 3])
    assert state.lengths.tolist() == [len(ROWS[0]), len(ROWS[3]), len(ROWS[2]), len(ROWS[0])]
    logits = model(torch.tensor([[20], [21], [22], [23]]), state=state)
    for row, held in enumerate([ROWS[0], ROWS[3], ROWS[2], ROWS[0]]):
        assert difference(logits[row, -1], alone_logits(model, [*held, 20 + row])[-1]) < 1e-5


def test_put_may_read_the_state_it_writes(model):
    state = filled(model, ROWS[:2])
    state.put([1, 0], state)
    assert state.lengths.tolist() == [2, 3]
    logits = model(torch.tensor([[20], [21]]), state=state)
    assert difference(logits[0, -1], alone_logits(model, [*ROWS[1], 20])[-1]) < 1e-5
    assert difference(logits[1, -1], alone_logits(model, [*ROWS[0], 21])[-1]) < 1e-5


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("dense", {"num_hidden_layers": 2}),
        ("dense", {"head_dim": 16}),
        ("dense", {"dtype": torch.bfloat16}),
        ("hybrid", {"linear_key_head_dim": 8}),
        ("hybrid", {"linear_conv_kernel_dim": 3}),
        ("hybrid", {"layer_types": ["full_attention"] * 4}),
    ],
)
def test_put_refuses_a_state_of_another_model_before_it_moves_anything(family, changes):
    model, other = FAMILIES[family](), FAMILIES[family](**changes)
    state = filled(model, ROWS[:1])
    before = [t.clone() for t in tensors(state)]
    with pytest.raises(ValueError, match="a state of another shape or dtype"):
        state.put([0], filled(other, ROWS[1:2]))
    assert state.lengths.tolist() == [3]
    assert all(torch.equal(was, now) for was, now in zip(before, tensors(state), strict=True))


def test_growth_may_break_off(model, monkeypatch):
    """Out of memory in the middle of growing: the state still works, also for shorter rows."""
    state = filled(model, ROWS[:1])
    real, calls = torch.Tensor.new_zeros, []

    def scarce(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise MemoryError
        return real(*arguments, **options)

    monkeypatch.setattr(torch.Tensor, "new_zeros", scarce)
    with pytest.raises(MemoryError):
        model(torch.ones(1, 60, dtype=torch.long), state=state)
    monkeypatch.undo()
    logits = model(torch.tensor([[20]]), state=state)
    assert difference(logits[0, -1], alone_logits(model, [*ROWS[0], 20])[-1]) < 1e-5


def test_growth_and_bytes(model):
    state = model.new_state(2)
    assert state.capacity == 0
    model(torch.ones(2, 3, dtype=torch.long), state=state)
    assert state.capacity == 3
    model(torch.ones(2, 1, dtype=torch.long), state=state)
    assert state.capacity == 6, "doubled"
    kinds = model.config.layer_types
    held = 2 * (2 * 2 * 6 * 32 * 4)  # (keys, values) x rows x heads x tokens x head_dim x float32
    memory = (
        2 * 4 * 16 * 24 * 4 + 2 * 3 * (2 * 2 * 16 + 4 * 24) * 4
    )  # rows x heads x sizes; rows x window x channels
    expected = (
        kinds.count("full_attention") * held + kinds.count("linear_attention") * memory + 2 * 8
    )
    assert state.nbytes == expected
    assert model.new_state(2, capacity=9).capacity == 9


def test_copies_keep_a_fixed_capacity(model):
    fixed = model.new_state(1, capacity=2)
    for state in (fixed.select([0, 0]), fixed.repeat(2), fixed.snapshot().repeat(2)):
        with pytest.raises(ValueError, match="the state has room for 2"):
            model(torch.ones(2, 3, dtype=torch.long), state=state)


def test_more_rows_than_before_without_growing(model):
    """Room enough: what a copy knows about its tensors must be its own, not that of the state it
    came from."""
    state = model.new_state(2, capacity=20)
    model(
        torch.tensor([[1, 2, 3], [4, 5, 6]]),
        torch.tensor([[True] * 3, [True, False, False]]),
        state,
    )
    for copy, rows in (
        (state.repeat(2), [0, 0, 1, 1]),
        (state.select([1, 0, 1]), [1, 0, 1]),
        (state.select([1]), [1]),
    ):
        new = torch.arange(30, 30 + 2 * len(rows)).view(-1, 2)
        logits = model(new, state=copy)
        for place, row in enumerate(rows):
            ids = [[1, 2, 3], [4]][row] + new[place].tolist()
            assert difference(logits[place], alone_logits(model, ids)[-2:]) < 1e-5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s, m: s.select([4]), "not all within 0..3"),
        (lambda s, m: s.select([-1]), "not all within 0..3"),
        (lambda s, m: s.select(torch.tensor([True])), "1 entries, the state 4 slots"),
        (lambda s, m: s.select([]), "no slot was chosen"),
        (
            lambda s, m: s.select([0.5]),
            "\\[0.5\\] names no slots, expected slot numbers or one bool per slot",
        ),
        (lambda s, m: s.select(slice(0, 2)), "slice(.*) names no slots"),
        (lambda s, m: s.reset("ab"), "'ab' names no slots"),
        (lambda s, m: s.select([0, 2**70]), "expected slot numbers"),
        (lambda s, m: s.repeat(0), "at least 1 copy"),
        (lambda s, m: s.put([0], s), "1 slots for a state of 4"),
        (lambda s, m: s.put([0, 0], s.select([0, 1])), "names a slot twice"),
        (lambda s, m: m.new_state(0), "at least 1 slot"),
        (lambda s, m: m.new_state(1, capacity=0), "at least 1 token"),
        (
            lambda s, m: m.new_state(4, capacity=2).put([0, 1, 2, 3], s),
            "slot 2 would hold 5 tokens",
        ),
    ],
)
def test_bad_rows_say_so(model, call, message):
    with pytest.raises(ValueError, match=message):
        call(filled(model, ROWS), model)


@pytest.mark.parametrize("change", ["made", "grown", "repeated", "put back"])
def test_a_state_of_inference_mode_goes_on_outside_of_it(model, change):
    state = model.new_state(1)
    with torch.inference_mode():
        if change == "made":
            state = model.new_state(1)
        model(torch.tensor([[1, 2]]), state=state)
        model(torch.tensor([[3]]), state=state)  # with room for one more
        if change == "repeated":
            state = state.repeat(2).select([1])
        if change == "put back":
            kept = state.snapshot()
            state.reset()
            state.put([0], kept)
    logits = model(torch.tensor([[4]]), state=state)
    assert difference(logits[0, -1], alone_logits(model, [1, 2, 3, 4])[-1]) < 1e-5
    state.reset()
    assert difference(model(torch.tensor([[9]]), state=state)[0], alone_logits(model, [9])) < 1e-5


def test_a_state_older_than_the_model_s_dtype_is_refused_in_one_line(model):
    changed = deepcopy(model)
    state = filled(changed, ROWS[:1])
    engine = qwenlab.Engine(changed)
    request = engine.submit([1, 2], max_new_tokens=3, stop=())
    engine.step()
    changed.half()
    refused = r"^the state is for .* in float32 on cpu, the model is .* in float16 on cpu: "
    refused += r"make a new state with model\."
    with pytest.raises(ValueError, match=refused) as caught:
        changed(torch.tensor([[3]]), state=state)
    assert "\n" not in str(caught.value) and state.lengths.tolist() == [3]
    with pytest.raises(ValueError, match=refused):
        engine.step()
    changed.float()
    changed(torch.tensor([[3]]), state=state)  # refused before anything was touched
    assert state.lengths.tolist() == [4] and request.finish_reason is None


def test_a_state_of_another_model_is_refused_in_one_line(model):
    other = FAMILIES["dense"](num_hidden_layers=2)
    with pytest.raises(
        ValueError, match="the state is for qwen3 with 2 layers of 64 in float32"
    ) as caught:
        model(torch.tensor([[3]]), state=other.new_state(1))
    assert "\n" not in str(caught.value)


def test_inside_autocast_a_state_keeps_the_model_s_own_dtype(model):
    ids = torch.tensor([[1, 2, 3]])
    plain, cast = model.new_state(1), model.new_state(1)
    expected = [model(ids, state=plain), model(torch.tensor([[4]]), state=plain)]
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        logits = [model(ids, state=cast), model(torch.tensor([[4]]), state=cast)]
    assert all(map(torch.equal, logits, expected))


def test_a_state_keeps_no_gradients(model):
    model.requires_grad_(True)
    try:
        state = model.new_state(1)
        logits = model(torch.tensor([[1, 2]]), state=state)
        assert not logits.requires_grad and not any(t.requires_grad for t in tensors(state))
        assert model(torch.tensor([[1, 2]])).requires_grad
    finally:
        model.requires_grad_(False)
