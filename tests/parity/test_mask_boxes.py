"""What the boxes "In transformers" of lessons 03 and 04 say about masks, tried in transformers."""

import pytest
import torch
from small_qwen3 import small_qwen3

from qwenlab import combined_mask, left_pad, position_ids

transformers = pytest.importorskip("transformers")

LOWEST = torch.finfo(torch.float32).min
ROWS = [[5, 6, 7], [9, 8, 7, 6, 5]]
IDS, REAL = left_pad(ROWS, 1)
POSITIONS = position_ids(REAL)


def made(kind):
    """A small Qwen3 that attends by `kind`, and a list of the masks that its layers are given."""
    model = small_qwen3(attn_implementation=kind)
    given = []
    model.model.layers[0].self_attn.register_forward_pre_hook(
        lambda module, arguments, named: given.append(named["attention_mask"]), with_kwargs=True
    )
    return model, given


@torch.no_grad()
def run(model, mask, ids=IDS, **options):
    return model(ids, attention_mask=mask, position_ids=POSITIONS, **options)


def test_each_implementation_gets_the_kind_of_mask_that_the_text_says():
    model, given = made("sdpa")
    run(model, REAL.long())
    assert torch.equal(given.pop(), combined_mask(REAL))
    model, given = made("eager")
    run(model, REAL.long())
    added = torch.zeros(2, 1, 5, 5).masked_fill(~combined_mask(REAL), LOWEST)
    assert torch.equal(given.pop(), added)


@torch.no_grad()
def test_without_pads_only_several_queries_on_a_cache_get_a_mask():
    model, given = made("sdpa")
    whole = IDS[1:]
    for new in (1, 3):
        before = model(whole, use_cache=True).cache
        model(whole[:, :new], cache=before)
    prefill, one, again, several = given
    assert prefill is one is again is None
    assert torch.equal(several, torch.ones(1, 1, 3, 8).tril(5).bool())


@torch.no_grad()
def test_a_step_without_the_mask_of_all_keys_sees_the_pads_in_the_cache():
    model, _ = made("sdpa")
    new = torch.tensor([[3], [4]])
    where = POSITIONS[:, -1:] + 1
    logits = []
    for mask in (torch.cat([REAL, REAL[:, -1:]], dim=1).long(), None):
        before = run(model, REAL.long(), use_cache=True).cache
        step = model(new, attention_mask=mask, position_ids=where, cache=before)
        logits.append(step.logits)
    moved = (logits[0] - logits[1]).abs().amax((1, 2))
    assert moved[0] > 0.01 and moved[1] < 1e-4


def test_a_bool_mask_of_ones_own_hides_under_sdpa_and_not_under_eager():
    others = torch.where(REAL, IDS, 2)  # other tokens at the pads
    for kind, hides in (("sdpa", True), ("eager", False)):
        model, _ = made(kind)
        mask = combined_mask(REAL)
        moved = run(model, mask).logits - run(model, mask, others).logits
        assert (moved[REAL].abs().max() < 1e-4) == hides


def test_an_added_minus_infinity_is_nan_under_eager_and_the_lowest_number_is_not():
    model, _ = made("eager")
    hidden = ~combined_mask(REAL)
    right = run(model, REAL.long()).logits
    for number, rows in ((-torch.inf, [True, False]), (LOWEST, [False, False])):
        logits = run(model, torch.zeros(hidden.shape).masked_fill(hidden, number)).logits
        assert [bool(logits[row, REAL[row]].isnan().any()) for row in range(2)] == rows
    assert (logits - right)[REAL].abs().max() < 1e-4


def test_blind_queries_that_see_themselves_change_no_real_logit():
    model, _ = made("sdpa")
    mask = combined_mask(REAL)
    opened = mask | (torch.eye(5).bool() & ~mask.any(-1, keepdim=True))
    moved = run(model, opened).logits - run(model, REAL.long()).logits
    assert moved[REAL].abs().max() < 1e-4
