"""Engine: whoever comes and goes, and whatever the budget, every request is told what it is told
alone."""

import gc
import random
import tracemalloc
import warnings
from functools import cache

import pytest
import torch
from helpers import FAMILIES, alone_greedy, count, difference, random_prompts

import qwenlab
from qwenlab.bench.workloads import peak_memory
from qwenlab.engine.results import Event
from qwenlab.engine.scheduler import POLICIES
from qwenlab.fast import attention

NEVER = 10**9


@cache
def family(name):
    return FAMILIES[name](seed=0)


def alone(model, prompt, **options):
    """The request by itself, no neighbours, nothing shared, its prompt read whole."""
    options = {name: [value] if name == "seed" else value for name, value in options.items()}
    return qwenlab.generate(model, [prompt], strategy="sequential", **options)[0]


def check_seats(engine):
    """Rows 0..R-1, one request each, those that decode first; nothing in memory beyond the budget."""
    scheduler, state = engine.scheduler, engine.runner.state
    running = scheduler.running
    assert [r.slot for r in running] == list(range(len(running))) and len(running) <= engine.slots
    if engine.token_budget is not None:
        assert sum(r.num_tokens for r in running) <= engine.token_budget
        assert state is None or int(state.lengths.sum()) <= engine.token_budget
    numbers = [r.arrival for r in running] + [r.arrival for r in scheduler.waiting]
    assert len(set(numbers)) == len(numbers)
    if (
        scheduler.waiting
    ):  # fair: whoever waits came after all who have a slot, and the line is in order
        line = [r.arrival for r in scheduler.waiting]
        assert (
            line == sorted(line)
            and max((r.arrival for r in running if not r.finish_reason), default=-1) < line[0]
        )


def check_empty(engine):
    """No slot leaked: nobody has one, and all rows are as new."""
    assert not engine.has_unfinished() and engine.step() == []  # which lets the last ones go
    assert engine.scheduler.running == [] and not engine.scheduler.waiting
    state = engine.runner.state
    if state is not None:
        assert not state.lengths.any()
        assert not any(t.any() for layer in state.layers for t in layer.values())


class Workload:
    """Requests that arrive, and some that are cancelled, at random steps of a random engine."""

    def __init__(self, model, rng):
        self.model, self.rng = model, rng
        self.prompts = random_prompts(rng, rng.randint(2, 10), 80)
        sampled = rng.random() < 0.4
        self.options = [
            {
                "max_new_tokens": rng.randint(1, 60),
                "stop": rng.choice([(), range(rng.randrange(20), 320, 20)]),
                "temperature": rng.choice([0.0, 1.0]) if sampled else 0.0,
                "repetition_penalty": rng.choice([1.0, 1.3]) if sampled else 1.0,
                "seed": rng.randrange(1000),
            }
            for _ in self.prompts
        ]
        longest = max(map(len, self.prompts))
        self.budget = rng.choice(
            [None, longest + rng.randint(1, 20), longest + rng.randint(20, 150)]
        )
        self.engine = qwenlab.Engine(model, rng.randint(1, 8), self.budget, rng.randint(1, 32))
        self.arrivals = sorted(rng.randint(0, 40) for _ in self.prompts)
        self.cancels = [rng.randint(0, 60) if rng.random() < 0.2 else NEVER for _ in self.prompts]

    def run(self):
        requests, step = [], 0
        while len(requests) < len(self.prompts) or any(r.finish_reason is None for r in requests):
            while len(requests) < len(self.prompts) and self.arrivals[len(requests)] <= step:
                i = len(requests)
                requests.append(self.engine.submit(self.prompts[i], **self.options[i]))
            for i, request in enumerate(requests):
                if self.cancels[i] == step:
                    self.engine.cancel(request)
            outputs = self.engine.step()
            assert all(output in requests for output in outputs)
            check_seats(self.engine)
            step += 1
            assert step < 3000, "it goes round in circles"
        check_empty(self.engine)
        self.check(requests)
        return self.engine.stats.preempted

    def check(self, requests):
        for request, prompt, options in zip(requests, self.prompts, self.options, strict=True):
            cap = min(options["max_new_tokens"], (self.budget or NEVER) - len(prompt))
            expected = alone(self.model, prompt, **{**options, "max_new_tokens": cap})
            if request.finish_reason == "cancelled":
                ids = len(request.token_ids)
                assert request.token_ids == expected.token_ids[:ids]
                assert request.logprobs == pytest.approx(
                    expected.logprobs[: len(request.logprobs)], abs=1e-4
                )
            else:
                assert request.token_ids == expected.token_ids
                assert (request.finish_reason, request.stop_id) == (
                    expected.finish_reason,
                    expected.stop_id,
                )
                assert request.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("block", range(count(2, 50)))
