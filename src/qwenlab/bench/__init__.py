"""Measuring speed and memory, and the best that the machine could do."""

from qwenlab.bench.all_peers import PeerTable, peer_table
from qwenlab.bench.beside import Peers, peers
from qwenlab.bench.data_sheets import DEVICES, SHAPES, Device
from qwenlab.bench.memory import MemoryPlan, memory_plan
from qwenlab.bench.parallel import (
    LINKS,
    Link,
    ParallelStep,
    all_reduce_seconds,
    parallel_step,
)
from qwenlab.bench.roofline import Machine, decode_bound, measure_machine
from qwenlab.bench.sweeps import Sweep, sweep
from qwenlab.bench.workloads import compare_workloads

__all__ = [
    "DEVICES",
    "LINKS",
    "SHAPES",
    "Device",
    "Link",
    "Machine",
    "MemoryPlan",
    "ParallelStep",
    "PeerTable",
    "Peers",
    "Sweep",
    "all_reduce_seconds",
    "compare_workloads",
    "decode_bound",
    "measure_machine",
    "memory_plan",
    "parallel_step",
    "peer_table",
    "peers",
    "sweep",
]
