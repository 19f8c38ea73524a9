"""Wrong answers to the exercises of lesson 05, as readers write them, each with a word of the hint it gets."""

import torch

# --- decode-step: (logits, done, stop_ids, pad_id) -> input_ids (B, 1), done (B,) ---


def in_stop(ids, stop_ids):
    return torch.tensor([int(token_id) in set(stop_ids) for token_id in ids])


def comes_back(logits, done, stop_ids, pad_id):
    said = torch.where(done, pad_id, logits.argmax(-1))
    return said.unsqueeze(1), in_stop(logits.argmax(-1), stop_ids)


def talks_on(logits, done, stop_ids, pad_id):
    said = logits.argmax(-1)
    return said.unsqueeze(1), done | in_stop(torch.where(done, pad_id, said), stop_ids)


def stop_replaced(logits, done, stop_ids, pad_id):
    said = logits.argmax(-1)
    done = done | in_stop(said, stop_ids)
    return torch.where(done, pad_id, said).unsqueeze(1), done


def one_stop_id(logits, done, stop_ids, pad_id):
    said = torch.where(done, pad_id, logits.argmax(-1))
    return said.unsqueeze(1), done | said.eq(stop_ids[0])


def flat(logits, done, stop_ids, pad_id):
    said = torch.where(done, pad_id, logits.argmax(-1))
    return said, done | in_stop(said, stop_ids)


def batch_ends(logits, done, stop_ids, pad_id):
    said = torch.where(done, pad_id, logits.argmax(-1))
    done = done | in_stop(said, stop_ids)
    return said.unsqueeze(1), torch.full_like(done, bool(done.any()))


def pad_ends(logits, done, stop_ids, pad_id):
    said = torch.where(done, pad_id, logits.argmax(-1))
    return said.unsqueeze(1), done | said.eq(pad_id)


def done_first(logits, done, stop_ids, pad_id):
    said = torch.where(done, pad_id, logits.argmax(-1))
    return done | in_stop(said, stop_ids), said.unsqueeze(1)


def done_as_column(logits, done, stop_ids, pad_id):
    said = torch.where(done, pad_id, logits.argmax(-1))
    return said.unsqueeze(1), (done | in_stop(said, stop_ids)).unsqueeze(1)


# --- cut-at-stop: (token_ids (B, T), stop_ids) -> keep (B, T), stopped (B,) ---


def first_places(token_ids, stop_ids):
    """Where the first stop id of each row stands; T where there is none."""
    rows = [[token_id in stop_ids for token_id in row] for row in token_ids.tolist()]
    return [row.index(True) if True in row else len(row) for row in rows]


def result(token_ids, places, stopped):
    keep = torch.arange(token_ids.shape[1]) < torch.tensor(places)[:, None]
    return keep, torch.tensor(stopped)


def stopped_rows(token_ids, stop_ids):
    return [any(token_id in stop_ids for token_id in row) for row in token_ids.tolist()]


def stop_kept(token_ids, stop_ids):
    places = [place + 1 for place in first_places(token_ids, stop_ids)]
    return result(token_ids, places, stopped_rows(token_ids, stop_ids))


def stops_filtered(token_ids, stop_ids):
    keep = torch.ones(token_ids.shape, dtype=torch.bool)
    for stop_id in stop_ids:
        keep &= token_ids != stop_id
    return keep, ~keep.all(1)


def last_place(token_ids, stop_ids):
    width = token_ids.shape[1]
    places = [width - 1 - place for place in first_places(token_ids.flip(1), stop_ids)]
    stopped = stopped_rows(token_ids, stop_ids)
    return result(token_ids, [p if s else width for p, s in zip(places, stopped, strict=True)], stopped)


def first_id_only(token_ids, stop_ids):
    places = first_places(token_ids, stop_ids[:1])
    return result(token_ids, places, stopped_rows(token_ids, stop_ids[:1]))


def cut_together(token_ids, stop_ids):
    shortest = min(first_places(token_ids, stop_ids))
    return result(token_ids, [shortest] * len(token_ids), stopped_rows(token_ids, stop_ids))


def place_by_argmax(token_ids, stop_ids):
    places = [place % token_ids.shape[1] for place in first_places(token_ids, stop_ids)]  # none counts as 0
    return result(token_ids, places, stopped_rows(token_ids, stop_ids))


def stopped_upside_down(token_ids, stop_ids):
    stopped = [not one for one in stopped_rows(token_ids, stop_ids)]
    return result(token_ids, first_places(token_ids, stop_ids), stopped)


def keep_as_numbers(token_ids, stop_ids):
    keep, stopped = result(token_ids, first_places(token_ids, stop_ids), stopped_rows(token_ids, stop_ids))
    return keep.long(), stopped


def one_stopped_for_all(token_ids, stop_ids):
    keep, stopped = result(token_ids, first_places(token_ids, stop_ids), stopped_rows(token_ids, stop_ids))
    return keep, stopped.any()


WRONG = {
    "decode-step": {
        comes_back: "comes back to life",
        talks_on: "still talks",
        stop_replaced: "has said its stop id",
        one_stop_id: "only one",
        flat: "input_ids is (B, 1)",
        batch_ends: "ends the whole batch",
        pad_ends: "against pad_id",
        done_first: "are swapped",
        done_as_column: "done is bool",
    },
    "cut-at-stop": {
        stop_kept: "itself is still in",
        stops_filtered: "only the stop ids are gone",
        last_place: "at the last stop id",
        first_id_only: "only one",
        cut_together: "at the same column",
        place_by_argmax: "argmax",
        stopped_upside_down: "the opposite",
        keep_as_numbers: "keep is bool",
        one_stopped_for_all: "stopped is bool",
    },
}