def test_random_workloads(name, block, monkeypatch):
    """500 of them, half on each family: ids, ends and log-probabilities as alone; no budget
    exceeded, no slot lost. Attention in parts is slow, so below full count fewer have it."""
    workloads = count(2, 5) if block else 5
    if block % 2:
        monkeypatch.setattr(
            attention, "BYTES_PER_CALL", 2**12
        )  # attention in parts, small as these models are
    preempted = sum(
        Workload(family(name), random.Random(seed)).run()
        for seed in range(5 * block, 5 * block + workloads)
    )
    assert preempted > 0 or block, "the seeds must give budgets that force somebody out"


def test_the_row_alone_is_the_slow_obvious_path(model):
    """What the workloads compare with, once compared with the whole row read again for every token."""
    for prompt in random_prompts(random.Random(3), 3, 30):
        assert alone(model, prompt, max_new_tokens=6, stop=()).token_ids == alone_greedy(
            model, prompt, 6
        )


def test_a_long_prompt_does_not_stall_the_others(model):
    """It is read a chunk a step, beside rows that go on saying a token a step."""
    engine = qwenlab.Engine(model, slots=2, chunk=8)
    short = engine.submit([1, 2], max_new_tokens=20, stop=())
    engine.step()
    long = engine.submit(list(range(60)), max_new_tokens=3, stop=())
    said = []
    while not long.token_ids:
        engine.step()
        said.append(len(short.token_ids))
    assert said == list(
        range(2, 10)
    )  # eight chunks of at most 8 tokens, a token of the short one with each
    engine.run()
    assert long.token_ids == alone_greedy(model, list(range(60)), 3)
    assert short.token_ids == alone_greedy(model, [1, 2], 20)
    kinds = [[event.kind for event in engine.stats.events if event.request == i] for i in (0, 1)]
    assert kinds == [["prefill"] + ["decode"] * 19, ["prefill"] * 8 + ["decode"] * 2]
    assert engine.stats.mixed_seconds > 0 and engine.stats.prefill_tokens == 62


def test_one_joins_as_the_last_leaves(model):
    """No crash, and no pass over 0 rows."""
    sizes = []
    hook = model.model.register_forward_hook(lambda module, args, out: sizes.append(out.shape[0]))
    try:
        engine = qwenlab.Engine(model, slots=2)
        first = engine.submit([5, 6], max_new_tokens=2, stop=())
        engine.step(), engine.step()
        assert first.finish_reason == "length"
        second = engine.submit([7], max_new_tokens=2, stop=())
        nothing = engine.submit([7], max_new_tokens=0)
        assert (nothing.finish_reason, nothing.token_ids) == ("length", [])
        engine.run()
        assert not engine.has_unfinished() and engine.step() == []
    finally:
        hook.remove()
    assert second.token_ids == alone_greedy(model, [7], 2) and 0 not in sizes and len(sizes) == 4
    check_empty(engine)


def test_a_slot_that_is_used_again_is_clean(model):
    engine = qwenlab.Engine(model, slots=1)
    asked = [
        engine.submit(prompt, max_new_tokens=6, stop=())
        for prompt in ([7, 7, 9, 4], [9, 2], [7, 7, 9, 4])
    ]
    engine.run()
    assert asked[0].token_ids == asked[2].token_ids == alone_greedy(model, [7, 7, 9, 4], 6)
    assert asked[0].logprobs == asked[2].logprobs


