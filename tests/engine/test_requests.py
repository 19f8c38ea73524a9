"""What is asked for, how it is added, and the doors that callers use instead of the inside."""

import pytest
from helpers import alone_greedy

import qwenlab
from qwenlab.engine.prompts import make_requests, new_request
from qwenlab.engine.results import Stats


def test_the_old_package_names_the_new_place():
    for name in ("qwenlab.batching", "qwenlab.batching.request"):
        with pytest.raises(ImportError, match=r"^qwenlab\.batching is now qwenlab\.engine$"):
            __import__(name)


def test_the_options_travel_as_one_object(dense):
    params = qwenlab.SamplingParams(max_new_tokens=5, stop=(), temperature=1.0, seed=3)
    engine = qwenlab.Engine(dense)
    request = engine.submit([1, 2], params)
    other = engine.submit([1, 2], max_new_tokens=5, stop=(), temperature=1.0, seed=3)
    engine.run()
    assert request.params == other.params and request.token_ids == other.token_ids
    with pytest.raises(AttributeError):
        params.top_k = 3
    with pytest.raises(
        ValueError, match=r"^pass either params or options, not both \(got params and top_k\)$"
    ):
        engine.submit([1], params, top_k=2)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"temperature": -1}, r"^temperature is -1, expected 0 or more$"),
        ({"top_p": 1.5}, r"^top_p is 1\.5, expected 0 to 1$"),
        ({"seed": 0.5}, r"^seed is 0\.5, expected a whole number of at least 0$"),
        ({"stop": 7}, r"^stop is 7, expected token ids$"),
    ],
)
def test_a_wrong_option_is_named(option, message):
    with pytest.raises(ValueError, match=message):
        qwenlab.SamplingParams(**option)
    (name, _), *_ = option.items()
    with pytest.raises(ValueError, match=f"^{name} of the chat is "):
        qwenlab.SamplingParams(**option, of="the chat")


def test_step_returns_what_it_changed(model):
    engine = qwenlab.Engine(model, slots=2, chunk=4)
    request = engine.submit([1, 2, 3, 4, 5, 6], max_new_tokens=2, stop=())
    assert engine.step() == []  # a part of the prompt
    (output,) = engine.step()
    assert isinstance(output, qwenlab.RequestOutput) and output is request
    assert len(output.token_ids) == 1 and engine.has_unfinished()
    assert engine.step() == [request] and request.finish_reason == "length"
    assert not engine.has_unfinished() and engine.step() == []


def test_an_engine_counts_into_the_stats_that_it_is_given(dense):
    """And keeps the events of every step, where its own stats keep the last ones."""
    stats = Stats()
    engine = qwenlab.Engine(dense, slots=1, stats=stats)
    engine.submit([1, 2], max_new_tokens=200, stop=())
    engine.run()
    assert engine.stats is stats
    assert (stats.prompts, stats.finished, stats.sampled_tokens) == (1, 1, 200)
    assert len(stats.events) == stats.step_count == 200


def test_a_request_belongs_to_one_engine(dense):
    (request,) = make_requests(dense, [[1, 2]], max_new_tokens=2, stop=())
    first = qwenlab.Engine(dense)
    first.add_request(request)
    for engine in (first, qwenlab.Engine(dense)):
        with pytest.raises(ValueError, match=r"^request 0 was added to an engine before$"):
            engine.add_request(request)
    first.run()
    assert request.token_ids == alone_greedy(dense, [1, 2], 2)


def test_fewer_slots_go_on_where_the_others_were(model):
    """Also shared prefixes, of which the copies are gone with the state."""
    prompt = list(range(20))
    requests = make_requests(model, [prompt], 5, max_new_tokens=6, stop=())
    qwenlab.engine.prefix.share(requests, 5)
    engine = qwenlab.Engine(model, slots=3, chunk=8)
    for request in requests:
        engine.add_request(request)
    for slots in (2, 1):
        for _ in range(4):
            engine.step()
        engine.resize(slots)
        assert engine.slots == slots
    engine.run()
    assert [r.token_ids for r in requests] == [alone_greedy(model, prompt, 6)] * 5
    assert engine.stats.finished == 5 and engine.runner.state.batch_size == 1


@pytest.mark.parametrize(
    ("index", "prompt", "message"),
    [
        (2, [1], r"^request 2 has no slot of its own: the state has slots 0\.\.1$"),
        (1, [1, 2], r"^slot 1 of the state holds 3 tokens, expected fewer than the prompt's 2$"),
    ],
)
def test_a_slot_that_does_not_fit_is_refused(dense, index, prompt, message):
    state = dense.new_state(2)
    engine = qwenlab.Engine(dense, 2, strategy="early-stop", state=state)
    own = {"max_new_tokens": 2, "stop": ()}
    engine.add_request(new_request(dense, [3, 4], qwenlab.SamplingParams(**own), index=1))
    engine.run()
    with pytest.raises(ValueError, match=message):
        later = qwenlab.Engine(dense, 2, strategy="early-stop", state=state)
        later.add_request(new_request(dense, prompt, qwenlab.SamplingParams(**own), index=index))


def test_a_request_that_could_outgrow_the_token_budget_is_refused(model):
    """It would wait for ever, and so would `run`."""
    engine = qwenlab.Engine(model, slots=2, token_budget=12)
    (request,) = make_requests(model, [[5] * 20], max_new_tokens=3)
    refused = "request 0 may hold 23 tokens, expected at most the token_budget of 12"
    with pytest.raises(ValueError, match=refused):
        engine.add_request(request)
    assert not engine.has_unfinished()
