"""The model in the page computes what the library computes: in Chromium, from a page opened as a
file, without a network. The references are made here, by the library itself."""

import base64
import json
import random
import re
import shutil
import unicodedata
from html import escape

import numpy as np
import pytest
import torch
from browser import open_page
from helpers import HYBRID, SHAPE, count, random_model, rectangle, watched
from site_files import SITE, built_pages

import qwenlab
from qwenlab.engine.prefix import share
from qwenlab.engine.request import Request, SamplingParams
from qwenlab.engine.sampling import inverse_cdf, logprobs_of, most_probable, penalise, scale
from qwenlab.engine.scheduler import POLICIES, Scheduler
from qwenlab.evaluation import load_problems
from qwenlab.loading import shipped_folder
from qwenlab.model.attention import repeat_heads
from qwenlab.model.softmax import VARIANTS, masked_softmax
from qwenlab.model.weights import save_weights
from qwenlab.teach.in_page import FOLDER, PageModelError, page_model, page_scripts

browser = pytest.mark.browser

# The shipped ones, and random ones of another shape: more value than key heads, an lm_head of
# their own, float32 weights.
DENSE = ("tiny", "own-dense")
HYBRIDS = ("tiny-hybrid", "own-hybrid")
OWN = {
    "own-dense": {"vocab_size": 512, "tie_word_embeddings": False},
    "own-hybrid": {**HYBRID, "vocab_size": 512},
}


def write_own(folder, changes: dict, dtype: torch.dtype | None = None):
    """A random checkpoint with the shipped models' tokenizer."""
    folder.mkdir()
    model = random_model(seed=1, fast=False, **changes)
    (folder / "config.json").write_text(json.dumps({**SHAPE, **changes}), encoding="utf-8")
    save_weights(model, folder, dtype)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(shipped_folder() / "tiny" / name, folder)
    return folder


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """What each name stands for: a shipped name or a folder."""
    folder = tmp_path_factory.mktemp("checkpoints")
    found = {"tiny": "tiny", "tiny-hybrid": "tiny-hybrid"}
    for name, changes in OWN.items():
        dtype = torch.bfloat16 if name == "own-hybrid" else None
        found[name] = write_own(folder / name, changes, dtype)
    return found


@pytest.fixture(scope="module")
def models(checkpoints):
    """The library's models and tokenizers, plain."""
    return {name: qwenlab.load(at, device="cpu", fast=False) for name, at in checkpoints.items()}


@pytest.fixture(scope="module")
def site(tmp_path_factory, checkpoints):
    """A folder as the site has it: scripts, weights, and a page that stands beside them."""
    folder = tmp_path_factory.mktemp("site")
    for name, script in page_scripts().items():
        (folder / name).write_text(script, encoding="utf-8")
    for name, checkpoint in checkpoints.items():
        (folder / f"model-{name}.js").write_text(page_model(checkpoint).script(), encoding="utf-8")
    shown = '<div data-qwenlab-model="tiny"><span>It needs scripts.</span></div>'
    page = f'<!doctype html><meta charset="utf-8"><script src="loader.js"></script>{shown}'
    (folder / "page.html").write_text(page, encoding="utf-8")
    return folder


def ask(page, function: str, argument):
    """What a JavaScript function of one argument returns: as text, which is quick to hand over."""
    through = f"(text) => JSON.stringify(({function})(JSON.parse(text)))"
    return json.loads(page.evaluate(through, json.dumps(argument)))


# Runs the calls of one case, with one state if it has slots, and returns the logits of each.
RUN_CASE = """([name, slots, softmax, calls]) => {
  const [model] = qwenlab.load(name);
  const state = slots ? model.new_state(slots) : null;
  model.softmax = softmax;
  return calls.map((call) => {
    const logits = model.forward(call.input_ids, {...call, state}).flat();
    const bytes = logits.map((row) => new Uint8Array(row.slice().buffer));
    return btoa(bytes.map((row) => String.fromCharCode(...row)).join(""));
  });
}"""


@pytest.fixture(scope="module")
def page(chromium, site):
    page, complaints = open_page(chromium, (site / "page.html").as_uri())
    page.evaluate("(names) => Promise.all(names.map(qwenlab.bring))", [*DENSE, *HYBRIDS])
    yield page
    assert complaints == []
    page.close()


# --- Logits --------------------------------------------------------------------------------------