def test_what_can_never_fit_is_refused_at_once(model):
    engine = qwenlab.Engine(model, token_budget=64)
    fits = engine.submit(list(range(63)), stop=())
    for length in (64, 65, 500):
        with pytest.raises(
            ValueError, match=f"has {length} tokens: no room for a new one in a token_budget of 64"
        ):
            engine.submit([1] * length)
    short = engine.submit([1, 2], max_new_tokens=3, stop=())
    engine.run()
    assert (
        fits.token_ids == alone_greedy(model, list(range(63)), 1) and fits.finish_reason == "length"
    )
    assert short.token_ids == alone_greedy(model, [1, 2], 3)
    with pytest.raises(
        ValueError, match="has 600 tokens: no room for a new one in a context of 512"
    ):
        qwenlab.Engine(model, token_budget=10_000).submit([1] * 600)


def test_the_youngest_gives_way_and_goes_on_where_it_was(model):
    """Its random numbers and log-probabilities too go on; the older one never notices."""
    options = {"max_new_tokens": 12, "stop": (), "temperature": 1.0}
    engine = qwenlab.Engine(model, slots=3, token_budget=40)
    old, young = (
        engine.submit(list(range(10 * i, 10 * i + 10)), seed=i, **options) for i in (1, 2)
    )
    lost = None
    while engine.has_unfinished():
        engine.step()
        if engine.stats.preempted and lost is None:
            lost = len(young.token_ids)
            assert list(engine.scheduler.waiting) == [young] and old.slot == 0
    assert 0 < lost < 12 and engine.stats.preempted == 1
    assert engine.stats.prefill_tokens == 20 + 10 + lost  # prompt and answer so far, once more
    for request, seed in ((old, 1), (young, 2)):
        expected = alone(model, request.prompt, seed=seed, **options)
        assert request.token_ids == expected.token_ids
        ours, theirs = torch.tensor(request.logprobs), torch.tensor(expected.logprobs)
        assert difference(ours, theirs) < 1e-5


def test_nobody_is_overtaken_for_being_long(dense):
    engine = qwenlab.Engine(dense, slots=4, token_budget=40)
    for length in (30, 35, 1, 1):
        engine.submit([1] * length, max_new_tokens=5, stop=())
    started = []
    while engine.has_unfinished():
        engine.step()
        started += [r.arrival for r in engine.scheduler.running if r.arrival not in started]
    assert started == [0, 1, 2, 3]


def test_cancelling_frees_the_slot_at_the_next_step(model):
    engine = qwenlab.Engine(model, slots=1)
    first, second, third = (engine.submit([i, 3], max_new_tokens=30, stop=()) for i in range(3))
    engine.step(), engine.step()
    engine.cancel(first)
    engine.cancel(second)  # still in line
    assert (first.finish_reason, second.finish_reason, second.token_ids) == (
        "cancelled",
        "cancelled",
        [],
    )
    engine.step()
    assert third.slot == 0 and len(third.token_ids) == 1
    engine.run()
    engine.cancel(third)  # too late: nothing changes
    assert third.finish_reason == "length" and third.token_ids == alone_greedy(model, [2, 3], 30)
    assert first.token_ids == alone_greedy(model, [0, 3], 2) and first.seconds > 0
    check_empty(engine)


def test_a_callback_that_raises_ends_its_own_request_only(model):
    def on_token(index, token_id):
        heard.append(index)
        if index == 1 and heard.count(1) == 2:
            raise KeyError("mine")

    for strategy in POLICIES:
        heard = []
        with pytest.warns(UserWarning, match="request 1: its on_token raised KeyError: 'mine'"):
            result = qwenlab.generate(
                model,
                [[1], [2], [3]],
                max_new_tokens=4,
                stop=(),
                on_token=on_token,
                strategy=strategy,
            )
        assert [r.finish_reason for r in result] == ["length", "error", "length"]
        assert (
            result[1].error == "request 1: its on_token raised KeyError: 'mine'"
            and result[0].error is None
        )
        assert result.token_ids == [
            alone_greedy(model, [i + 1], 2 if i == 1 else 4) for i in range(3)
        ]


