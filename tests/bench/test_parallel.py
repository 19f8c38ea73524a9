"""bench.parallel_step: its formulas, and what must hold between the three ways."""

import math
from itertools import pairwise

import pytest

from qwenlab.bench import DEVICES, LINKS, SHAPES, all_reduce_seconds, decode_bound, parallel_step

CONFIG = SHAPES["Qwen3-4B"]
H100 = DEVICES["H100, 80 GB"]
NVLINK, INFINIBAND, ETHERNET = LINKS.values()
ROWS, CONTEXT = 16, 500


def step(devices, way, link=NVLINK, rows=None, config=CONFIG, context=CONTEXT):
    """With 16 rows for each device, where nothing else is said."""
    rows = rows or ROWS * devices
    return parallel_step(config, H100, link, devices, rows, context, way)


@pytest.mark.parametrize("way", ["copies", "tensor", "pipeline"])
@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES.keys())
def test_one_device_is_the_roofline_of_one_device(way, config):
    alone = step(1, way, config=config)
    read, compute = decode_bound(config, H100, ROWS, CONTEXT)
    assert (alone.read, alone.compute) == pytest.approx((read, compute))
    assert alone.wire == 0 and alone.rows == ROWS
    assert alone.tokens_per_second == pytest.approx(ROWS / max(read, compute))


def test_copies_scale_without_loss():
    for n in (2, 7, 1000):
        assert step(n, "copies").tokens_per_second == pytest.approx(
            n * step(1, "copies").tokens_per_second
        )


def test_columns_send_two_all_reduces_a_layer_of_all_rows():
    for n in (2, 4, 8):
        size = n * ROWS * CONFIG.hidden_size * 2
        wire = 2 * CONFIG.num_hidden_layers * all_reduce_seconds(size, n, ETHERNET)
        assert step(n, "tensor", ETHERNET).wire == pytest.approx(wire)


def test_layers_hand_one_vector_a_row_from_device_to_device():
    hop = ROWS * CONFIG.hidden_size * 2 / ETHERNET.bytes_per_second + ETHERNET.message_seconds
    assert step(9, "pipeline", ETHERNET).wire == pytest.approx(9 * hop)


def test_an_all_reduce_sends_nearly_twice_its_bytes_in_few_messages():
    assert all_reduce_seconds(1e9, 1, NVLINK) == 0
    assert all_reduce_seconds(1e9, 2, NVLINK) == pytest.approx(1e9 / 450e9 + 2 * 2e-6)
    assert all_reduce_seconds(0, 1000, NVLINK) == pytest.approx(20 * 2e-6)


def test_columns_and_layers_divide_the_weights_and_copies_do_not():
    for way in ("tensor", "pipeline"):
        held = [step(n, way, rows=1).device_bytes for n in (1, 2, 4, 8)]
        assert all(later < 0.6 * earlier for earlier, later in pairwise(held))
    assert step(8, "copies").device_bytes == step(1, "copies").device_bytes


def test_the_rows_of_all_ways_are_the_same_rows():
    for way in ("copies", "tensor", "pipeline"):
        assert step(4, way, rows=10).rows == 10
    assert step(4, "copies", rows=10).read == step(1, "copies", rows=3).read  # the fullest has 3


def test_columns_divide_reading_and_arithmetic():
    for part in ("read", "compute"):
        one, eight = (getattr(step(n, "tensor", rows=64), part) for n in (1, 8))
        assert eight == pytest.approx(one / 8)


def test_more_parts_than_key_value_heads_hold_the_same_cache_twice():
    """The caches are cut by key/value heads, of which there are 8."""

    def cache(n):
        short, long = (step(n, "tensor", rows=64, context=c).read for c in (100, 200))
        return long - short  # 100 tokens of every row

    assert cache(8) == pytest.approx(cache(1) / 8)
    assert cache(16) == pytest.approx(cache(8))


def test_only_columns_make_one_row_faster_and_only_on_a_fast_link():
    alone = step(1, "tensor", rows=1).seconds
    assert step(8, "tensor", rows=1).seconds < alone
    assert step(8, "pipeline", rows=1).seconds > alone
    assert step(8, "copies", rows=1).seconds == pytest.approx(alone)
    assert step(8, "tensor", ETHERNET, rows=1).seconds > alone


@pytest.mark.parametrize(
    ("devices", "way", "told"),
    [
        (3, "tensor", "3 devices can't share 32 query heads"),
        (64, "tensor", "64 devices can't share 32 query heads"),
        (37, "pipeline", "37 devices for 36 layers"),
        (2, "rows", "way is 'rows', expected one of copies, tensor, pipeline"),
        (0, "copies", "devices is 0"),
    ],
)
def test_what_can_t_be_cut_is_refused(devices, way, told):
    with pytest.raises(ValueError, match=told.replace("(", r"\(")):
        step(devices, way)


def test_links_are_ordered_from_fast_to_slow():
    rates = [link.bytes_per_second for link in LINKS.values()]
    assert rates == sorted(rates, reverse=True) and math.isfinite(sum(rates))
