"""Records what the first edition answers to 200 random workloads:
tests/recordings/workloads.json.gz.

A workload follows from its seed and a weight from its parameter's name, both without torch's random
numbers. So the file contains no prompts and no weights, only the answers: ids, finish reasons,
logprobs, and what each slot did in each step. Later code must give the answers of the first
edition, so the file is not made again unless the meaning of an option changes.

    OMP_NUM_THREADS=1 python scripts/stored_workloads.py --out tests/recordings/workloads.json.gz

A workload is kept only if rounding can't change an id: the two best logits of a greedy row are 1e-4
apart, a sampled id stays the same with noise of that size on the logits, and models whose weights
differ in the last bit sample the same ids, with logprobs that agree.
"""

import argparse
import gzip
import json
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import qwenlab
from qwenlab.engine.request import RequestOutput
from qwenlab.engine.results import Stats

COUNT = 200
MARGIN = 1e-4  # of logits: no id may depend on less
STEADY = 5e-6  # of logprobs, weights changed in the last bit: half of what later code is allowed
STRATEGIES = ("sequential", "static", "early-stop", "continuous")
DENSE = {
    "model_type": "qwen3",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "initializer_range": 0.2,
    "eos_token_id": [300, 301],
}
HYBRID = {
    **DENSE,
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 4,
    "rms_norm_eps": 1e-3,  # a norm of next to nothing would enlarge rounding by as much
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
    },
}
FAMILIES = {"dense": DENSE, "hybrid": HYBRID}


# --- Models ---------------------------------------------------------------------------------------


def weight(name: str, shape: Sequence[int], zero_centred: bool) -> np.ndarray:
    """The values of one parameter, float64: they follow from its name alone."""
    seed = int.from_bytes(sha256(name.encode()).digest()[:8], "little")
    uniform = np.random.Generator(np.random.PCG64(seed)).random(tuple(shape))
    spread = (uniform - 0.5) * 12**0.5  # mean 0, standard deviation 1
    if name.endswith("A_log"):
        return np.log(0.01 + 16 * uniform)
    if name.endswith("dt_bias"):
        return -7 + 5 * uniform  # heads that remember for ten tokens, and for a thousand
    if name.endswith("norm.weight"):
        around_zero = zero_centred and not name.endswith("linear_attn.norm.weight")
        return 0.1 * spread + (0 if around_zero else 1)
    return DENSE["initializer_range"] * spread


def make_model(config: dict) -> qwenlab.Model:
    """A model of this shape, ready for inference, with the weights that its names stand for."""
    model = qwenlab.Model(qwenlab.Config.from_dict(config))
    zero_centred = config["model_type"] != "qwen3"
    values = {}
    for name, parameter in model.named_parameters():
        values[name] = torch.from_numpy(weight(name, parameter.shape, zero_centred)).float()
    model.load_state_dict(values)
    return model.eval().requires_grad_(False)


def last_bit_changed(config: dict, seed: int) -> qwenlab.Model:
    """The same model with each weight moved to the next float32, up or down."""
    model = make_model(config)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        direction = torch.randn(parameter.shape, generator=generator).sign() * float("inf")
        parameter.copy_(torch.nextafter(parameter, direction))
    return model


# --- Workloads ------------------------------------------------------------------------------------


@dataclass
class Answers:
    """The answers to a workload: for each request its ids, its end and its logprobs."""

    token_ids: list[list[int]]
    finish_reasons: list[str]
    stop_ids: list[int | None]
    logprobs: list[list[float]]
    events: list = field(repr=False)  # (step, slot, request, kind), of an Engine's last 128 steps
    preempted: int = 0


