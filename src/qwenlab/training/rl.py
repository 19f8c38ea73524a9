"""GRPO: a model samples a group of answers to each problem, and learns from each answer's reward
relative to its group.

Group relative policy optimisation (Shao et al., arXiv:2402.03300) needs no second network that
estimates values, because the mean reward of a group takes its place. `grpo` is the whole loop; its
formulas are in `qwenlab.training.objective`.
"""

from collections.abc import Sequence
from copy import deepcopy
from itertools import compress
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from qwenlab.engine.generation import generate
from qwenlab.engine.padding import left_pad
from qwenlab.engine.request import Request, RequestOutput
from qwenlab.engine.results import Result, Stats
from qwenlab.errors import flags, number, whole
from qwenlab.evaluation.evaluation import MOST_ANSWERS, graded_record
from qwenlab.evaluation.problems import Problem, problem_prompts
from qwenlab.model.model import Model
from qwenlab.orders import seeded_order
from qwenlab.scale import ranks
from qwenlab.text.tokenizer import Tokenizer
from qwenlab.training.objective import (
    AVERAGES,
    advantages,
    average,
    bounded_exp,
    clipped_loss,
    divergence,
)
from qwenlab.training.trainer import (
    COLDEST,
    HOTTEST,
    LARGE,
    LARGEST_KL,
    LARGEST_LR,
    MOST_STEPS,
    Training,
    TrainingError,
    open_run,
    rate_factor,
    run_settings,
    token_logprobs,
)

# A finished request and its advantage.
Answer = tuple[Request, float]