class Case:
    """Calls of one model, and what they return."""

    def __init__(self, name: str, title: str, slots: int | None = None, softmax="log-sum-exp"):
        self.name = name
        self.title = f"{name}: {title}"
        self.slots = slots
        self.softmax = softmax
        self.calls = []
        self.expected = []

    def call(self, model, input_ids, state=None, **options):
        """One call: tensors become lists on their way to the page."""
        how = self.softmax

        def attention(q, k, v, mask, scale):
            groups = q.shape[1] // k.shape[1]
            scores = q @ repeat_heads(k, groups).mT * scale
            return masked_softmax(scores, mask, how) @ repeat_heads(v, groups)

        model.attention = attention
        with torch.inference_mode():
            self.expected.append(model(input_ids, state=state, **options))
        model.attention = "sdpa"
        options = {
            name: getattr(value, "tolist", lambda v=value: v)() for name, value in options.items()
        }
        self.calls.append({"input_ids": input_ids.tolist(), **options})

    def in_page(self, page) -> list[torch.Tensor]:
        arguments = [self.name, self.slots, self.softmax, self.calls]
        outputs = []
        for text, like in zip(ask(page, RUN_CASE, arguments), self.expected, strict=True):
            numbers = np.frombuffer(base64.b64decode(text), dtype="<f4")
            outputs.append(torch.tensor(numbers).view(like.shape))
        return outputs

    def difference(self, page) -> float:
        """max|a - b| / max(1, max|b|), infinite where only one of both is NaN."""
        largest = 0.0
        for got, expected in zip(self.in_page(page), self.expected, strict=True):
            if not torch.equal(got.isnan(), expected.isnan()):
                return float("inf")
            size = max(1.0, float(expected.nan_to_num().abs().max()))
            largest = max(largest, float((got - expected).nan_to_num().abs().max()) / size)
        return largest


def cases_of(name: str, model) -> list[Case]:
    rng = random.Random(name)
    rows = [[rng.randrange(512) for _ in range(length)] for length in (3, 9, 1, 6)]
    hybrid = name in HYBRIDS
    cases = [Case(name, "alone"), Case(name, "pads anywhere"), Case(name, "cached and ragged", 5)]
    cases[0].call(model, torch.tensor(rows[1:2]))
    ids, mask = rectangle(rows, 11, "inner", 466, rng)
    cases[1].call(model, ids, attention_mask=mask)

    state = model.new_state(5)
    slots = [4, 0, 2, 1]
    cases[2].call(model, ids, state, attention_mask=mask, rows=slots, last_only=True)
    more, some = rectangle([[7, 8], [], [9, 10, 11], [12]], 4, "left", 466)
    cases[2].call(model, more, state, attention_mask=some, rows=slots)
    for step in range(3):
        cases[2].call(model, torch.tensor([[20 + step], [30]]), state, rows=[1, 4], last_only=True)
    if hybrid:
        return cases

    ids, mask = rectangle(rows, 9, "left", 466)
    both = qwenlab.combined_mask(mask)
    padded = Case(name, "left-padded")
    padded.call(model, ids, attention_mask=both, position_ids=qwenlab.position_ids(mask))
    free = Case(name, "random masks")
    free.call(model, ids, attention_mask=torch.rand(both.shape) < 0.6)
    cases += [padded, free]
    for how in VARIANTS:
        variant = Case(name, f"softmax {how}", softmax=how)
        variant.call(model, ids, attention_mask=both)
        cases.append(variant)
    return cases


@pytest.fixture(scope="module")
def cases(models):
    torch.manual_seed(0)
    smallest_first = reversed(models.items())
    return [case for name, (model, _) in smallest_first for case in cases_of(name, model)]


@browser
def test_logits_are_those_of_the_library(page, cases):
    """Also where they are NaN. Rounding adds up in the memory of a linear layer."""
    for case in cases:
        most = 1e-4 if case.name in HYBRIDS else 1e-5
        assert case.difference(page) <= most, case.title
    assert any(e.isnan().any() for case in cases for e in case.expected)


MUTATIONS = {
    "mask ignored": ("masked_softmax(scores, mask, how, itself)", "masked_softmax(scores, null, how, itself)"),
    "masked keys skipped": ("mean[i] += weight *", "if (weight) mean[i] += weight *"),
    "rotary positions off by one": ("starts[b] + t", "Math.max(0, starts[b] - 1) + t"),
    "rotary partner off by one": ("const b = x[start + half + i];", "const b = x[start + half + i - 1];"),
    "key heads mixed up": ("Math.floor(head / groups)", "head % this.kv_heads"),
    "key heads of DeltaNet mixed up": ("Math.floor(head / served)", "head % this.key_heads"),
    "decay left at pads": ("hide_pads(g, batch, this.value_heads);", ""),
    "beta left at pads": ("hide_pads(beta, batch, this.value_heads);", ""),
    "window shifted": ("const first = this.num_new_tokens[b];", "const first = this.num_new_tokens[b] - 1;"),
    "window ends at pads": ("const first = this.num_new_tokens[b];", "const first = this.width;"),
    "norm without its centre": ("this.zero_centred ? 1 + this.weight[i] : this.weight[i]", "this.weight[i]"),
}  # fmt: skip


@browser
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_fault_in_the_script_shows_in_the_logits(page, cases, mutation):
    """What the comparison above is worth: each of these faults, put into model.js, is caught."""
    script = page_scripts()["model.js"]
    before, after = MUTATIONS[mutation]
    assert script.count(before) == 1
    page.evaluate(script.replace(before, after))
    try:
        caught = (case.difference(page) > 1e-2 for case in cases)
        assert any(caught)
    finally:
        page.evaluate(script)