class Workload:
    """Prompts with their options, for `generate` or for an Engine with arrivals."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.family = ("dense", "hybrid")[seed % 2]
        self.open = seed // 2 % 2 == 1  # an Engine at which requests arrive
        self.strategy = STRATEGIES[seed // 4 % 4] if not self.open else "continuous"
        beginning = []
        if rng.random() < 0.4:
            beginning = random_ids(rng, rng.randint(1, 20))
        self.prompts = []
        longest = rng.choice([4, 10, 40])
        for _ in range(rng.randint(1, 8)):
            self.prompts.append(beginning + random_ids(rng, rng.randint(1, longest)))
        sampled = rng.random() < 0.5
        self.options = [random_options(rng, sampled) for _ in self.prompts]
        self.slots = rng.randint(1, 8)
        # Of `generate` only:
        self.n = rng.choice([1, 1, 2, 3])
        self.one_seed = rng.choice([None, rng.randrange(1000)])  # None: one a prompt
        self.shared_prefix = rng.choice([None, True, False])
        # Of an Engine only:
        self.chunk = rng.randint(1, 32)
        longest = max(map(len, self.prompts))
        tight = longest + rng.randint(2, 30)
        loose = longest + rng.randint(20, 80)
        self.token_budget = rng.choice([None, tight, loose])  # too few tokens for all: preemptions
        self.arrivals = sorted(rng.randint(0, 6) for _ in self.prompts)
        # After how many of its tokens a request is cancelled; None: never.
        self.cancels = [rng.choice([None, None, None, rng.randint(0, 8)]) for _ in self.prompts]

    def digest(self) -> str:
        """A short hash of everything about the workload."""
        return sha256(repr(vars(self)).encode()).hexdigest()[:8]

    def run(self, model: qwenlab.Model, sampler: Callable | None = None) -> Answers:
        return self.run_engine(model, sampler) if self.open else self.run_generate(model, sampler)

    def run_generate(self, model: qwenlab.Model, sampler: Callable | None) -> Answers:
        options = defaultdict(list)
        for own in self.options:
            for name, value in own.items():
                options[name].append(value)
        if self.one_seed is not None:
            options["seed"] = self.one_seed
        result = qwenlab.generate(
            model,
            self.prompts,
            n=self.n,
            strategy=self.strategy,
            slots=self.slots,
            shared_prefix=self.shared_prefix,
            sampler=sampler,
            **options,
        )
        return answers_of(result, result.stats)

    def run_engine(self, model: qwenlab.Model, sampler: Callable | None) -> Answers:
        engine = qwenlab.Engine(model, self.slots, self.token_budget, self.chunk, sampler=sampler)
        requests = []
        step = 0
        while len(requests) < len(self.prompts) or running(requests):
            while len(requests) < len(self.prompts) and self.arrivals[len(requests)] <= step:
                place = len(requests)
                requests.append(engine.submit(self.prompts[place], **self.options[place]))
            for request, after in zip(requests, self.cancels, strict=False):
                if after is not None and len(request.token_ids) >= after:
                    engine.cancel(request)  # no effect on one that has ended
            engine.step()
            step += 1
            if step > 5000:
                raise RuntimeError(f"the engine has not finished after {step - 1} steps")
        return answers_of(requests, engine.stats)


def random_ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(300) for _ in range(count)]


def random_options(rng: random.Random, sampled: bool) -> dict:
    """How one prompt is to be answered: options of `generate` and `Engine.submit`."""
    some_ids = tuple(range(rng.randrange(20), 320, 20))
    return {
        "max_new_tokens": rng.choice([0, *[rng.randint(1, 32)] * 9]),
        "stop": rng.choice([None, (), (), some_ids]),
        "temperature": rng.choice([0.0, 0.6, 1.0, 1.6]) if sampled else 0.0,
        "top_k": rng.choice([0, 0, 3, 20]) if sampled else 0,
        "top_p": rng.choice([1.0, 1.0, 0.5, 0.9]) if sampled else 1.0,
        "repetition_penalty": rng.choice([1.0, 1.0, 1.3]),
        "seed": rng.randrange(1000),
    }


def running(requests: Sequence) -> bool:
    return any(request.finish_reason is None for request in requests)


def answers_of(requests: Sequence[RequestOutput], stats: Stats) -> Answers:
    return Answers(
        token_ids=[list(request.token_ids) for request in requests],
        finish_reasons=[request.finish_reason for request in requests],
        stop_ids=[request.stop_id for request in requests],
        logprobs=[list(request.logprobs) for request in requests],
        events=[tuple(event) for event in stats.events],
        preempted=stats.preempted,
    )


def difference(ours: list[list[float]], theirs: list[list[float]]) -> float:
    """max|a - b| / max(1, max|b|) of all logprobs of a workload."""
    gap = 0.0
    scale = 1.0
    for one, other in zip(ours, theirs, strict=True):
        for a, b in zip(one, other, strict=True):
            gap = max(gap, abs(a - b))
            scale = max(scale, abs(b))
    return gap / scale


# --- The file -------------------------------------------------------------------------------------


def load_recordings(path: Path) -> list[dict]:
    return json.loads(gzip.decompress(path.read_bytes()))["workloads"]


def recorded_events(record: dict) -> list[tuple]:
    """The events of a record as `stats.events` gives them."""
    kinds = {"p": "prefill", "d": "decode", "w": "wasted", "i": "idle"}
    events = []
    for step, slots in enumerate(record["events"], record["first_step"]):
        for slot, entry in enumerate(slots.split()):
            request = int(entry[1:]) if len(entry) > 1 else None
            events.append((step, slot, request, kinds[entry[0]]))
    return events


def record_of(seed: int, workload: Workload, answers: Answers) -> dict:
    """A workload's answers as JSON; a step's events are one text: "d3 p4 i"."""
    steps = {}
    for step, _, request, kind in answers.events:
        entry = kind[0] + ("" if request is None else str(request))
        steps.setdefault(step, []).append(entry)
    logprobs = []
    for own in answers.logprobs:
        logprobs.append([round(value, 6) for value in own])
    return {
        "seed": seed,
        "digest": workload.digest(),
        "token_ids": answers.token_ids,
        "finish_reasons": answers.finish_reasons,
        "stop_ids": answers.stop_ids,
        "logprobs": logprobs,
        "preempted": answers.preempted,
        "first_step": min(steps, default=0),
        "events": list(map(" ".join, steps.values())),
    }


class Steady:
    """The default sampler, which also notes whether rounding could have changed an id."""

    def __init__(self) -> None:
        self.ok = True
        self.noise = torch.Generator().manual_seed(0)

    def __call__(self, logits: Tensor, requests: Sequence) -> Tensor:
        ids = qwenlab.sample(logits, requests)
        best = logits.topk(2).values
        running = []
        greedy = []
        for request in requests:
            running.append(request.finish_reason is None)
            greedy.append(request.temperature == 0)
        close = (best[:, 0] - best[:, 1] < MARGIN) & torch.tensor(greedy)
        for _ in range(8):
            noise = torch.randn(logits.shape, generator=self.noise).sign()
            close |= qwenlab.sample(logits + MARGIN / 2 * noise, requests) != ids
        self.ok &= not bool((close & torch.tensor(running)).any())
        return ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=COUNT)
    asked = parser.parse_args()
    models = {}
    others = {}
    for name, config in FAMILIES.items():
        models[name] = make_model(config)
        others[name] = [last_bit_changed(config, seed) for seed in range(3)]
    records = []
    worst = 0.0
    seed = 0
    while len(records) < asked.count:
        workload = Workload(seed)
        model = models[workload.family]
        answers = workload.run(model)
        sampler = Steady()
        again = [workload.run(model, sampler), *map(workload.run, others[workload.family])]
        same = all(other.token_ids == answers.token_ids for other in again)
        if same and sampler.ok:
            rounding = max(difference(other.logprobs, answers.logprobs) for other in again)
            if rounding <= STEADY:
                worst = max(worst, rounding)
                records.append(record_of(seed, workload, answers))
        seed += 1
    held = {"torch": torch.__version__, "workloads": records}
    packed = gzip.compress(json.dumps(held, separators=(",", ":")).encode(), mtime=0)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_bytes(packed)
    print(f"{asked.out}: {len(records)} workloads in {len(packed) / 1000:.0f} kB")
    print(f"of {seed}; weights changed in the last bit change a logprob by {worst:.1e} at most")


if __name__ == "__main__":
    main()
