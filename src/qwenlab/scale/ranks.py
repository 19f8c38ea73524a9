"""The processes that train together: which of them this one is, sums over all of them, and what
each tells the others.

`torchrun` starts them and numbers them; a number is called a rank. A process that was started
alone is rank 0 of 1, so every function here then returns what it was given.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import compress
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from qwenlab.errors import QwenlabError, failure

# A rank that samples long answers is waited for. One that has died is noticed at once, because its
# connections close.
PATIENCE = timedelta(hours=2)
ASKING = timedelta(seconds=10)  # for the line that another rank may have printed
BUCKET = 2**24  # most numbers that are summed at once: 64 MiB of float32
LOST = "a rank has ended, and so this training ends; the same command resumes it"

T = TypeVar("T")


class RankError(QwenlabError):
    """The ranks can't work together; the message is one line."""


class RankLost(RankError):
    """Another rank has ended. Commands exit with status 1."""


def join(device: str | None = None) -> None:
    """Makes this process one of the ranks that torchrun has started, and waits for the others.

    Tensors on the CPU are then summed by gloo, those on GPUs by NCCL. device: where the model will
    be (None: on a GPU if there is one); each rank takes the GPU with its number on its machine.
    Raises RankError if there is none.
    """
    gpus = torch.cuda.device_count()
    if gpus and (device is None or device.startswith("cuda")):
        place = int(os.environ["LOCAL_RANK"])
        if device not in (None, "cuda"):
            raise RankError(f"--device is {device!r}, expected cuda: each rank takes its own GPU")
        if place >= gpus:
            reason = f"this machine has {gpus}; start as many processes, or add --device cpu"
            raise RankError(f"rank {os.environ['RANK']}: no GPU is left, {reason}")
        torch.cuda.set_device(place)
    backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
    dist.init_process_group(backend, timeout=PATIENCE)


def leave() -> None:
    """Ends what `join` began."""
    if size() > 1:
        dist.destroy_process_group()


def joined() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    return dist.get_rank() if joined() else 0


def size() -> int:
    return dist.get_world_size() if joined() else 1


def gather(value: T) -> list[T]:
    """Every rank's value, by rank."""
    if size() == 1:
        return [value]
    values = [value] * size()
    together(dist.all_gather_object, values, value)
    return values


def total(number: float) -> float:
    """The sum of every rank's number."""
    return sum(gather(number))


def of_first(value: T) -> T:
    """The value of rank 0."""
    return gather(value)[0]


def share(items: Sequence[T], cost: Callable[[T], float] = lambda item: 1) -> list[T]:
    """This rank's share of items that all ranks know, in their order: each item goes to one rank.

    The costliest come first, each to the rank that has had least so far, so that no rank waits
    long for another.
    """
    spent = [0.0] * size()
    mine = []
    for place in sorted(range(len(items)), key=lambda place: -cost(items[place])):
        taker = spent.index(min(spent))
        spent[taker] += cost(items[place])
        if taker == rank():
            mine.append(place)
    return [items[place] for place in sorted(mine)]


def add_gradients(parameters: Iterable[Parameter]) -> None:
    """Replaces every gradient by its sum over all ranks. A rank without one counts as zeros; where
    no rank has one there is none afterwards either, so that an optimiser passes that parameter
    by."""
    if size() == 1:
        return
    parameters = list(parameters)
    having = torch.tensor([parameter.grad is not None for parameter in parameters]).int()
    together(dist.all_reduce, having)
    gradients = []
    for parameter in compress(parameters, having.tolist()):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradients.append(parameter.grad)
    for bucket in buckets(gradients):
        summed = torch.cat([gradient.flatten() for gradient in bucket])
        together(dist.all_reduce, summed)
        parts = summed.split([gradient.numel() for gradient in bucket])
        for gradient, part in zip(bucket, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


def buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """The tensors in their order, BUCKET numbers at a time; one larger than that comes alone."""
    bucket = []
    for tensor in tensors:
        if bucket and sum(map(Tensor.numel, bucket)) + tensor.numel() > BUCKET:
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


@contextmanager
def agreed() -> Iterator[None]:
    """An error that is raised inside, on whichever rank, is raised on all of them at the end.
    Nothing inside may wait for another rank."""
    own = None
    try:
        yield
    except Exception as problem:
        own = problem
    for problem in gather(own):
        if problem is not None:
            raise problem


def together(work: Callable, *arguments: object) -> None:
    """Calls a function of torch.distributed. Raises RankLost if another rank has ended."""
    try:
        work(*arguments)
    except RuntimeError as problem:
        raise failure(RankLost(LOST)) from problem


def first_to_say(line: str) -> bool:
    """Whether no other rank has said this line, so that what is wrong with all of them is printed
    once. Needs no `join`: torchrun itself keeps the count."""
    try:
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(*address, is_master=False, timeout=ASKING)
        return store.add(f"qwenlab: {line}", 1) == 1
    except (KeyError, ValueError, RuntimeError):  # rather too often than never
        return True