def test_a_callback_may_cancel_and_submit(dense):
    engine, late = qwenlab.Engine(dense, slots=2), []

    def on_token(index, token_id):
        if index == 0:
            engine.cancel(other)
            late.append(engine.submit([9], max_new_tokens=2, stop=()))

    engine.submit([1], max_new_tokens=1, stop=(), on_token=on_token)
    other = engine.submit([2], max_new_tokens=5, stop=())
    engine.run()
    assert (other.finish_reason, other.token_ids) == ("cancelled", alone_greedy(dense, [2], 1))
    assert late[0].token_ids == alone_greedy(dense, [9], 2)
    check_empty(engine)


@pytest.mark.parametrize("how", ["step", "run", "stream"])
@pytest.mark.parametrize("where", ["on_token", "sampler"])
def test_a_step_within_a_step_is_refused_and_changes_nobody_s_answer(model, where, how):
    """From a callback the request that has it ends with "error"; from a sampler the step breaks
    off."""

    def again():
        if tried:
            return
        tried.append(1)
        if how == "stream":
            next(engine.stream(other))
        else:
            getattr(engine, how)()

    def sampler(logits, requests):
        if where == "sampler":
            again()
        return logits.argmax(-1)

    tried = []
    engine = qwenlab.Engine(model, slots=2, sampler=sampler)
    on_token = (lambda index, token_id: again()) if where == "on_token" else None
    own = engine.submit([1, 2], max_new_tokens=4, stop=(), on_token=on_token)
    other = engine.submit([3], max_new_tokens=4, stop=())
    refusal = "step was called from within a step of the same engine"
    if where == "on_token":
        with pytest.warns(
            UserWarning, match=f"request 0: its on_token raised ValueError: {refusal}"
        ):
            engine.run()
        assert own.finish_reason == "error" and own.token_ids == alone_greedy(model, [1, 2], 1)
    else:
        with pytest.raises(
            ValueError,
            match=f"^{refusal}.*sampler may submit and cancel, but not step, run or stream$",
        ):
            engine.run()
        engine.run()
        assert own.token_ids == alone_greedy(model, [1, 2], 4)
    assert tried and other.token_ids == alone_greedy(model, [3], 4)
    check_empty(engine)


def test_another_engine_s_request_is_refused(dense):
    mine, yours = qwenlab.Engine(dense), qwenlab.Engine(dense)
    mine.submit([1], max_new_tokens=2, stop=())
    request = yours.submit([2], max_new_tokens=2, stop=())
    for _ in range(2):  # while it runs, and after it has ended
        for use in (mine.cancel, mine.stream):
            with pytest.raises(
                ValueError,
                match=r"^request 0 is not this engine's: expected a request returned by this engine's",
            ):
                use(request)
        yours.run()
        assert request.finish_reason == "length" and request.token_ids == alone_greedy(
            dense, [2], 2
        )


def test_streams_side_by_side(model):
    engine = qwenlab.Engine(model, slots=2)
    asked = [engine.submit([i, 3], max_new_tokens=5, stop=()) for i in range(3)]
    streams, said = [engine.stream(request) for request in asked], [[], [], []]
    for _ in range(5):
        for stream, ids in zip(streams, said, strict=True):
            ids.append(next(stream))
    assert said == [alone_greedy(model, [i, 3], 5) for i in range(3)]
    assert [next(stream, None) for stream in streams] == [None] * 3
    left = engine.submit([8], max_new_tokens=4, stop=())
    for _ in engine.stream(left):
        break
    assert len(left.token_ids) == 1 and not torch.is_inference_mode_enabled()
    engine.run()
    assert list(engine.stream(left)) == left.token_ids == alone_greedy(model, [8], 4)