WATCH = """([name, call]) => {
  const [model] = qwenlab.load(name), watch = {};
  model.softmax = call.softmax;
  model.forward(call.input_ids, {...call, watch});
  model.softmax = "log-sum-exp";
  const plain = (x) => x instanceof Float32Array ? Array.from(x, (v) => isNaN(v) ? null : v) : x.map(plain);
  return {attention: plain(watch.attention), finite: watch.finite};
}"""


@browser
@pytest.mark.parametrize("how", VARIANTS)
def test_what_can_be_watched_is_what_the_library_computes(page, models, how):
    """Attention weights of every layer and head, and where the first NaN appears."""
    model, _ = models["tiny"]
    ids, mask = rectangle([[1, 2, 3], [4, 5, 6, 7, 8], [9]], 5, "left", 466)
    both = qwenlab.combined_mask(mask)
    with watched(model, how) as (weights, finite):
        model(ids, both)
    call = {"input_ids": ids.tolist(), "attention_mask": both.tolist(), "softmax": how}
    seen = ask(page, WATCH, ["tiny", call])
    assert seen["finite"] == [by_token.tolist() for by_token in finite]
    got = np.array(seen["attention"], dtype=float)
    np.testing.assert_allclose(got, torch.stack(weights).numpy(), atol=1e-5)  # NaN equals NaN


@browser
@pytest.mark.parametrize("name", HYBRIDS + DENSE)
def test_slots_are_copied_moved_and_emptied_whole(page, name):
    """Whatever was done to a state before, a row goes on as one that was never touched."""
    steps = """(name) => {
      const [model] = qwenlab.load(name);
      const go = (state, rows) => {
        const ids = rows.map(() => [7, 8]);
        const logits = model.forward(ids, {state, rows, last_only: true});
        return logits.map((row) => row.reduce((sum, x, i) => sum + x * Math.sin(i), 0));
      };
      const begin = () => {
        const state = model.new_state(2);
        model.forward([[1, 2, 3], [4, 5, 6]], {state, attention_mask: [[1, 1, 1], [0, 1, 1]]});
        return state;
      };
      const alone = go(begin(), [0, 1]), fresh = go(model.new_state(1), [0])[0];
      const kept = begin().snapshot(), moved = begin(), put = begin(), emptied = begin();
      go(kept.select([0]), [0]);
      moved.move([0, 1], [1, 0]);
      put.put([0, 1], begin().select([1]));
      emptied.reset([1]);
      const spent = begin().snapshot();
      const before = spent.snapshot();
      go(spent, [0, 1]);
      return [
        [go(kept, [1, 0]), [alone[1], alone[0]]],
        [go(begin().repeat(2), [0, 1, 2, 3]), [alone[0], alone[0], alone[1], alone[1]]],
        [go(moved, [0, 1]), [alone[1], alone[0]]],
        [go(put, [0, 1]), [alone[1], alone[1]]],
        [go(emptied, [0, 1]), [alone[0], fresh]],
        [go(before, [0, 1]), alone],
        [[...spent.lengths, ...emptied.lengths], [5, 4, 5, 2]],
        [[Number(spent.nbytes >= before.nbytes)], [1]],
      ];
    }"""
    for got, expected in ask(page, steps, name):
        np.testing.assert_allclose(got, expected, rtol=1e-5)


WRONG = {
    "model.forward([[1, 512]])": "row 0: token id 512 is outside the vocabulary (0 to 511)",
    "model.forward([[1], [1, 2]])": "input_ids is no rectangle, expected B arrays of T ids, T >= 1",
    "model.forward([[1, 2]], {attention_mask: [[0, 0]]})": "row 0 has no real token and there is no state",
    "model.forward([[1, 2]], {attention_mask: [[1]]})": "attention_mask does not fit input_ids: expected (B, T) or (B, 1, T, T)",
    "model.forward([[1, 2]], {position_ids: [[0, 1]]})": "position_ids needs a (B, 1, T, T) mask beside it",
    "model.forward([[1]], {state: model.new_state(2)})": "input_ids has 1 rows, rows names 0, 1",
    "model.forward([[1]], {state: model.new_state(2), rows: [2]})": "row 2 is not there: the state has rows 0..1",
    "qwenlab.load('tiny-hybrid')[0].forward([[1]], {attention_mask: [[[[1]]]]})": "linear attention takes no (B, 1, T, T) mask: give the (B, T) mask",
    "qwenlab.generate(model, [[]])": "prompt 0 is empty or no array, expected at least 1 token id",
    "qwenlab.generate(model, [[1], [600]])": "prompt 1: token id 600 is outside the vocabulary (0 to 511)",
    "qwenlab.generate(model, [[1]], {temprature: 1})": "unknown option temprature, expected max_new_tokens, stop, temperature, top_k, top_p, repetition_penalty, seed",
    "qwenlab.generate(model, [[1]], {top_p: 2})": "top_p is 2, expected 0 to 1",
    "qwenlab.generate(model, [[1]], {seed: [1, 2]})": "seed has 2 values for 1 prompts",
    "qwenlab.generate(model, [[1]], {strategy: 'fast'})": "strategy is fast, expected one of sequential, static, early-stop, continuous",
    "new qwenlab.Engine(model, 0)": "slots is 0, expected a whole number of at least 1",
    "new qwenlab.Engine(model, 2, {token_budget: 9}).submit(new Array(9).fill(1))": "prompt 0 has 9 tokens: no room for a new one in a context of 9",
    "qwenlab.left_pad([[1], []], 0)": "there is no prompt to pad, or an empty one",
    "tokenizer.encode('a\\ud800')": "text holds half a surrogate pair",
    "tokenizer.decode([512])": "token id 512 is outside the vocabulary of 512",
    "tokenizer.chat([{role: 'robot', content: ''}])": "messages[0]: role is robot, expected one of system, user, assistant, tool",
    "qwenlab.load('nobody')": "no model nobody in this page: run the cell that shows page_model first",
}  # fmt: skip


