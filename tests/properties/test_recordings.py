"""What the first edition answered, later editions answer too: 200 random workloads, kept as
answered.

scripts/stored_workloads.py makes the workloads again from their seeds, and has made the file.
"""

from functools import cache
from pathlib import Path

import pytest
from helpers import FULL
from stored_workloads import (
    FAMILIES,
    Answers,
    Workload,
    difference,
    load_recordings,
    make_model,
    recorded_events,
)

RECORDINGS = Path(__file__).resolve().parents[1] / "recordings"
SOME = slice(None) if FULL else slice(2, None, 7)  # 29 of 200, of each kind some
RECORDS = load_recordings(RECORDINGS / "workloads.json.gz")[SOME]
TOLERANCE = 1e-5


@cache
def model_of(family: str):
    return make_model(FAMILIES[family])


@cache
def answered(seed: int) -> Answers:
    workload = Workload(seed)
    return workload.run(model_of(workload.family))


def name_of(record: dict) -> str:
    workload = Workload(record["seed"])
    way = "engine" if workload.open else workload.strategy
    return f"{record['seed']}-{workload.family}-{way}"


@pytest.fixture(params=RECORDS, ids=name_of)
def record(request) -> dict:
    return request.param


def test_a_recorded_workload_is_made_again_from_its_seed(record):
    """Else the answers couldn't be compared: another Python draws other numbers, or a draw was
    added."""
    assert Workload(record["seed"]).digest() == record["digest"]


def test_ids_and_finish_reasons_are_those_recorded(record):
    answers = answered(record["seed"])
    assert answers.token_ids == record["token_ids"]
    assert answers.finish_reasons == record["finish_reasons"]
    assert answers.stop_ids == record["stop_ids"]


def test_logprobs_are_those_recorded(record):
    assert difference(answered(record["seed"]).logprobs, record["logprobs"]) <= TOLERANCE


# Here the first edition kept a request waiting for its prompt's prefix where the beginning that all
# prompts share was just as long, and there to be copied.
WAITED = {121, 165}


def test_events_are_those_recorded(record):
    """(step, slot, request, kind), one after the other."""
    answers = answered(record["seed"])
    if record["seed"] in WAITED:
        assert len(answers.events) < len(recorded_events(record))
    else:
        assert answers.events == recorded_events(record)
    assert answers.preempted == record["preempted"]
