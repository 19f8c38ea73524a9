"""An exception may strike anywhere: whatever goes on afterwards is told what it is told alone, or
refused in one line.

Where to strike is found by tracing a run that nothing disturbs, so nothing here knows how a step is
made.
"""

import random
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from helpers import FAMILIES, alone_logits, count, difference, random_prompts
from small_checkpoint import VOCAB
from small_tokenizer import TEMPLATE, small_spec

import qwenlab
from qwenlab.evaluation import evaluate, load_problems
from qwenlab.text.chat_template import ChatTemplate, ChatTemplateError
from qwenlab.text.tokenizer import Tokenizer

PACKAGE = str(Path(qwenlab.__file__).parent)
SMALL = Tokenizer(small_spec(), ChatTemplate(TEMPLATE), "<|endoftext|>")
BREAKS = (KeyboardInterrupt, MemoryError)  # what no step can see coming


@cache
def family(name):
    """Over the small tokenizer's vocabulary; some of it ends an answer, so that answers end now and
    then."""
    model = FAMILIES[name](seed=0, vocab_size=VOCAB, eos_token_id=VOCAB - 3)
    model.stop_ids = frozenset(range(100, 124)) | {VOCAB - 3, VOCAB - 5}
    return model


class Strike:
    """While it is entered, raises `problem` before line number `at` of the package's that is
    reached, counted from 1; with at=None it only notes them: `lines` has (file, number) of each,
    `seen` what `look` gave just before it. Lines count only where `step` (a code object) is being
    called, if given, and from when `after` says True."""

    def __init__(
        self,
        at=None,
        problem=KeyboardInterrupt,
        *,
        step=None,
        after=lambda: True,
        look=lambda: None,
    ):
        self.at, self.problem, self.step, self.after, self.look = at, problem, step, after, look
        self.lines, self.seen = [], []

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self.trace)
        return self

    def __exit__(self, *_):
        sys.settrace(self.before)

    def trace(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line" and self.after() and (self.step is None or within(frame, self.step)):
            self.lines.append((frame.f_code.co_filename, frame.f_lineno))
            self.seen.append(self.look())
            if len(self.lines) == self.at:
                raise self.problem("struck here")
        return self.trace


def within(frame, code) -> bool:
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def each_line_once(rng, lines, reduced):
    """One place for each line of the code that was reached, at random among the times that it was."""
    places = {}
    for place, line in enumerate(lines, 1):
        places.setdefault(line, []).append(place)
    chosen = [rng.choice(times) for times in places.values()]
    return rng.sample(chosen, count(reduced, len(chosen)))


def around_changes(seen, before=8, behind=4):
    """For each change of what was seen, the lines before and behind it."""
    changes = [place for place in range(1, len(seen)) if seen[place] != seen[place - 1]]
    near = [
        range(max(1, place - before + 1), min(len(seen), place + behind) + 1) for place in changes
    ]
    return [list(places) for places in near]


# --- The engine ------------------------------------------------------------------------------------------------------


class Talk:
    """A few requests with settings of their own in an engine, what on_token was told, and what each
    is told alone."""

    def __init__(self, name, seed):
        self.rng, self.model, self.told = random.Random(seed), family(name), {}
        self.prompts = random_prompts(self.rng, 5, 20, VOCAB)
        self.options = [
            {
                "max_new_tokens": self.rng.randint(1, 6),
                "temperature": self.rng.choice([0.0, 1.0]),
                "repetition_penalty": self.rng.choice([1.0, 1.3]),
                "stop": range(0, VOCAB, 20),
                "seed": i,
            }
            for i in range(5)
        ]
        self.budget = self.rng.choice([None, 60])

    def engine(self):
        self.told = {}
        engine = qwenlab.Engine(self.model, slots=3, chunk=7, token_budget=self.budget)
        pairs = zip(self.prompts, self.options, strict=True)
        return engine, [engine.submit(prompt, **own, on_token=self.hear) for prompt, own in pairs]

    def hear(self, index, token_id):
        self.told.setdefault(index, []).append(token_id)

    def lines(self):
        engine, _ = self.engine()
        with Strike() as strike:
            engine.run()
        return strike.lines

    def alone(self):
        return [
            qwenlab.generate(
                self.model, [prompt], strategy="sequential", **own | {"seed": [own["seed"]]}
            )[0]
            for prompt, own in zip(self.prompts, self.options, strict=True)
        ]

    def check(self, engine, requests, expected):
        for request, alone in zip(requests, expected, strict=True):
            assert request.token_ids == self.told.get(request.index, [])
            assert len(request.logprobs) == len(request.token_ids) + (request.stop_id is not None)
            if request.finish_reason == "error":  # memory ran out just as its on_token was called
                assert "MemoryError" in request.error and "\n" not in request.error
                assert request.token_ids == alone.token_ids[: len(request.token_ids)]
                continue
            assert (request.token_ids, request.finish_reason) == (
                alone.token_ids,
                alone.finish_reason,
            )
            assert request.logprobs == pytest.approx(alone.logprobs, abs=1e-4)
        assert engine.stats.finished == len(requests)
        assert engine.stats.sampled_tokens == sum(len(request.logprobs) for request in requests)
        assert not engine.step()


def go_on(engine, strike):
    try:
        with strike:
            engine.run()
    except strike.problem:
        pass


@pytest.mark.filterwarnings("ignore:request .+ its on_token raised MemoryError")
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("seed", range(count(6, 60)))
def test_an_engine_goes_on_wherever_an_exception_struck(name, seed):
    """Up to three times at random lines: all answers as alone, every id told once, every end
    counted."""
    talk = Talk(name, seed)
    expected, lines = talk.alone(), talk.lines()
    engine, requests = talk.engine()
    for _ in range(talk.rng.randint(1, 3)):
        go_on(engine, Strike(talk.rng.randint(1, len(lines)), talk.rng.choice(BREAKS)))
    engine.run()
    talk.check(engine, requests, expected)


@pytest.mark.filterwarnings("ignore:request .+ its on_token raised MemoryError")
@pytest.mark.parametrize("name", FAMILIES)
def test_an_engine_goes_on_after_a_strike_at_each_line(name):
    talk = Talk(name, 1)
    expected = talk.alone()
    for at in each_line_once(talk.rng, talk.lines(), 8):
        engine, requests = talk.engine()
        go_on(engine, Strike(at, talk.rng.choice(BREAKS)))
        engine.run()
        talk.check(engine, requests, expected)


@pytest.mark.parametrize("problem", BREAKS)
def test_a_strike_at_each_line_of_the_guard_leaves_the_engine_able_to_step(problem):
    """The guard refuses a step within a step; it must not take the next step for one."""
    talk = Talk("dense", 1)
    expected = talk.alone()
    guard = qwenlab.Engine.step.__code__
    own = {(guard.co_filename, number) for *_, number in guard.co_lines()}
    places = {}
    for place, line in enumerate(talk.lines(), 1):
        if line in own:
            places.setdefault(line, place)
    assert len(places) > 4
    for at in places.values():
        engine, requests = talk.engine()
        go_on(engine, Strike(at, problem))
        engine.run()
        talk.check(engine, requests, expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_engine_goes_on_where_a_second_exception_strikes_as_it_recovers(name):
    """Ctrl-C twice: the second while the first is being dealt with, at each line of that."""
    talk = Talk(name, 2)
    expected, passes = talk.alone(), []

    def broken(module, inputs):
        passes.append(1)
        if len(passes) == 4:
            raise KeyboardInterrupt

    def disturbed(at):
        engine, requests = talk.engine()
        passes.clear()
        strike = Strike(at, after=lambda: len(passes) >= 4)
        hook = talk.model.model.layers[-1].register_forward_pre_hook(broken)
        try:
            with strike, pytest.raises(KeyboardInterrupt):
                engine.run()
        finally:
            hook.remove()
        engine.run()
        talk.check(engine, requests, expected)
        return strike.lines

    for at in each_line_once(talk.rng, disturbed(None), 5):
        disturbed(at)


# --- The chat --------------------------------------------------------------------------------------------------------

CAP = 5


def answer_alone(model, prompt):
    result = qwenlab.generate(model, [prompt], max_new_tokens=CAP, strategy="sequential")[0]
    return result.token_ids, result.finish_reason


def talk_on(chat, turns):
    """Turns that nothing disturbs: each answers the conversation as it stands, as alone."""
    for texts in turns:
        before = chat.token_ids
        chat.send(texts)
        for row, text in enumerate(texts):
            if text is None:
                assert chat.token_ids[row] == before[row]
                continue
            opening = (
                SMALL.next_turn(text)
                if before[row]
                else SMALL.chat([{"role": "user", "content": text}])
            )
            request = chat.requests[row]
            assert request.prompt == before[row] + opening
            assert (request.token_ids, request.finish_reason) == answer_alone(
                chat.model, request.prompt
            )


def struck_turn(chat, texts, strike):
    """A turn that may break off. What it leaves of an answer is the beginning of the one alone."""
    before = chat.token_ids
    try:
        with strike:
            if chat.batch_size == 1:
                for _ in chat.stream(texts[0]):
                    pass
            else:
                chat.send(texts)
    except (
        strike.problem,
        ChatTemplateError,
    ):  # a template that fails is refused in one line, whatever the reason
        pass
    for row, text in enumerate(texts):
        if chat.token_ids[row] == before[row]:
            continue
        opening = (
            SMALL.next_turn(text)
            if before[row]
            else SMALL.chat([{"role": "user", "content": text}])
        )
        said = chat.token_ids[row][len(before[row]) + len(opening) :]
        assert chat.token_ids[row] == before[row] + opening + said
        assert said == answer_alone(chat.model, before[row] + opening)[0][: len(said)]


def turns_of(rng, rows):
    return [
        [rng.choice(["a", "the in", "b" * 9, None]) for _ in range(rows - 1)] + ["in the"]
        for _ in range(4)
    ]


def chat_lines(model, turns, many):
    """The lines of turn number `many` after those before it."""
    chat = new_chat(model, turns)
    talk_on(chat, turns[:many])
    strike = Strike()
    struck_turn(chat, turns[many], strike)
    return strike.lines


def new_chat(model, turns):
    return qwenlab.Chat(model, SMALL, len(turns[0]), max_new_tokens=CAP)


def strike_and_talk_on(model, turns, many, strike):
    chat = new_chat(model, turns)
    talk_on(chat, turns[:many])
    struck_turn(chat, turns[many], strike)
    talk_on(chat, turns[many + 1 :])


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("seed", range(count(3, 40)))
def test_a_chat_goes_on_wherever_an_exception_struck(name, seed):
    rng, model = random.Random(seed), family(name)
    turns, many = turns_of(rng, rng.randint(1, 3)), rng.randint(0, 2)
    at = rng.randint(1, len(chat_lines(model, turns, many)))
    strike_and_talk_on(model, turns, many, Strike(at, rng.choice(BREAKS)))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("rows", [1, 2])
def test_a_chat_goes_on_after_a_strike_at_each_line(name, rows):
    """The turn that breaks off is the second, which makes the state grow."""
    rng, model = random.Random(0), family(name)
    turns = turns_of(rng, rows)[:3]
    for at in each_line_once(rng, chat_lines(model, turns, 1), 5):
        strike_and_talk_on(model, turns, 1, Strike(at, rng.choice(BREAKS)))


# --- Evaluation, where a problem's samples share what was read --------------------------------------------------------


@pytest.mark.parametrize("name", ["tiny", "tiny-hybrid"])
@pytest.mark.parametrize("seed", range(count(1, 20)))
def test_an_evaluation_goes_on_wherever_in_a_step_memory_ran_out(name, seed):
    rng, (model, tokenizer) = random.Random(seed), qwenlab.load(name)
    problems = load_problems("tiny-test", 3)

    def records(strike):
        with strike:
            result = evaluate(
                model,
                tokenizer,
                problems,
                samples=2,
                temperature=1.0,
                max_new_tokens=12,
                seed=seed,
                batch_size=5,
            )
        return [
            {key: value for key, value in record.items() if key != "seconds"}
            for record in result.records
        ]

    step = qwenlab.Engine.step.__code__
    calm = Strike(step=step)
    expected = records(calm)
    assert (
        records(Strike(rng.randint(1, len(calm.lines)), torch.OutOfMemoryError, step=step))
        == expected
    )


# --- The state -------------------------------------------------------------------------------------------------------


def grown(model):
    """A state of two rows about to grow, and what they hold."""
    rows = [[1, 2, 3], [4, 5]]
    state = model.new_state(2)
    for row, ids in enumerate(rows):
        model(torch.tensor([ids]), state=state, rows=[row])
    return state, rows


CHANGES = {
    "a call that makes it grow": lambda model, state, other: model(
        torch.tensor([[7, 8, 9]]), state=state, rows=[1]
    ),
    "a decode step": lambda model, state, other: model(torch.tensor([[7], [8]]), state=state),
    "reset": lambda model, state, other: state.reset([0]),
    "put": lambda model, state, other: state.put([1], other),
    "move": lambda model, state, other: state.move([0], [1]),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_row_is_right_or_refused_wherever_an_exception_struck(name, what):
    """Struck at every line of each change: a row goes on as its length says, or is refused until it
    is read again."""
    model, change = family(name), CHANGES[what]
    other = model.new_state(1)
    model(torch.tensor([[11, 12, 13, 14]]), state=other)

    def struck(at):
        state, rows = grown(model)
        strike = Strike(at, random.Random(at or 0).choice(BREAKS))
        try:
            with strike:
                change(model, state, other)
        except strike.problem:
            pass
        may_hold = (
            [rows[0], rows[0] + [7], []],
            [rows[1], rows[1] + [7, 8, 9], rows[1] + [8], [11, 12, 13, 14], rows[0]],
        )
        for row in (0, 1):
            try:
                logits = model(torch.tensor([[20]]), state=state.snapshot(), rows=[row])[0]
            except ValueError as refused:
                assert "\n" not in str(refused) and f"slot {row} is invalid" in str(refused)
                state.reset([row])
                model(torch.tensor([rows[row]]), state=state, rows=[row])
                logits, held = model(torch.tensor([[20]]), state=state, rows=[row])[0], rows[row]
                assert difference(logits[-1], alone_logits(model, [*held, 20])[-1]) < 1e-5
            else:
                length = int(state.lengths[row])
                fits = [ids for ids in may_hold[row] if len(ids) == length]
                assert any(
                    difference(logits[-1], alone_logits(model, [*ids, 20])[-1]) < 1e-5
                    for ids in fits
                )
        return strike.lines

    for at in each_line_once(random.Random(0), struck(None), 5):
        struck(at)


# --- Growth ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_a_chat_goes_on_where_its_state_was_about_to_grow_or_just_had(name):
    """Struck at each line around the one before which the state has become larger."""
    model = family(name)
    turns = [["a", "the in"], ["in the", "b"], ["a", "a"]]

    def struck(at):
        chat = new_chat(model, turns)
        talk_on(chat, turns[:1])
        strike = Strike(at, look=lambda: chat.state.nbytes)
        struck_turn(chat, turns[1], strike)
        talk_on(chat, turns[2:])
        return strike.seen

    (places,) = around_changes(struck(None), 4)
    for at in places:
        struck(at)


# --- What generate makes known ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_generate_makes_every_end_known_once_wherever_it_is_interrupted(name):
    """An answer whose last id was told has ended, and on_finish was called; for nobody twice."""
    model, rng = family(name), random.Random(4)
    prompts = random_prompts(rng, 4, 12, VOCAB)
    caps = [1, 2, 3, 2]
    whole = qwenlab.generate(model, prompts, max_new_tokens=caps, stop=())
    step = qwenlab.Engine.step.__code__

    def interrupted(at):
        told, ended = {}, []
        strike = Strike(at, step=step, look=lambda: (sum(map(len, told.values())), len(ended)))
        try:
            with strike:
                qwenlab.generate(
                    model,
                    prompts,
                    max_new_tokens=caps,
                    stop=(),
                    slots=3,
                    on_token=lambda index, token_id: told.setdefault(index, []).append(token_id),
                    on_finish=ended.append,
                )
        except strike.problem:
            pass
        for request in ended:
            assert request.token_ids == whole[request.index].token_ids == told[request.index]
        done = [index for index, ids in told.items() if len(ids) == caps[index]]
        assert sorted(request.index for request in ended) == sorted(done)
        return strike.seen

    changes = around_changes(interrupted(None))
    for places in rng.sample(changes, count(2, len(changes))):
        for at in places:
            interrupted(at)