def test_nan_ends_the_row_that_has_it_and_says_so(model):
    def broken(q, k, v, mask, scale):
        out = torch.nn.functional.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=mask is None and q.shape[2] > 1,
            scale=scale,
            enable_gqa=True,
        )
        if bad:
            out[bad.pop()] = float("nan")
        return out

    engine, bad = qwenlab.Engine(model, slots=2), []
    first, second = (engine.submit([i], max_new_tokens=4, stop=()) for i in (1, 2))
    engine.step()
    try:
        model.attention, bad[:] = broken, [0]
        with pytest.warns(UserWarning, match="request 0: its logits are NaN after 1 new tokens"):
            assert engine.step() == [first, second]
    finally:
        model.attention = "sdpa"
    engine.run()
    assert (
        first.finish_reason == "error"
        and first.error == "request 0: its logits are NaN after 1 new tokens"
    )
    assert (engine.stats.finished, engine.stats.sampled_tokens) == (2, 5)
    assert second.token_ids == alone_greedy(model, [2], 4)
    check_empty(engine)


@pytest.mark.parametrize("at", range(count(4, 30)))
def test_a_step_that_breaks_off_costs_time_only(model, at):
    """Ctrl-C in the midst of a pass: everybody's row is read again, and the answers are the same."""

    def interrupted(module, args):
        passes.append(1)
        if len(passes) == at % 7 + 2:
            raise KeyboardInterrupt

    rng, passes = random.Random(at), []
    prompts = random_prompts(rng, 5, 30)
    options = [
        {"max_new_tokens": rng.randint(2, 9), "stop": (), "temperature": 1.0, "seed": i}
        for i in range(5)
    ]
    engine = qwenlab.Engine(model, slots=3, chunk=7)
    asked = [engine.submit(prompt, **own) for prompt, own in zip(prompts, options, strict=True)]
    hook = model.model.layers[-1].register_forward_pre_hook(interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            engine.run()
    finally:
        hook.remove()
    engine.run()
    for request, prompt, own in zip(asked, prompts, options, strict=True):
        assert request.token_ids == alone(model, prompt, **own).token_ids
    check_empty(engine)


def test_rows_of_the_caller_s_own_state_go_on(model):
    """What a conversation needs: rows of unequal length keep their place, and earlier turns aren't
    read again."""
    from qwenlab.engine.prompts import new_request
    from qwenlab.engine.request import SamplingParams

    state, said = model.new_state(4), [[], [], [], []]
    turns = [  # row 1 is of another length class than the others, and row 2 sits out a turn
        [[1, 2, 3], list(range(130)), [5, 6], [4]],
        [[7], [8, 9, 10, 11], None, [12]],
        [[13, 14], [15], [16], [17] * 9],
    ]
    for texts in turns:
        asked = []
        for row in [row for row in range(4) if texts[row]]:
            said[row] += texts[row]
            params = SamplingParams(max_new_tokens=3 + row, stop=())
            asked.append(new_request(model, list(said[row]), params, index=row))
        before = [int(length) for length in state.lengths]
        engine = qwenlab.Engine(model, 4, strategy="early-stop", state=state)
        for request in asked:
            engine.add_request(request)
        engine.run()
        assert engine.stats.prefill_tokens == sum(len(r.prompt) - before[r.index] for r in asked)
        for request in asked:
            expected = alone_greedy(model, said[request.index], 3 + request.index)
            assert request.token_ids == expected
            said[request.index] += expected
    assert state.lengths.tolist() == [
        len(ids) - 1 for ids in said
    ]  # the last id was said, not read
    assert not state.lengths.is_inference()


def test_events_of_a_continuous_run(dense):
    result = qwenlab.generate(dense, [[1], [2, 3], [4]], max_new_tokens=[1, 3, 2], stop=(), slots=2)
    assert result.stats.events == [
        Event(0, 0, 0, "prefill"),
        Event(0, 1, 1, "prefill"),
        Event(1, 0, 1, "decode"),  # it moved up: who decodes stands together
        Event(1, 1, 2, "prefill"),
        Event(2, 0, 1, "decode"),
        Event(2, 1, 2, "decode"),
    ]
    assert result.stats.row_steps == {"real": 6, "wasted": 0, "idle": 0}


def test_an_engine_keeps_the_last_events_only(dense):
    engine = qwenlab.Engine(dense, slots=2)
    engine.submit([1], max_new_tokens=300, stop=())
    engine.run()
    steps = [event.step for event in engine.stats.events]
    assert (min(steps), max(steps), len(steps)) == (300 - 128, 299, 2 * 128)
    assert engine.stats.row_steps == {"real": 300, "wasted": 0, "idle": 300}


def test_a_decode_step_moves_and_makes_nothing(model):
    """One pass, read as a view; no row moved, emptied or put; nobody looks at the line."""
    engine = qwenlab.Engine(model, slots=3)
    for i in range(5):
        engine.submit([i], max_new_tokens=6, stop=())
    engine.step()
    seen = []
    for name in ("move", "reset", "put", "select"):
        setattr(engine.runner.state, name, lambda *args, name=name: seen.append(name))
    compute, ids = model.compute, []

    def noted(batch, **options):
        ids.append(batch.input_ids.shape)
        seen.append(batch.slots)
        return compute(batch, **options)

    model.compute = noted
    try:
        for _ in range(3):
            engine.step()
    finally:
        del model.compute
    assert ids == [(3, 1)] * 3 and seen == [range(3)] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": 0}, "slots is 0, expected a whole number of at least 1"),
        ({"chunk": 0}, "chunk is 0"),
        ({"token_budget": 1}, "token_budget is 1, expected a whole number of at least 2"),
        ({"token_budget": 64, "strategy": "static"}, "token_budget needs a strategy that frees"),
        (
            {"strategy": "magic"},
            "strategy is 'magic', expected one of sequential, static, early-stop, continuous",
        ),
    ],
)
def test_wrong_engines_are_refused(dense, options, message):
    with pytest.raises(ValueError, match=message):
        qwenlab.Engine(dense, **options)