@browser
def test_wrong_input_is_refused_in_one_line(page):
    for code, said in WRONG.items():
        attempt = f"""() => {{
          const [model, tokenizer] = qwenlab.load("tiny");
          try {{ {code}; }} catch (error) {{ return error.message; }}
        }}"""
        assert page.evaluate(attempt) == said, code


# --- Text ----------------------------------------------------------------------------------------


def random_texts(rng: random.Random, number: int) -> list[str]:
    """Letters of all kinds, white space of all kinds, combining marks, control tokens as text."""
    blanks = [chr(c) for c in range(0x3001) if chr(c).isspace()] + list("\u200b\ufeff\u180e\x1c")
    special = [
        "<|im_end|>",
        "<think>",
        "</think>",
        "<|im_start|>user\n",
        "\r\n",
        "e\u0301",
        "가",
        "½",
    ]

    def piece() -> str:
        kind = rng.randrange(5)
        if kind == 0:
            return rng.choice(blanks) * rng.randint(1, 3)
        if kind == 1:
            return rng.choice(special)
        if kind == 2:
            return rng.choice(["What is ", "apples", "12*7", " has ", "don't", "\\boxed{4}"])
        limit = rng.choice([0x80, 0x800, 0x10000, 0x32000])
        found = chr(rng.randrange(limit))
        while unicodedata.category(found) in ("Cs", "Cn"):  # halves of pairs, not yet assigned
            found = chr(rng.randrange(limit))
        return found

    return ["".join(piece() for _ in range(rng.randint(0, 12))) for _ in range(number)]


@browser
def test_text_becomes_the_same_ids_and_ids_the_same_text(page, models):
    _, tokenizer = models["tiny"]
    rng = random.Random(0)
    texts = random_texts(rng, count(1000, 20_000))
    encode = "(texts) => texts.map((text) => qwenlab.load('tiny')[1].encode(text))"
    wrong = []
    for text, ids in zip(texts, ask(page, encode, texts), strict=True):
        if ids != tokenizer.encode(text):
            wrong.append(text)
    assert wrong == []
    rows = [[rng.randrange(512) for _ in range(rng.randint(0, 9))] for _ in range(300)]
    decode = "([rows, skip]) => rows.map((ids) => qwenlab.load('tiny')[1].decode(ids, skip))"
    for skip in (False, True):
        expected = [tokenizer.decode(ids, skip) for ids in rows]
        assert ask(page, decode, [rows, skip]) == expected


@browser
def test_conversations_become_the_same_ids(page, models):
    """Control tokens in a message stay text, and an answer's earlier thinking is dropped."""
    _, tokenizer = models["tiny"]
    rng = random.Random(1)
    talks = []
    for _ in range(count(120, 1000)):
        roles = [
            rng.choice(["system", "user", "assistant", "tool"]) for _ in range(rng.randint(1, 4))
        ]
        messages = [
            {"role": role, "content": text}
            for role, text in zip(roles, random_texts(rng, len(roles)), strict=True)
        ]
        talks.append([messages, rng.random() < 0.5])
    chat = "(talks) => talks.map((talk) => qwenlab.load('tiny')[1].chat(...talk))"
    assert ask(page, chat, talks) == [tokenizer.chat(*talk) for talk in talks]
    turns = [[text, thinking] for text in random_texts(rng, 20) for thinking in (True, False)]
    next_turn = "(turns) => turns.map((turn) => qwenlab.load('tiny')[1].next_turn(...turn))"
    assert ask(page, next_turn, turns) == [tokenizer.next_turn(*turn) for turn in turns]


# --- Generation ----------------------------------------------------------------------------------

