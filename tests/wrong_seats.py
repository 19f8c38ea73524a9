"""Wrong answers to the exercises of lesson 07, as readers write them, each with a word of the hint it gets."""

# --- admit: (waiting, held, free, budget) -> how many get a seat ---


def who_stays(waiting, held, free, budget):
    return len(waiting) - empty_house(waiting, 0, free, budget - held)


def forgets_seats(waiting, held, free, budget):
    seated = 0
    for length in waiting:
        held += length + 1
        if held > budget:
            break
        seated += 1
    return seated


def sorts_the_line(waiting, held, free, budget):
    seated = 0
    for length in sorted(waiting):
        held += length + 1
        if held > budget or seated == free:
            break
        seated += 1
    return seated


def forgets_the_budget(waiting, held, free, budget):
    return min(free, len(waiting))


def each_by_itself(waiting, held, free, budget):
    seated = 0
    for length in waiting[:free]:
        if held + length + 1 > budget:
            break
        seated += 1
    return seated


def prompts_only(waiting, held, free, budget):
    seated = 0
    for length in waiting[:free]:
        held += length
        if held > budget:
            break
        seated += 1
    return seated


def empty_house(waiting, held, free, budget):
    return prompts_only([length + 1 for length in waiting], 0, free, budget)


def keeps_one_back(waiting, held, free, budget):
    return prompts_only([length + 1 for length in waiting], held + 1, free, budget)


def whoever_fits(waiting, held, free, budget):
    seated = 0
    for length in waiting:
        if seated < free and held + length + 1 <= budget:
            seated += 1
            held += length + 1
    return seated


def one_too_many(waiting, held, free, budget):
    seated = 0
    for length in waiting[:free]:
        seated += 1
        held += length + 1
        if held > budget:
            break
    return seated


def all_or_nobody(waiting, held, free, budget):
    line = waiting[:free]
    return len(line) if held + sum(line) + len(line) <= budget else 0


# --- schedule-steps: (lengths, slots) -> static, continuous ---


def batches(lengths, slots):
    total, rest = 0, list(lengths)
    while rest:
        total += max(rest[:slots])
        rest = rest[slots:]
    return total


def step_by_step(lengths, slots):
    """Continuous batching, one step after another."""
    waiting, running, steps = list(lengths), [], 0
    while waiting or running:
        while waiting and len(running) < slots:
            running.append(waiting.pop(0))
        running = [left - 1 for left in running if left > 1]
        steps += 1
    return steps


def other_way_round(lengths, slots):
    return step_by_step(lengths, slots), batches(lengths, slots)


def prefill_apart(lengths, slots):
    return batches([n + 1 for n in lengths], slots), step_by_step([n + 1 for n in lengths], slots)


def one_by_one(lengths, slots):
    return sum(lengths), step_by_step(lengths, slots)


def one_batch(lengths, slots):
    return max(lengths), step_by_step(lengths, slots)


def no_gaps(lengths, slots):
    return batches(lengths, slots), (sum(lengths) + slots - 1) // slots


def dealt_out(lengths, slots):
    seats = [0] * slots
    for i, length in enumerate(lengths):
        seats[i % slots] += length
    return batches(lengths, slots), max(seats)


def longest_first(lengths, slots):
    return batches(lengths, slots), step_by_step(sorted(lengths, reverse=True), slots)


def shortest_first(lengths, slots):
    return batches(lengths, slots), step_by_step(sorted(lengths), slots)


def lower_bound(lengths, slots):
    return batches(lengths, slots), max(*lengths, (sum(lengths) + slots - 1) // slots)


def sorted_batches(lengths, slots):
    return batches(sorted(lengths), slots), step_by_step(lengths, slots)


def full_batches_only(lengths, slots):
    return sum(max(lengths[i * slots : (i + 1) * slots]) for i in range(len(lengths) // slots)), step_by_step(
        lengths, slots
    )


def static_twice(lengths, slots):
    return batches(lengths, slots), batches(lengths, slots)


def decodes_only(lengths, slots):
    less = [length - 1 for length in lengths]
    return batches(less, slots), max(step_by_step([n for n in less if n], slots), 0)


def a_step_between(lengths, slots):
    free_at = [0] * slots
    for length in lengths:
        first = min(range(slots), key=free_at.__getitem__)
        free_at[first] += length + 1
    return batches(lengths, slots), max(free_at) - 1


# --- next-chunk: (size, read, decoding, room) -> start, end, speaks ---


def always_speaks(size, read, decoding, room):
    return read, min(size, max(read, read + room - decoding)), True


def room_for_itself(size, read, decoding, room):
    end = min(size, read + room)
    return read, end, end == size


def start_and_count(size, read, decoding, room):
    count = min(size - read, max(0, room - decoding))
    return read, count, read + count == size


def from_the_start(size, read, decoding, room):
    end = min(size, max(0, room - decoding))
    return 0, end, end == size


def never_speaks(size, read, decoding, room):
    end = min(size, max(read, read + room - decoding))
    return read, end, end > size


def past_the_end(size, read, decoding, room):
    end = max(read, read + room - decoding)
    return read, end, end >= size


def backwards(size, read, decoding, room):
    end = min(size, read + room - decoding)
    return read, end, end == size


def at_least_one(size, read, decoding, room):
    end = min(size, read + max(1, room - decoding))
    return read, end, end == size


def last_one_named(size, read, decoding, room):
    end = min(size, max(read, read + room - decoding))
    return read, end - 1, end == size


def its_own_token_counts(size, read, decoding, room):
    end = min(size, read + max(0, room - decoding - 1))
    return read, end, end == size


def whole_or_nothing(size, read, decoding, room):
    fits = size - read <= room - decoding
    return read, size if fits else read, fits


WRONG = {
    "admit": {
        who_stays: "who stay in line",
        forgets_seats: "only `free` seats",
        sorts_the_line: "the shortest in first",
        forgets_the_budget: "nobody looked at the budget",
        each_by_itself: "not together",
        prompts_only: "its length and one more",
        empty_house: "start from `held`",
        keeps_one_back: "to its last token",
        whoever_fits: "overtaken for being long",
        one_too_many: "before you count",
        all_or_nobody: "all or nobody",
    },
    "schedule-steps": {
        other_way_round: "are swapped",
        prefill_apart: "L steps, not L + 1",
        one_by_one: "shares its steps",
        one_batch: "holds `slots` requests",
        no_gaps: "cut in two",
        dealt_out: "in turn",
        longest_first: "sorted the line",
        shortest_first: "sorted the line",
        lower_bound: "cut in two",
        sorted_batches: "as it stands",
        full_batches_only: "left out the last batch",
        static_twice: "static twice",
        decodes_only: "not L - 1",
        a_step_between: "No step lies between",
    },
    "next-chunk": {
        always_speaks: "only once its whole prompt",
        room_for_itself: "take a token of room",
        start_and_count: "a place in the prompt",
        from_the_start: "Go on at `read`",
        never_speaks: "a prompt is whole",
        past_the_end: "past the end",
        backwards: "before it starts",
        at_least_one: "waits for a step",
        last_one_named: "behind the last token",
        its_own_token_counts: "takes no room",
        whole_or_nothing: "in parts",
    },
}
