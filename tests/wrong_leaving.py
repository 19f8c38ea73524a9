"""Wrong answers to the exercises of lesson 06, as readers write them, each with a word of the hint it gets."""

import torch

# --- survivors: (rows (R,), done (R,)) -> keep (K,), rows (K,) ---


def places(done, wanted):
    return torch.tensor([place for place, one in enumerate(done.tolist()) if one == wanted], dtype=torch.int64)


def keeps_the_finished(rows, done):
    return places(done, True), torch.masked_select(rows, done)


def requests_twice(rows, done):
    left = torch.masked_select(rows, ~done)
    return left, left


def places_twice(rows, done):
    keep = places(done, False)
    return keep, keep.clone()


def numbered_afresh(rows, done):
    keep = places(done, False)
    return keep, torch.tensor(list(range(len(keep))), dtype=torch.int64)


def cut_at_the_end(rows, done):
    keep = places(done, False)
    return keep, rows.narrow(0, 0, len(keep))


def map_forgotten(rows, done):
    return places(done, False), rows.clone()


def requests_first(rows, done):
    return torch.masked_select(rows, ~done), places(done, False)


def a_mask(rows, done):
    return torch.logical_not(done), torch.masked_select(rows, ~done)


def a_column(rows, done):
    return torch.nonzero(~done), torch.masked_select(rows, ~done)


def leavers_marked(rows, done):
    return places(done, False), torch.where(done, -1, rows)


def in_order_of_requests(rows, done):
    return places(done, False), torch.tensor(sorted(torch.masked_select(rows, ~done).tolist()), dtype=torch.int64)


def empty_without_dtype(rows, done):
    keep = torch.tensor([place for place, one in enumerate(done.tolist()) if not one])
    return keep, torch.masked_select(rows, ~done)


def squeezed(rows, done):
    keep = (~done).nonzero().squeeze()
    return keep, rows[keep]


# --- scatter-back: (new (R,), rows (R,), count, pad_id) -> said (count,) ---


def by_place(new, rows, count, pad_id):
    return torch.tensor(new.tolist() + [pad_id] * (count - len(new)))


def padded_on_the_left(new, rows, count, pad_id):
    return torch.tensor([pad_id] * (count - len(new)) + new.tolist())


def by_mask(new, rows, count, pad_id):
    there = torch.isin(torch.arange(count), rows)
    return torch.full((count,), pad_id).masked_scatter(there, new)


def zeros_elsewhere(new, rows, count, pad_id):
    return torch.zeros(count, dtype=torch.int64).index_copy(0, rows, new)


def survivors_only(new, rows, count, pad_id):
    return torch.tensor([token_id for _, token_id in sorted(zip(rows.tolist(), new.tolist(), strict=True))])


def minus_one_elsewhere(new, rows, count, pad_id):
    return torch.full((count,), -1).index_copy(0, rows, new)


def nobody_speaks(new, rows, count, pad_id):
    return torch.tensor([pad_id] * count)


# --- row-steps: (lengths, slots, leave) -> steps, real, wasted, idle ---


def simulated(lengths, slots, leave, whole_table=True):
    """Seat by seat and step by step; whole_table: seats that nobody took count too."""
    steps = wasted = idle = 0
    for first in range(0, len(lengths), slots):
        batch = lengths[first : first + slots]
        seats = batch + [0] * (slots - len(batch)) * whole_table
        for step in range(max(batch)):
            steps += 1
            for seat, length in enumerate(seats):
                if step >= length:
                    wasted += seat < len(batch) and not leave
                    idle += seat >= len(batch) or leave
    return steps, sum(lengths), wasted, idle


def stays_and_leaves_swapped(lengths, slots, leave):
    steps, real, wasted, idle = simulated(lengths, slots, leave)
    empty = idle - simulated(lengths, slots, leave, False)[3]
    return (steps, real, 0, wasted + empty) if not leave else (steps, real, idle - empty, empty)


def one_after_another(lengths, slots, leave):
    return (sum(lengths), *simulated(lengths, slots, leave)[1:])


def everybody_at_once(lengths, slots, leave):
    return simulated(lengths, len(lengths), leave)


def shortest_first(lengths, slots, leave):
    return simulated(sorted(lengths), slots, leave)


def every_seat_is_real(lengths, slots, leave):
    steps, _, wasted, idle = simulated(lengths, slots, leave)
    return steps, slots * steps, wasted, idle


def empty_is_wasted(lengths, slots, leave):
    steps, real, *rest = simulated(lengths, slots, leave)
    return (steps, real, 0, sum(rest)) if leave else (steps, real, sum(rest), 0)


def empty_is_nothing(lengths, slots, leave):
    return simulated(lengths, slots, leave, False)


def seats_filled_at_once(lengths, slots, leave):
    steps = max(max(lengths), -(-sum(lengths) // slots))
    free = slots * steps - sum(lengths)
    return steps, sum(lengths), 0 if leave else free, free if leave else 0


def seat_by_seat(lengths, slots, leave):
    """Continuous batching, one step after another."""
    waiting, running, steps = list(lengths), [], 0
    while waiting or running:
        while waiting and len(running) < slots:
            running.append(waiting.pop(0))
        running = [left - 1 for left in running if left > 1]
        steps += 1
    free = slots * steps - sum(lengths)
    return steps, sum(lengths), 0 if leave else free, free if leave else 0


def full_batches_only(lengths, slots, leave):
    return simulated(lengths[: len(lengths) - len(lengths) % slots], slots, leave)


def stop_id_left_out(lengths, slots, leave):
    return simulated([length - 1 for length in lengths], slots, leave)


def wasted_and_idle(lengths, slots, leave):
    steps, real, wasted, idle = simulated(lengths, slots, leave)
    return steps, real, wasted, wasted + idle


WRONG = {
    "survivors": {
        keeps_the_finished: "The others stay",
        requests_twice: "keep holds requests",
        places_twice: "rows holds places",
        numbered_afresh: "numbered afresh",
        cut_at_the_end: "cut rows off at the end",
        map_forgotten: "still has those who leave",
        requests_first: "are swapped",
        a_mask: "turns a mask into",
        a_column: "gives (K, 1)",
        leavers_marked: "still has those who leave",
        in_order_of_requests: "sorted the rows",
        empty_without_dtype: "makes floats",
        squeezed: "takes that away",
    },
    "scatter-back": {
        by_place: "wrote by place",
        padded_on_the_left: "wrote to the end",
        by_mask: "A mask forgets",
        zeros_elsewhere: "not 0",
        survivors_only: "also for those who left",
        minus_one_elsewhere: "not -1",
        nobody_speaks: "nobody speaks",
    },
    "row-steps": {
        stays_and_leaves_swapped: "upside down",
        one_after_another: "share a step",
        everybody_at_once: "all rows at once",
        shortest_first: "not sorted",
        every_seat_is_real: "every seat at every step",
        empty_is_wasted: "nobody ever took",
        empty_is_nothing: "are idle as well",
        seats_filled_at_once: "the next row in at once",
        seat_by_seat: "the next row in at once",
        full_batches_only: "left out the last batch",
        stop_id_left_out: "Take nothing off",
        wasted_and_idle: "together are slots times steps",
    },
}