GENERATE = """([name, prompts, options]) => {
  const [model] = qwenlab.load(name);
  const {outputs, stats} = qwenlab.generate(model, prompts, options);
  const fields = ({token_ids, finish_reason, logprobs}) => ({token_ids, finish_reason, logprobs});
  return {outputs: outputs.map(fields), steps: stats.steps, sampled: stats.sampled_tokens};
}"""


@browser
@pytest.mark.parametrize("name", ["tiny", "tiny-hybrid"])
def test_greedy_answers_are_those_of_the_library(page, models, name):
    """Step by step, too: what each slot did, and the log-probabilities."""
    _, tokenizer = models[name]
    model, _ = qwenlab.load(name, device="cpu")
    problems = load_problems("tiny-test", count(12, 100))
    prompts = [tokenizer.chat([{"role": "user", "content": p.problem}]) for p in problems]
    theirs = qwenlab.generate(model, prompts, max_new_tokens=128, slots=12)
    ours = ask(page, GENERATE, [name, prompts, {"max_new_tokens": 128, "slots": 12}])
    assert [output["token_ids"] for output in ours["outputs"]] == theirs.token_ids
    assert [o["finish_reason"] for o in ours["outputs"]] == [o.finish_reason for o in theirs]
    for output, expected in zip(ours["outputs"], theirs, strict=True):
        np.testing.assert_allclose(output["logprobs"], expected.logprobs, atol=1e-4)
    assert ours["sampled"] == theirs.stats.sampled_tokens
    assert ours["steps"] == [[list(kind) for kind in kinds] for kinds in theirs.stats.steps]


@browser
def test_sampled_answers_depend_on_their_own_seed_alone(page, models):
    """Not on slots, neighbours or strategy; n samples that share their prompt differ."""
    _, tokenizer = models["tiny"]
    texts = ["17+25?", "8*7?", "What is 99-12?"]
    prompts = [tokenizer.chat([{"role": "user", "content": text}]) for text in texts]
    options = {"temperature": 1.5, "seed": [5, 6, 7], "max_new_tokens": 30}

    def ids(prompts, **changes):
        ours = ask(page, GENERATE, ["tiny", prompts, {**options, **changes}])
        return [output["token_ids"] for output in ours["outputs"]]

    together = ids(prompts)
    for strategy in POLICIES:
        assert ids(prompts, strategy=strategy, slots=2) == together
    for i, prompt in enumerate(prompts):
        assert ids([prompt], seed=[5 + i]) == [together[i]]
    four = ids(prompts[:1], seed=5, n=4)
    assert four[0] == together[0] and len({tuple(answer) for answer in four}) > 1
    assert ids(prompts[:1], seed=5, n=4, shared_prefix=False, slots=3) == four


# --- The scheduler -------------------------------------------------------------------------------


class Script:
    """Requests that arrive and are cancelled, steps that get lost, tokens that are sampled: at
    random, and played once by the library's scheduler. `plans` is what it planned."""

    def __init__(self, seed: int):
        rng = random.Random(seed)
        n = rng.choice([1, 1, 3])
        beginning = [rng.randrange(9) for _ in range(rng.choice([0, 0, 7]))]
        prompts = []
        for _ in range(rng.randint(1, 8)):
            prompts += [beginning + [rng.randrange(9) for _ in range(rng.randint(1, 90))]] * n
        strategy = rng.choice(list(POLICIES))
        policy = POLICIES[strategy]
        budget = None
        if policy.frees_slots_early and rng.random() < 0.5:
            budget = max(map(len, prompts)) + rng.randint(13, 60)
        chunk = rng.randint(1, 40) if policy.admits_while_running else 10**6
        self.arguments = [policy.max_slots or rng.randint(1, 6), strategy, budget, chunk]
        self.prompts = prompts
        self.max_tokens = [rng.randint(0, 12) for _ in prompts]
        self.sharing = [n, bool(beginning)] if rng.random() < 0.7 else None
        self.steps = []
        self.plans = []
        self.prefixes = []
        self.play(rng)

    def play(self, rng: random.Random) -> None:
        requests = []
        for index, prompt in enumerate(self.prompts):
            most = self.max_tokens[index]
            requests.append(Request(index, prompt, max_tokens=most, stop_ids=frozenset({0})))
        if self.sharing:
            share(requests, self.sharing[0], everybody=self.sharing[1])
        scheduler = Scheduler(*self.arguments)
        arrivals = sorted(rng.randint(0, 9) for _ in requests)
        while len(self.steps) < 10 or scheduler.has_unfinished():
            now = len(self.steps)
            step = {"arrive": [i for i, at in enumerate(arrivals) if at == now], "cancel": []}
            for index in step["arrive"]:
                scheduler.add(requests[index])
            unfinished = [r for r in requests if arrivals[r.index] <= now and not r.finish_reason]
            if unfinished and rng.random() < 0.03:
                step["cancel"] = [rng.choice(unfinished).index]
                scheduler.finish(requests[step["cancel"][0]], "cancelled")
            plan = scheduler.schedule()
            self.plans.append(self.named(plan))
            step["lost"] = rng.random() < 0.03
            step["tokens"] = [rng.randrange(12) for _ in plan.sampled]
            if not step["lost"]:
                scheduler.update(plan, step["tokens"], [-1.0] * len(plan.sampled))
                scheduler.unreported.clear()
            self.steps.append(step)
        self.answers = [request.token_ids for request in requests]

    def number(self, prefix) -> int:
        if prefix not in self.prefixes:
            self.prefixes.append(prefix)
        return self.prefixes.index(prefix)

    def named(self, plan) -> dict:
        return {
            "slots": plan.slots,
            "moves": [[move.source, move.target] for move in plan.moves],
            "resets": list(plan.resets),
            "copies": [[self.number(copy.prefix), copy.slot] for copy in plan.copies],
            "decode": [[row.request.index, row.slot] for row in plan.decode],
            "prefill": [[r.request.index, r.slot, r.start, r.end] for r in plan.prefill],
            "saves": [[save.slot, self.number(save.prefix)] for save in plan.saves],
            "drops": sorted(self.number(prefix) for prefix in plan.drops),
            "sampled": [request.index for request in plan.sampled],
            "held_back": [[row.request.index, row.slot] for row in plan.held_back],
            "wasted": sorted(plan.wasted),
            "preempted": [request.index for request in plan.preempted],
            "kinds": [list(kind) for kind in plan.slot_kinds()],
        }