def test_soak(dense):
    """Thousands of short requests through 16 slots: all answers right, and memory flat after the
    first 500."""
    rng, total = random.Random(0), count(900, 5000)
    kinds = []
    for prompt in random_prompts(rng, 30, 12):
        options = {
            "max_new_tokens": rng.randint(1, 8),
            "stop": range(0, 320, 30),
            "temperature": rng.choice([0.0, 1.0]),
        }
        options["seed"] = rng.randrange(99)
        kinds.append((prompt, options, alone(dense, prompt, **options).token_ids))
    engine, waiting = qwenlab.Engine(dense, slots=16, token_budget=200, chunk=8), []
    done, marks = 0, []
    tracemalloc.start()
    try:
        for i in range(total):
            prompt, options, expected = kinds[rng.randrange(30)]
            waiting.append((engine.submit(prompt, **options), expected))
            while len(waiting) >= 40 or (i == total - 1 and waiting):
                engine.step()
                for request, expected in [pair for pair in waiting if pair[0].finish_reason]:
                    assert request.token_ids == expected
                    done += 1
                waiting = [pair for pair in waiting if not pair[0].finish_reason]
            if i in (500, total - 1):
                gc.collect()
                used = peak_memory(dense.device)
                marks.append((tracemalloc.get_traced_memory()[0], engine.runner.state.nbytes, used))
    finally:
        tracemalloc.stop()
    assert done == total == engine.stats.finished
    (python, state, peak), (python_end, state_end, peak_end) = marks
    assert python_end - python < 200_000 and state_end == state  # bytes; a request takes some 2,000
    assert peak_end - peak < 20 * 2**20  # bytes, of the whole process
    check_empty(engine)


def test_a_warning_is_no_habit(dense):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        qwenlab.generate(dense, [[1], [2, 3]], max_new_tokens=3, on_token=lambda i, token_id: None)
