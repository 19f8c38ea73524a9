"""Passes of fixed shape: a row's logits have the same bits in any company.

A kernel is chosen, and divides its sums, by the shape of the whole batch, so a row's last bits
depend on how many neighbours it has and how long they are. Here only these passes are made:

- Decode: ROWS adjacent slots, one token each; a slot that has nothing to decode passes an empty
  row. More than ROWS requests take several passes.
- Prefill: one row of WIDTH tokens that starts at a multiple of WIDTH; pads follow the prompt's end.
  The chunks of the delta rule therefore begin at the same tokens, too.
- Attention adds over blocks of keys, in order (`qwenlab.fast.invariant`), and every other product
  is F.linear's, which computes a row alike in each of the ROWS places.

Answers are never prefilled. After a preemption the prompt is, and the answer so far is then decoded
again token by token, so that it meets the same passes as before. Statistics count the plan's
tokens and pads, not those that these shapes add.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from qwenlab.engine.request import Request
from qwenlab.engine.runner import Runner, tokens
from qwenlab.engine.step_plan import Prefill, StepPlan
from qwenlab.fast.invariant import attention_in_blocks
from qwenlab.fast.linear import forced_to
from qwenlab.model.batch import ForwardBatch
from qwenlab.model.config import Config
from qwenlab.model.model import Model

ROWS = 16  # slots of a decode pass
WIDTH = 64  # tokens of a prefill pass
SPLIT_ABOVE = 32_768  # elements: PyTorch shares out larger tensors among the threads
UNIT = 32  # elements that a vectorised loop takes at a time, the rest one by one


class InvariantRunner(Runner):
    """A runner whose passes all have one of two shapes. Its state has a multiple of ROWS slots."""

    def __init__(self, model: Model, slots: int) -> None:
        super().__init__(model, whole_multiple(slots, ROWS))

    def prepare(self, plan: StepPlan) -> None:
        # A pass that broke off has also left slots invalid that no request had.
        if self.state is not None and self.state.invalid:
            self.state.reset(sorted(self.state.invalid))
        super().prepare(plan)

    def read(self, rows: Sequence[Prefill]) -> Tensor:
        """Row by row: what belongs to the prompt in pieces of WIDTH, what belongs to the answer
        token by token. Returns logits (R, V) after the last token of each row's piece."""
        logits = [self.read_row(*row) for row in rows]
        return torch.cat(logits)

    def read_row(self, request: Request, slot: int, start: int, end: int) -> Tensor:
        """Tokens start..end-1 of the request. Returns logits (1, V) after the last."""
        prompt_end = min(end, len(request.prompt))
        for first in range(start, prompt_end, WIDTH):
            piece = tokens(request, first, min(first + WIDTH, prompt_end))
            input_ids = torch.zeros(1, WIDTH, dtype=torch.int64)
            input_ids[0, : len(piece)] = torch.tensor(piece)
            logits = self.pass_of(input_ids, [len(piece)], [slot])
        for place in range(max(start, prompt_end), end):
            input_ids = torch.tensor([tokens(request, place, place + 1)])
            logits = self.compute(input_ids, [1], [slot])
        return logits

    def compute(self, input_ids: Tensor, num_tokens: list[int], slots: Sequence[int]) -> Tensor:
        """Decodes one token per row, input_ids (D, 1), in passes of ROWS slots. Returns logits
        (D, V)."""
        passes: dict[int, list[int]] = {}  # the rows of each, by its first slot
        for row, slot in enumerate(slots):
            passes.setdefault(slot - slot % ROWS, []).append(row)
        logits: list[Tensor | None] = [None] * len(slots)
        for first, rows in passes.items():
            places = [slots[row] - first for row in rows]
            ids = input_ids.new_zeros(ROWS, 1)
            ids[places] = input_ids[rows]
            counts = [0] * ROWS
            for place in places:
                counts[place] = 1
            out = self.pass_of(ids, counts, range(first, first + ROWS))
            for row, place in zip(rows, places, strict=True):
                logits[row] = out[place]
        return torch.stack(logits)

    def pass_of(self, input_ids: Tensor, num_tokens: list[int], slots: Sequence[int]) -> Tensor:
        """One pass over input_ids (B, W) of one of the two shapes. Returns logits (B, V)."""
        batch = ForwardBatch.from_lengths(input_ids, num_tokens, self.state, slots)
        batch.attention = attention_in_blocks
        # Never None, so that a pass without pads or empty rows runs the same code as one with them.
        counts = torch.tensor(num_tokens)
        batch.valid_mask = torch.arange(batch.width) < counts[:, None]
        with forced_to("linear"):
            return self.model.compute(batch, last_only=True)


def whole_multiple(number: int, unit: int) -> int:
    """`number` rounded up to a multiple of `unit`."""
    return number + -number % unit


def check_invariant(model: Model, has_state: bool) -> None:
    """Raises ValueError, in one line, where bit-identical logits can't be promised."""
    if model.device.type != "cpu":
        raise ValueError(
            f"invariant=True is for CPUs, where it was measured; the model is on {model.device}"
        )
    if model.attention != "sdpa":
        how = model.attention if isinstance(model.attention, str) else "a function of your own"
        raise ValueError(
            f"invariant=True brings its own attention, so model.attention must be 'sdpa', not {how}"
        )
    if has_state:
        raise ValueError("invariant=True makes its own state: leave out `state`")
    threads = torch.get_num_threads()
    for name, width in elementwise_widths(model.config).items():
        if not splits_evenly(width, threads):
            raise ValueError(
                f"invariant=True can't be had: {ROWS} rows of {name} ({width}), shared out among "
                f"{threads} threads, don't fill whole vectors of {UNIT} numbers"
            )
    ways = count_ways(model)
    if ways > 1:
        dtype = str(model.dtype).removeprefix("torch.")
        raise ValueError(
            f"invariant=True can't be had in {dtype} on this machine: {ROWS} equal rows of one "
            f"decode step got {ways} different logits, expected the same bits in every place"
        )


@torch.inference_mode()
def count_ways(model: Model) -> int:
    """Decodes one token in all ROWS places at once, and counts how many different logits it got.

    The libraries promise nothing about places, so each machine and dtype is asked.
    """
    runner = InvariantRunner(model, ROWS)
    runner.state = model.new_state(ROWS)
    logits = runner.compute(torch.zeros(ROWS, 1, dtype=torch.int64), [1] * ROWS, range(ROWS))
    return len(logits.view(torch.int32).unique(dim=0))  # as bits: NaN equals NaN


def elementwise_widths(config: Config) -> dict[str, int]:
    """Widths of what goes through sigmoid, silu or softplus, by name.

    In float32 PyTorch computes the last elements of such a tensor, those that don't fill a vector,
    by another formula than the rest.
    """
    widths = {"intermediate_size": config.intermediate_size}
    if "linear_attention" in config.layer_types:
        value_width = config.linear_num_value_heads * config.linear_value_head_dim
        widths["linear_num_value_heads"] = config.linear_num_value_heads
        widths["linear attention's value width"] = value_width
        widths["linear attention's channels"] = config.conv_channels
    return widths


def splits_evenly(width: int, threads: int) -> bool:
    """Whether each thread's share of a (ROWS, width) tensor is a number of whole vectors."""
    elements = ROWS * width
    parts = min(threads, -(-elements // SPLIT_ABOVE))
    share = -(-elements // parts)
    return elements % UNIT == 0 and share % UNIT == 0