PLAY = """(scripts) => scripts.map(({prompts, max_tokens, sharing, arguments, steps}) => {
  const requests = prompts.map((prompt, i) => new qwenlab.Request(
    i, prompt, {max_tokens: max_tokens[i], stop_ids: new Set([0])}));
  if (sharing) qwenlab.share(requests, ...sharing);
  const scheduler = new qwenlab.Scheduler(...arguments), prefixes = [];
  const number = (prefix) => {
    if (!prefixes.includes(prefix)) prefixes.push(prefix);
    return prefixes.indexOf(prefix);
  };
  const row = ({request, slot}) => [request.index, slot];
  const index = (request) => request.index, low = (a, b) => a - b;
  const plans = steps.map((step) => {
    step.arrive.forEach((i) => scheduler.add(requests[i]));
    step.cancel.forEach((i) => scheduler.finish(requests[i], "cancelled"));
    const plan = scheduler.schedule();
    const named = {
      slots: plan.slots,
      moves: plan.moves.map(({source, target}) => [source, target]),
      resets: plan.resets,
      copies: plan.copies.map(({prefix, slot}) => [number(prefix), slot]),
      decode: plan.decode.map(row),
      prefill: plan.prefill.map(({request, slot, start, end}) => [request.index, slot, start, end]),
      saves: plan.saves.map(({slot, prefix}) => [slot, number(prefix)]),
      drops: plan.drops.map(number).sort(low),
      sampled: plan.sampled.map(index),
      held_back: plan.held_back.map(row),
      wasted: [...plan.wasted].sort(low),
      preempted: plan.preempted.map(index),
      kinds: plan.slot_kinds(),
    };
    if (!step.lost) {
      scheduler.update(plan, step.tokens, step.tokens.map(() => -1));
      scheduler.unreported.clear();
    }
    return named;
  });
  return {plans, answers: requests.map((request) => request.token_ids), over: !scheduler.has_unfinished()};
})"""


@browser
def test_the_scheduler_makes_the_same_plans(page):
    """On 100 random scripts that meet everything that a plan can hold."""
    met = set()
    scripts = [Script(seed) for seed in range(100)]
    sent = ("prompts", "max_tokens", "sharing", "arguments", "steps")
    played = ask(page, PLAY, [{name: getattr(s, name) for name in sent} for s in scripts])
    for seed, (script, result) in enumerate(zip(scripts, played, strict=True)):
        for ours, expected in zip(result["plans"], script.plans, strict=True):
            assert ours == expected, seed
            met.update(name for name, value in expected.items() if value)
        assert result["answers"] == script.answers and result["over"], seed
    assert met == scripts[0].plans[0].keys()


# --- Sampling ------------------------------------------------------------------------------------

SAMPLE = """([rows, requests]) => {
  const logits = qwenlab.penalise(rows.map((row) => Float32Array.from(row)), requests);
  const ids = qwenlab.sample(logits, requests);
  const numbers = requests.map(({rng_key, logprobs}) => qwenlab.uniform(rng_key, logprobs.length));
  return [ids, qwenlab.logprobs_of(logits, ids, requests), numbers];
}"""