def grpo(
    model: Model,
    tokenizer: Tokenizer,
    problems: Sequence[Problem],
    *,
    steps: int | None,
    lr: float,
    num_rollouts: int = 8,
    batch_size: int = 4,
    prompts_per_step: int = 8,
    max_new_tokens: int = 1024,
    temperature: float = 1.0,
    clip_ratio: float = 0.2,
    kl: float = 0.0,
    averaging: str = "token",
    updates: int = 1,
    clip: float = 1.0,
    warm_up: int = 0,
    decay_steps: int | None = None,
    seed: int = 0,
    plain: bool = False,
    thinking: bool = True,
    folder: str | Path | None = None,
    minutes: float | None = None,
    save_every: int = 10,
    progress: bool = False,
) -> list[dict]:
    """Trains `model`, which must be float32, in place; returns one record of metrics per step.

    A step samples `num_rollouts` answers to each of `prompts_per_step` problems at `temperature`,
    gives an answer the reward 1 if `grade` finds it right and 0 otherwise, and takes `updates`
    AdamW steps along the clipped objective. `batch_size` rows are sampled at once, and as many are
    trained on at once; the gradients are those of one big batch. The learning rate rises to `lr`
    over the first `warm_up` steps and then stays, or falls linearly to reach 0 after `decay_steps`
    steps of the run: 1e-6 is usual for a published model, 3e-4 for the tiny ones. steps None:
    until `minutes` have passed, or the learning rate has fallen to 0.

    kl: weight of the divergence from the initial model, of which a frozen copy is then kept.
    averaging: see `average`. clip: the largest gradient norm. plain, thinking: see
    `problem_prompts`. folder: for a new run, or one to resume (see `Training`), which needs the
    same model and the same options except steps, minutes, save_every and progress.

    Metrics: reward (mean), cut_off (fraction of answers without a stop id), length (mean, in
    tokens), silent (fraction of zero-variance groups, which have no gradient), loss, divergence,
    ratio (largest |re-scored / sampled probability - 1| before the first update: how well sampling
    and training agree), gradient_norm before clipping, tokens_per_second of sampling,
    rollout_seconds, training_seconds, seconds.

    Differences from trl's GRPOTrainer (defaults of 2025): it uses re-scored log-probabilities as
    old_logprobs, so its first ratio is 1 by definition, while ours is measured; it counts
    zero-variance groups in every mean, while ours leave them out, divergence included; its "bnpo"
    averages over the tokens of one micro-batch, ours over those of the whole step; it knows one
    stop id, we know all of the checkpoint's; its learning rate falls linearly, ours does so only
    with `decay_steps`.
    The advantage (sample standard deviation + 1e-4), the estimate of the divergence and the
    clipping are the same, and truncated answers count in both.

    Of several ranks (see `qwenlab.scale.ranks`), each samples whole groups, a share of the step's,
    `batch_size` rows at once, and trains on them. The loss is averaged over the answers of all
    ranks, so the gradients are still those of one big batch.

    Raises ValueError for a wrong option, TrainingError, ProblemError, RunFolderError.
    """
    counts = {"updates": updates, "save_every": save_every}
    counts |= {"batch_size": batch_size, "max_new_tokens": max_new_tokens}
    if steps is not None:
        counts["steps"] = steps
    elif minutes is None:
        raise ValueError("steps and minutes are both None, expected at least one of them")
    for name, value in counts.items():
        whole(value, name, 1, MOST_STEPS)
    whole(warm_up, "warm_up", 0, MOST_STEPS)
    if decay_steps is not None:
        whole(decay_steps, "decay_steps", 1, MOST_STEPS)
        steps = decay_steps if steps is None else steps
        if decay_steps < steps:
            raise ValueError(f"steps is {steps}, expected at most decay_steps, {decay_steps}")
    whole(prompts_per_step, "prompts_per_step", 1, MOST_ANSWERS // 2)
    whole(num_rollouts, "num_rollouts", 2, MOST_ANSWERS // prompts_per_step)
    whole(seed, "seed", 0)
    number(lr, "lr", most=LARGEST_LR)
    number(temperature, "temperature", above=COLDEST, most=HOTTEST)
    number(clip_ratio, "clip_ratio", most=LARGE)
    number(clip, "clip", most=LARGE)
    number(kl, "kl", least=0, most=LARGEST_KL)
    if minutes is not None:
        number(minutes, "minutes", most=LARGE)
    flags(plain=plain, thinking=thinking, progress=progress)
    if averaging not in AVERAGES:
        raise ValueError(f"averaging is {averaging!r}, expected one of {', '.join(AVERAGES)}")
    if prompts_per_step < ranks.size():
        groups = f"at least one group for each of {ranks.size()} ranks"
        raise ValueError(f"prompts_per_step is {prompts_per_step}, expected {groups}")
    limit = model.config.max_position_embeddings
    prompts = problem_prompts(tokenizer, problems, plain=plain, thinking=thinking, limit=limit)
    if not prompts:
        raise ValueError("there is no problem to train on")
    learning = {"clip_ratio": clip_ratio, "averaging": averaging, "kl": kl}
    learning |= {"temperature": temperature, "batch_size": batch_size}
    data = []
    for ids, problem in zip(prompts, problems, strict=True):
        data.append([ids, problem.answer, problem.number])
    settings = run_settings(
        model,
        data,
        len(data),
        task="grpo",
        lr=lr,
        clip=clip,
        warm_up=warm_up,
        num_rollouts=num_rollouts,
        prompts_per_step=prompts_per_step,
        updates=updates,
        seed=seed,
        max_new_tokens=max_new_tokens,
        **learning,
    )
    if decay_steps is not None:  # the folders of earlier runs, all without it, don't name it
        settings["decay_steps"] = decay_steps
    reference = deepcopy(model).requires_grad_(False) if kl else None

    def learn(answers: list[Answer]) -> dict:
        return accumulate(
            model, answers, tokenizer.pad_id, cap=max_new_tokens, reference=reference, **learning
        )

    def roll_out(step: int) -> tuple[Result, Tensor]:
        """This rank's answers of a step, and their rewards (prompts, rollouts)."""
        order = problem_order(len(problems), seed, step * prompts_per_step, prompts_per_step)
        chosen = ranks.share(order)
        asked = []
        seeds = []
        for epoch, i in chosen:
            asked.append(prompts[i])
            seeds.append((seed * 2**32 + epoch) * 2**32 + problems[i].number)
        result = generate(
            model,
            asked,
            n=num_rollouts,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=seeds,
            slots=batch_size,
        )
        rewards = []
        for place, request in enumerate(result):
            if request.error:
                raise TrainingError(f"step {step}: {request.error}")
            _, i = chosen[place // num_rollouts]
            rewards.append(reward(tokenizer, request, problems[i]))
        return result, torch.tensor(rewards).view(-1, num_rollouts)

    def one_step(step: int) -> dict:
        began = perf_counter()
        result, rewards = roll_out(step)
        every_reward = torch.cat(ranks.gather(rewards))  # of all ranks
        scores = advantages(rewards)  # (prompts, rollouts)
        informative = scores.any(1)  # (prompts,), False for zero-variance groups
        kept = informative.repeat_interleave(num_rollouts).tolist()
        answers = list(compress(zip(result, scores.flatten().tolist(), strict=True), kept))
        sampled = perf_counter()
        losses = learn(answers)
        rate = lr * rate_factor(step, warm_up, decay_steps)
        norm = training.update(rate)  # without any answer it is 0, and no weight changes
        for _ in range(updates - 1):
            learn(answers)
            training.update(rate)
        answered = ranks.total(len(result))
        cut_off = ranks.total(sum(request.stop_id is None for request in result))
        cost = Stats(
            sampled_tokens=ranks.total(result.stats.sampled_tokens),
            seconds=max(ranks.gather(result.stats.seconds)),
        )
        return {
            "reward": every_reward.mean().item(),
            "cut_off": cut_off / answered,
            "length": cost.sampled_tokens / answered,
            "silent": (~advantages(every_reward).any(1)).double().mean().item(),
            **losses,
            "gradient_norm": norm,
            "tokens_per_second": cost.tokens_per_second,
            "rollout_seconds": sampled - began,
            "training_seconds": perf_counter() - sampled,
        }

    with open_run(folder, settings) as run:
        training = Training(model, run, lr=lr, clip=clip)
        return training.run(
            one_step,
            steps=steps,
            minutes=minutes,
            save_every=save_every,
            progress=progress,
            show=("reward", "silent"),
        )


def completion(request: RequestOutput) -> list[int]:
    """The sampled ids, one for each of `request.logprobs`; the stop id, if any, is the last."""
    if request.stop_id is None:
        return list(request.token_ids)
    return [*request.token_ids, request.stop_id]


def reward(tokenizer: Tokenizer, request: RequestOutput, problem: Problem) -> float:
    """1 if the answer is right, else 0, as in an evaluation."""
    return float(graded_record(tokenizer, problem, 0, request)["verdict"])


def problem_order(count: int, seed: int, start: int, many: int) -> list[tuple[int, int]]:
    """(epoch, problem) at the places `start` to `start + many` of an endless sequence of
    permutations of range(count), one per epoch.

    Determined by the arguments alone, so a run can resume anywhere in it.
    """
    orders = {}
    places = []
    for place in range(start, start + many):
        epoch, index = divmod(place, count)
        if epoch not in orders:
            orders[epoch] = seeded_order(count, "problems", seed, epoch)
        places.append((epoch, orders[epoch][index]))
    return places


def rectangle(
    requests: Sequence[RequestOutput], pad_id: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """input_ids (B, T) of prompts with their answers, left-padded; attention_mask (B, T) bool;
    completions (B, T) bool, True for sampled tokens; and the old_logprobs (B, T) float32 recorded
    while sampling, 0 elsewhere."""
    ids, mask = left_pad([request.prompt + completion(request) for request in requests], pad_id)
    lengths = torch.tensor([len(request.logprobs) for request in requests])
    completions = torch.arange(ids.shape[1]) >= ids.shape[1] - lengths[:, None]  # (B, T)
    old_logprobs = torch.zeros(ids.shape)
    recorded = []
    for request in requests:
        recorded += request.logprobs
    old_logprobs[completions] = torch.tensor(recorded)
    return ids.to(device), mask.to(device), completions.to(device), old_logprobs.to(device)


def accumulate(
    model: Model,
    answers: list[Answer],
    pad_id: int,
    *,
    batch_size: int,
    temperature: float,
    averaging: str,
    clip_ratio: float,
    cap: int,
    kl: float = 0.0,
    reference: Model | None = None,
) -> dict:
    """Adds the gradients of the loss over all `answers` to the model's: `batch_size` rows of
    similar length at a time, with the gradients of one big batch. Of several ranks, each adds its
    answers' part of the loss over the answers of all.

    Returns loss, divergence (mean over the tokens) and ratio as in `grpo`'s metrics; zeros if there
    is no answer.
    """
    answers = sorted(answers, key=lambda answer: answer[0].num_tokens)
    tokens = ranks.total(sum(len(request.logprobs) for request, _ in answers))
    rows = ranks.total(len(answers))
    measured = {"loss": 0.0, "divergence": 0.0, "ratio": 0.0}
    for start in range(0, len(answers), batch_size):
        requests, scores = zip(*answers[start : start + batch_size], strict=True)
        ids, mask, completions, old_logprobs = rectangle(requests, pad_id, model.device)
        logprobs = token_logprobs(model, ids, mask, completions, temperature=temperature)
        advantage = torch.tensor(scores, device=model.device)
        losses = clipped_loss(logprobs, old_logprobs, advantage, clip_ratio)
        if reference is not None:
            with torch.no_grad():
                frozen = token_logprobs(reference, ids, mask, completions, temperature=temperature)
            distance = divergence(logprobs, frozen)
            losses = losses + kl * distance
            measured["divergence"] += distance.sum().item() / tokens
        loss = average(losses, completions, averaging, tokens=tokens, rows=rows, cap=cap)
        loss.backward()
        measured["loss"] += loss.item()
        ratio = bounded_exp(logprobs.detach() - old_logprobs)
        measured["ratio"] = max(measured["ratio"], (ratio - 1).abs().max().item())
    return {
        "loss": ranks.total(measured["loss"]),
        "divergence": ranks.total(measured["divergence"]),
        "ratio": max(ranks.gather(measured["ratio"])),
    }
