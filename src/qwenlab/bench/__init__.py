"""Measuring speed and memory, and the best that the machine could do."""

from qwenlab.bench.beside import Peers, peers
from qwenlab.bench.data_sheets import DEVICES, SHAPES, Device
from qwenlab.bench.memory import MemoryPlan, memory_plan
from qwenlab.bench.roofline import Machine, decode_bound, measure_machine
from qwenlab.bench.sweeps import Sweep, sweep
from qwenlab.bench.workloads import compare_workloads

__all__ = [
    "DEVICES",
    "SHAPES",
    "Device",
    "Machine",
    "MemoryPlan",
    "Peers",
    "Sweep",
    "compare_workloads",
    "decode_bound",
    "measure_machine",
    "memory_plan",
    "peers",
    "sweep",
]