@browser
def test_the_same_random_number_picks_the_same_token(page):
    """Penalty, temperature, top-k, top-p and ties, each by itself and together."""
    rng = random.Random(0)
    logits = 3 * torch.randn(200, 40)
    logits[::5] = logits[::5].round()  # ties
    requests = []
    for row in range(len(logits)):
        params = SamplingParams(
            temperature=rng.choice([0.0, 0.3, 1.0, 2.0]),
            top_k=rng.choice([0, 1, 3, 100]),
            top_p=rng.choice([0.0, 0.5, 0.9, 1.0]),
            repetition_penalty=rng.choice([1.0, 1.5, 0.7]),
        )
        past = [rng.randrange(40) for _ in range(3)]
        prompt = [rng.randrange(40) for _ in range(4)]
        own = {"params": params, "rng_key": (row, 1, 2), "token_ids": past, "logprobs": [-1.0] * 3}
        requests.append(Request(row, prompt, **own))
    fields = ("params", "rng_key", "prompt", "token_ids", "logprobs")
    sent = [{name: getattr(request, name) for name in fields} for request in requests]
    for request in sent:
        names = ("temperature", "top_k", "top_p", "repetition_penalty")
        request["params"] = {name: getattr(request["params"], name) for name in names}
    ids, logprobs, numbers = ask(page, SAMPLE, [logits.tolist(), sent])

    punished = penalise(logits, requests)
    scaled = scale(punished, requests)
    left = scaled.masked_fill(~most_probable(scaled, requests), float("-inf"))
    drawn = inverse_cdf(left.softmax(-1), torch.tensor(numbers, dtype=torch.float64))
    greedy = torch.tensor([request.params.temperature == 0 for request in requests])
    expected = torch.where(greedy, punished.argmax(-1), drawn)
    assert ids == expected.tolist()
    np.testing.assert_allclose(logprobs, logprobs_of(punished, expected, requests), atol=1e-5)


@browser
def test_the_page_s_random_numbers_are_even_and_independent(page):
    """Over places, samples, requests and seeds, also large ones: each place is its own number."""
    draw = """() => {
      const rows = [];
      for (const base of [0, 2 ** 32, 2 ** 40 + 3]) for (let i = 0; i < 4000; i++) {
        rows.push([[base, 9, 9], i], [[base, 8, i], 1], [[base, i, 7], 2], [[base + i, 6, 6], 3]);
      }
      return rows.map((row) => qwenlab.uniform(...row));
    }"""
    numbers = np.array(page.evaluate(draw))
    assert numbers.min() >= 0 and numbers.max() < 1
    assert len(np.unique(numbers)) == len(numbers)
    for column in numbers.reshape(3, 4000, 4).transpose(0, 2, 1).reshape(12, 4000):
        counts, _ = np.histogram(column, bins=16, range=(0, 1))
        assert ((counts - 250) ** 2 / 250).sum() < 45  # chi-square of 15 degrees: 1 in 10,000
        assert abs(np.corrcoef(column[:-1], column[1:])[0, 1]) < 0.07


# --- How it comes into a page --------------------------------------------------------------------


@browser
def test_scripts_and_weights_come_when_they_are_first_asked_for(chromium, site):
    page, complaints = open_page(chromium, (site / "page.html").as_uri())
    assert page.evaluate("[typeof qwenlab.load, typeof qwenlab.packed]") == ["undefined"] * 2
    shown = page.locator("[data-qwenlab-model=tiny]")
    assert shown.inner_text() == "It is loaded when it is first used."
    twice = "Promise.all([qwenlab.bring('tiny'), qwenlab.bring('tiny')])"
    assert page.evaluate(f"{twice}.then(([a, b]) => a === b && a[0].config.vocab_size)") == 512
    assert shown.inner_text() == "It is here."
    sources = page.evaluate("[...document.scripts].map((script) => script.src.split('/').pop())")
    assert len(sources) == len(set(sources)) and "model-tiny.js" in sources
    refused = page.evaluate("qwenlab.bring('nobody').catch((error) => error.message)")
    assert refused == "model-nobody.js can't be loaded: is the model in qwenlab_page_models?"
    assert all("model-nobody.js" in line or "ERR_FILE" in line for line in complaints)
    page.close()


@browser
@pytest.mark.parametrize("scripts", [True, False])
def test_an_output_brings_everything_that_it_needs(chromium, tmp_path, scripts):
    """In a sandboxed frame of its own, as some notebooks show outputs. Without scripts it says what
    to do."""
    output = escape(page_model("tiny")._repr_html_())
    allowed = "allow-scripts" if scripts else ""
    sandboxed = f'<meta charset="utf-8"><iframe sandbox="{allowed}" srcdoc="{output}"></iframe>'
    (tmp_path / "outputs.html").write_text(sandboxed, encoding="utf-8")
    address = (tmp_path / "outputs.html").as_uri()
    page, complaints = open_page(chromium, address)
    frame = page.frames[1]
    shown = frame.locator("[data-qwenlab-model=tiny]").inner_text()
    ours = [words for words in complaints if not words.startswith("Blocked script execution")]
    assert shown.startswith("The model tiny (545,") and ours == []
    assert shown.endswith("It is here." if scripts else "run this cell and trust the notebook.")
    if scripts:
        same = "qwenlab.bring('tiny').then(([model]) => model === qwenlab.load('tiny')[0])"
        assert frame.evaluate(same) is True
        for script in page_scripts().values():  # the output is shown once more
            frame.evaluate(script)
        assert frame.evaluate("qwenlab.load('tiny')[0].forward([[1]])[0][0].length") == 512
    page.close()


