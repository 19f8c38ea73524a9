"""One model on many devices, by its formulas: what a decode step takes when each device holds a
copy of the model, a part of each matrix, or some of the layers.

The three ways and what they send are those of Shoeybi et al. (Megatron-LM, arXiv:1909.08053) and
Pope et al. (arXiv:2211.05102).
"""

import math
from dataclasses import dataclass

import torch

from qwenlab.bench.data_sheets import Device
from qwenlab.bench.memory import memory_plan
from qwenlab.bench.roofline import decode_bound
from qwenlab.errors import whole
from qwenlab.model.config import Config


@dataclass(frozen=True)
class Link:
    """What joins the devices: bytes per second that each can send while it receives as many, and
    the seconds that a message takes however short it is."""

    name: str
    bytes_per_second: float
    message_seconds: float


# Rates as their makers state them, one direction: 18 links of 25 GB/s, NDR, ten-gigabit Ethernet.
# The seconds a message are assumptions, because nobody states them.
LINKS = {
    link.name: link
    for link in (
        Link("NVLink, 450 GB/s", 450e9, 2e-6),
        Link("InfiniBand, 50 GB/s", 50e9, 5e-6),
        Link("Ethernet, 1.25 GB/s", 1.25e9, 30e-6),
    )
}

WAYS = ("copies", "tensor", "pipeline")


@dataclass(frozen=True)
class ParallelStep:
    """A decode step on all devices: seconds to read, to compute and for the wire, in which `rows`
    rows gain one token each. `device_bytes` are what the fullest device holds."""

    read: float
    compute: float
    wire: float
    rows: int
    device_bytes: int

    @property
    def seconds(self) -> float:
        """Reading and arithmetic overlap, as in the roofline; the wire waits for both."""
        return max(self.read, self.compute) + self.wire

    @property
    def tokens_per_second(self) -> float:
        return self.rows / self.seconds


def all_reduce_seconds(size: float, devices: int, link: Link) -> float:
    """The seconds until each of `devices` has the sum of what all of them held, `size` bytes each.

    Every device must send (n - 1) / n of its bytes twice, once to sum and once to hand out the sum;
    two trees do so at the link's full rate within 2 log2(n) messages (Sanders, Speck and Träff,
    Parallel Computing 35(12), 2009), as NCCL has them beside its rings.
    """
    whole(devices, "devices", 1)
    sent = 2 * (devices - 1) / devices * size
    messages = 2 * math.ceil(math.log2(devices))
    return sent / link.bytes_per_second + messages * link.message_seconds


def parallel_step(
    config: Config,
    device: Device,
    link: Link,
    devices: int,
    rows: int,
    context: int,
    way: str = "copies",
) -> ParallelStep:
    """The least seconds of a decode step of `rows` rows in all, with `context` tokens each, on
    `devices` devices.

    way: "copies": each device has the whole model and an equal share of the rows; nothing crosses
    the wire. "tensor": each has a part of every matrix and of every row's heads; two all-reduces a
    layer sum a vector of hidden_size for every row. "pipeline": each has some of the layers; the
    rows pass through them in as many groups as there are devices, and a group's hidden vectors are
    handed on from device to device.

    What is left out makes it a bound: the host's time, logits that are gathered, stages of unequal
    length, and pipelines that are not full. A hybrid's tables are taken to split as heads do.

    Raises ValueError for another way, and where the model can't be cut into that many parts:
    "tensor" needs a divisor of the query heads, "pipeline" at most as many devices as layers.
    """
    whole(devices, "devices", 1)
    whole(rows, "rows", 1)
    if way not in WAYS:
        raise ValueError(f"way is {way!r}, expected one of {', '.join(WAYS)}")
    heads = config.num_attention_heads
    layers = config.num_hidden_layers
    if way == "tensor" and heads % devices:
        raise ValueError(f"{devices} devices can't share {heads} query heads, expected a divisor")
    if way == "pipeline" and devices > layers:
        raise ValueError(f"{devices} devices for {layers} layers, expected at most one a layer")

    vector = config.hidden_size * getattr(torch, device.dtype).itemsize  # bytes a row
    plan = memory_plan(config, device.memory, context, device.dtype, grows=False)
    peak = plan.row.peak
    if way != "tensor":
        share = math.ceil(rows / devices)
        read, compute = decode_bound(config, device, share, context)
        if way == "copies":
            return ParallelStep(read, compute, 0.0, rows, plan.bytes(share))
        hop = share * vector / link.bytes_per_second + link.message_seconds
        wire = devices * hop if devices > 1 else 0.0
        held = math.ceil(plan.weights / devices) + share * peak  # a part of each group's caches
        return ParallelStep(read, compute, wire, rows, held)

    # Reading is a straight line over the rows. A row's cache is cut by key/value heads.
    read, compute = decode_bound(config, device, rows, context)
    own = decode_bound(config, device, rows + 1, context)[0] - read
    weights = read - rows * own
    cuts = min(devices, config.num_key_value_heads)
    wire = 2 * layers * all_reduce_seconds(rows * vector, devices, link)
    held = math.ceil(plan.weights / devices + rows * peak / cuts)
    read = weights / devices + rows * own / cuts
    return ParallelStep(read, compute / devices, wire, rows, held)
