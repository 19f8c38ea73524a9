"""The five conclusions: each verdict follows from the figures, and turns when they do."""

import pytest

from qwenlab.bench.conclusions import FAILS, HOLDS, PARTLY, findings, gains_of
from qwenlab.bench.workloads import PUBLISHED

HUGE = 10**6  # rows that fit


def workloads(gains, noise=1.0):
    """What `qwenlab table` would have measured; readings lie within a factor of `noise`."""
    runs = []
    for (task, published), gain in zip(PUBLISHED.items(), gains, strict=True):
        for batch, took in ((1, 10.0), (published.batch, 10.0 / gain)):
            seconds = {"median": took, "low": took / noise, "high": took * noise}
            runs.append({"task": task, "batch": batch, "seconds": seconds})
    return {"runs": runs}


def batches(rates=(100, 200, 400), different=2.0, training=2.0, generating=3.0):
    """What scripts/stored_batches.py would have measured."""
    sweep = []
    for place, rate in enumerate(rates):
        sweep.append({"batch_size": 16 * 2**place, "tokens_per_second": {"median": rate}})
    four = {}
    for what, gain in (("training", training), ("generating", generating)):
        four[what] = {"one by one": [gain, gain], "together": [1.0, 1.0]}
    pads = {"equal": [1.0, 1.0], "different": [different, different * 1.1]}
    pads |= {"rows": 64, "pad_share": 0.5}
    return {"sweep": sweep, "pads": pads, "rows_of_four": four}


def verdicts(gains=(1.0, 1.0, 1.0, 1.0), noise=1.0, fit=HUGE, **measured):
    return [one.verdict for one in findings(workloads(gains, noise), batches(**measured), fit)]


def test_a_gain_is_that_of_the_medians():
    assert gains_of(workloads((2.0, 3.0, 4.0, 5.0), noise=1.5)) == pytest.approx(
        {"evaluation": 2.0, "self-consistency": 3.0, "grpo": 4.0, "distillation": 5.0}
    )


@pytest.mark.parametrize(
    ("gains", "big", "slow"),
    [
        ((1.0, 1.0, 1.0, 1.0), HOLDS, HOLDS),
        ((1.0, 1.0, 1.0, 9.0), PARTLY, PARTLY),
        ((3.0, 1.0, 1.0, 1.0), HOLDS, PARTLY),  # between the two published machines
        ((9.0, 9.0, 9.0, 9.0), FAILS, FAILS),
    ],
)
def test_machines_are_compared_workload_by_workload(gains, big, slow):
    assert verdicts(gains)[:2] == [big, slow]


@pytest.mark.parametrize(
    ("rates", "fit", "verdict"),
    [
        ((100, 208, 204), 1000, FAILS),  # 32 rows are enough, many more fit
        ((100, 200, 210), 32, HOLDS),
        ((100, 200, 400), 64, HOLDS),
        ((100, 200, 400), 1000, PARTLY),  # nothing ends within the sweep
        ((100, 99, 400), 1000, PARTLY),  # one slow reading is no end
    ],
)
def test_what_ends_first_is_the_limit(rates, fit, verdict):
    assert verdicts(rates=rates, fit=fit)[2] == verdict


@pytest.mark.parametrize(("different", "verdict"), [(1.3, HOLDS), (0.95, FAILS), (0.5, FAILS)])
def test_pads_cost_something_only_if_every_reading_says_so(different, verdict):
    assert verdicts(different=different)[3] == verdict


@pytest.mark.parametrize(
    ("gains", "noise", "training", "verdict"),
    [
        ((4.0, 4.0, 4.0, 2.0), 1.0, 2.0, HOLDS),
        ((4.0, 4.0, 4.0, 2.0), 1.5, 2.0, PARTLY),  # the readings overlap
        ((4.0, 4.0, 4.0, 2.0), 1.0, 3.0, PARTLY),  # training gains as much as generating
        ((2.0, 4.0, 4.0, 4.0), 1.0, 3.5, FAILS),
    ],
)
def test_distillation_gains_least_only_if_its_passes_do_too(gains, noise, training, verdict):
    assert verdicts(gains, noise, training=training)[4] == verdict


def test_the_published_rows_are_told_from_the_published_table():
    told = [one.published for one in findings(workloads((1, 1, 1, 1)), batches(), HUGE)]
    assert told[0].endswith("in 4 of the 4 workloads") and "slower machine in only 3" in told[1]
    assert "13 times the memory" in told[2] and "29%" in told[2]
    assert "(3, 4, 64 rows)" in told[3] and told[4].endswith("2 of the 2 machines")