@browser
@pytest.mark.parametrize("name", ["book/welcome.html", "notebooks/03-combined-mask.html"])
def test_every_page_of_the_site_can_bring_a_model(chromium, name):
    """From whatever folder, opened as a file."""
    built_pages()
    page, complaints = open_page(chromium, (SITE / name).as_uri())
    bring = "qwenlab.bring('tiny-hybrid').then(([model]) => model.config.vocab_size)"
    assert page.evaluate(bring) == 512 and complaints == []
    page.close()


def test_on_the_site_an_output_is_a_line_and_the_scripts_are_elsewhere(monkeypatch):
    monkeypatch.setenv("QWENLAB_PAGE", "1")
    html = page_model("tiny")._repr_html_()
    assert "The model tiny (" in html and "<script" not in html


# --- Packing -------------------------------------------------------------------------------------


def test_packed_weights_are_those_of_the_checkpoint(models, checkpoints):
    """Bit for bit: as bfloat16 where that is exact, else as float32."""
    kinds = set()
    for name, (model, _) in models.items():
        packed = page_model(checkpoints[name]).packed
        data = base64.b64decode(packed["weights"])
        start = 0
        expected = dict(model.named_parameters())
        for tensor, dtype, shape in packed["tensors"]:
            kind = torch.bfloat16 if dtype == "bfloat16" else torch.float32
            size = torch.Size(shape).numel() * kind.itemsize
            piece = torch.frombuffer(bytearray(data[start : start + size]), dtype=kind).view(shape)
            assert torch.equal(piece.float(), expected.pop(tensor).detach()), tensor
            start += size
            kinds.add((name, dtype))
        assert start == len(data) and expected == {}
    assert {("tiny", "bfloat16"), ("own-dense", "float32"), ("own-hybrid", "float32")} <= kinds


def break_tokenizer(folder, change) -> None:
    path = folder / "tokenizer.json"
    spec = json.loads(path.read_text(encoding="utf-8"))
    change(spec)
    path.write_text(json.dumps(spec), encoding="utf-8")


def grow(folder) -> None:
    with open(folder / "model.safetensors", "ab") as file:
        file.truncate(5_000_001)


REFUSED = {
    "5,000,001 bytes of weights, a page takes at most 5,000,000": grow,
    "no tokenizer.json": lambda folder: (folder / "tokenizer.json").unlink(),
    "its chat template is not that of the shipped models": lambda folder: (
        folder / "chat_template.jinja"
    ).write_text("{{ messages[0].content }}", encoding="utf-8"),
    "not split and normalised as the page does it": lambda folder: break_tokenizer(
        folder, lambda spec: spec.update(normalizer={"type": "NFKC"})
    ),
    r"expected NFC or none, then Split by a pattern of \s": lambda folder: break_tokenizer(
        folder,
        lambda spec: spec["pre_tokenizer"]["pretokenizers"][0]["pattern"].update(Regex=r"\w+"),
    ),
    "added words": lambda folder: break_tokenizer(
        folder,
        lambda spec: spec["added_tokens"].append(
            {**spec["added_tokens"][0], "id": 600, "content": "word", "special": False}
        ),
    ),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_the_page_can_not_follow_is_refused_in_one_line(tmp_path, said):
    folder = write_own(tmp_path / "own", OWN["own-dense"])
    page_model(folder)
    REFUSED[said](folder)
    with pytest.raises(PageModelError) as refused:
        page_model(folder)
    message = str(refused.value)
    assert said in message and str(folder) in message and "\n" not in message


def test_a_model_without_a_chat_template_still_reads_text(tmp_path):
    folder = write_own(tmp_path / "own", OWN["own-dense"])
    (folder / "tokenizer_config.json").unlink()
    assert page_model(folder).packed["tokenizer"]["chat"] is False


# --- The scripts themselves ----------------------------------------------------------------------


def test_the_scripts_are_readable_and_touch_no_document():
    """But loader.js and what draws. None can end the script element that it stands in."""
    assert sorted(page_scripts()) == sorted(path.name for path in FOLDER.glob("*.js"))
    for name, script in page_scripts().items():
        assert max(map(len, script.splitlines())) <= 100, name
        code = re.sub(r"//.*", "", script)
        assert not re.search(r"</script|<!--|\bimport\b|\bexport\b|\bfetch\(", code), name
        if name not in ("loader.js", "drawing.js") and not name.startswith("widget_"):
            assert not re.search(r"\b(document|window)\b", code), name
