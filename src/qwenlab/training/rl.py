"""GRPO: a model samples several answers a problem, and learns from how each did against the others
of its group.

Group relative policy optimisation (Shao et al., arXiv:2402.03300) needs no second network that
guesses values: the mean reward of a group takes its place. `grpo` is the whole loop; its formulas
stand in `qwenlab.training.objective`.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from copy import deepcopy
from time import perf_counter

import torch
from torch import Tensor

from qwenlab.engine.generation import generate
from qwenlab.engine.padding import left_pad
from qwenlab.errors import flags, number, whole
from qwenlab.evaluation.evaluation import MOST_ANSWERS, judged
from qwenlab.evaluation.problems import Problem, problem_prompts
from qwenlab.orders import seeded_order
from qwenlab.run_folder import RunFolder
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
    run_settings,
    token_logprobs,
)


def grpo(
    model,
    tokenizer,
    problems: Sequence[Problem],
    *,
    steps: int,
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
    seed: int = 0,
    plain: bool = False,
    thinking: bool = True,
    folder=None,
    minutes: float | None = None,
    save_every: int = 10,
    progress: bool = False,
) -> list[dict]:
    """Trains `model`, which must be float32, in place; returns a record of metrics a step.

    A step samples `num_rollouts` answers to each of `prompts_per_step` problems at `temperature`,
    rewards an answer with 1 if `grade` finds it right and with 0 else, and takes `updates` steps of
    AdamW along the clipped objective. `batch_size` rows are answered at once, and as many are
    trained on at once; the gradients are those of one big batch. The rate rises to `lr` in the
    first `warm_up` steps and stays there: 1e-6 is usual for a published model, the tiny ones learn
    with 3e-4.

    kl: weight of the divergence from the model as it was given, of which a frozen copy is then
    kept. averaging: see `average`. clip: the largest norm of a gradient. plain, thinking: see
    `problem_prompts`. folder: a new run's, or one to go on with (see `Training`), which takes the
    same model and options but steps, minutes, save_every and progress.

    Metrics: reward (mean), cut_off (share of answers that no stop id ended), length (mean, in
    tokens), silent (share of groups that teach nothing), loss, divergence, ratio (largest
    |re-scored / kept probability - 1| before the first update: how well sampling and training
    agree), gradient_norm before it is clipped, tokens_per_second of sampling, rollout_seconds,
    training_seconds, seconds.

    Where trl's GRPOTrainer differs (its defaults of 2025): it takes re-scored log-probabilities for
    those at sampling, so that its first ratio is 1 by definition, and ours is measured; it counts
    groups without spread in every mean, ours are left out, divergence included; its "bnpo" averages
    over the tokens of one micro-batch, ours over all of a step's; it knows one stop id, we know all
    of the checkpoint's; its learning rate falls linearly, ours is constant. The advantage (sample
    deviation + 1e-4), the estimate of the divergence and the clip are the same, and answers that
    were cut off count in both.

    Raises ValueError for a wrong option, TrainingError, ProblemError, RunFolderError.
    """
    counts = {"steps": steps, "updates": updates, "save_every": save_every}
    counts |= {"batch_size": batch_size, "max_new_tokens": max_new_tokens}
    for name, value in counts.items():
        whole(value, name, 1, MOST_STEPS)
    whole(warm_up, "warm_up", 0, MOST_STEPS)
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
    limit = model.config.max_position_embeddings
    prompts = problem_prompts(tokenizer, problems, plain=plain, thinking=thinking, limit=limit)
    if not prompts:
        raise ValueError("there is no problem to train on")
    learning = {"clip_ratio": clip_ratio, "averaging": averaging, "kl": kl}
    learning |= {"temperature": temperature, "batch_size": batch_size}
    options = {
        "num_rollouts": num_rollouts,
        "prompts_per_step": prompts_per_step,
        "updates": updates,
        "seed": seed,
    }
    options["max_new_tokens"] = max_new_tokens
    data = [
        [ids, problem.answer, problem.number]
        for ids, problem in zip(prompts, problems, strict=True)
    ]
    settings = run_settings(
        model, data, task="grpo", lr=lr, clip=clip, warm_up=warm_up, **learning, **options
    )
    reference = deepcopy(model).requires_grad_(False) if kl else None

    def learn(answers) -> dict:
        return accumulate(
            model, answers, tokenizer.pad_id, cap=max_new_tokens, reference=reference, **learning
        )

    def one_step(step: int) -> dict:
        began = perf_counter()
        chosen = problem_order(len(problems), seed, step * prompts_per_step, prompts_per_step)
        result = generate(
            model,
            [prompts[i] for _, i in chosen],
            n=num_rollouts,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=[(seed * 2**32 + epoch) * 2**32 + problems[i].number for epoch, i in chosen],
            slots=batch_size,
        )
        if broken := [request.error for request in result if request.error]:
            raise TrainingError(f"step {step}: {broken[0]}")
        asked = [problems[i] for _, i in chosen for _ in range(num_rollouts)]
        rewards = torch.tensor(
            [reward(tokenizer, *pair) for pair in zip(result, asked, strict=True)]
        )
        scores = advantages(rewards.view(-1, num_rollouts))  # (prompts, rollouts)
        taught = scores.any(1)
        scores = scores.flatten().tolist()
        teachers = [(result[i], scores[i]) for i in range(len(result)) if taught[i // num_rollouts]]
        sampled = perf_counter()
        told = learn(teachers)
        rate = lr * min(1, (step + 1) / (warm_up or 1))
        norm = training.update(rate)  # 0, and nothing changes, where no group teaches anything
        for _ in range(updates - 1):
            learn(teachers)
            training.update(rate)
        return {
            "reward": rewards.mean().item(),
            "cut_off": sum(request.stop_id is None for request in result) / len(result),
            "length": result.stats.sampled_tokens / len(result),
            "silent": (~taught).double().mean().item(),
            **told,
            "gradient_norm": norm,
            "tokens_per_second": result.stats.tokens_per_second,
            "rollout_seconds": sampled - began,
            "training_seconds": perf_counter() - sampled,
        }

    with RunFolder(folder, settings) if folder else nullcontext() as held:
        training = Training(model, held, lr=lr, clip=clip)
        shown = ("reward", "silent", "length", "tokens_per_second")
        options = {
            "minutes": minutes,
            "save_every": save_every,
            "progress": progress,
            "show": shown,
        }
        return training.run(one_step, steps=steps, **options)


def completion(request) -> list[int]:
    """What was sampled: one id for each of `request.logprobs`, the stop id last where one ended the
    answer."""
    return request.token_ids + [request.stop_id] * (request.stop_id is not None)


def reward(tokenizer, request, problem: Problem) -> float:
    """1 if the answer is right, else 0, as evaluation judges it."""
    return float(judged(tokenizer, problem, 0, request)["verdict"])


def problem_order(count: int, seed: int, start: int, many: int) -> list[tuple[int, int]]:
    """(epoch, problem) of the places `start` to `start + many` in an endless line of permutations
    of range(count).

    It follows from its arguments alone, so a run goes on anywhere in it. No epoch has a problem
    twice.
    """
    orders = {}
    for epoch in {place // count for place in range(start, start + many)}:
        orders[epoch] = seeded_order(count, "problems", seed, epoch)
    return [
        (place // count, orders[place // count][place % count])
        for place in range(start, start + many)
    ]


def rectangle(requests: Sequence, pad_id: int, device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """ids (B, T) of prompts with their answers, padded on the left; mask (B, T) bool of what is
    real; completions (B, T) bool; and the log-probabilities (B, T) float32 kept while sampling, 0
    elsewhere."""
    ids, mask = left_pad([request.prompt + completion(request) for request in requests], pad_id)
    lengths = torch.tensor([len(request.logprobs) for request in requests])
    completions = torch.arange(ids.shape[1]) >= ids.shape[1] - lengths[:, None]  # (B, T)
    kept = torch.zeros(ids.shape)
    kept[completions] = torch.tensor(
        [logprob for request in requests for logprob in request.logprobs]
    )
    return tuple(tensor.to(device) for tensor in (ids, mask, completions, kept))


def accumulate(
    model,
    answers,
    pad_id: int,
    *,
    batch_size,
    temperature,
    averaging,
    clip_ratio,
    cap,
    kl=0.0,
    reference=None,
) -> dict:
    """Adds the gradients of the loss over all `answers`, pairs (finished request, advantage), to
    the model's: `batch_size` rows of like length at a time, with the gradients of one big batch.

    Returns loss, divergence (mean over the tokens) and ratio as in `grpo`'s metrics; zeros where
    there is no answer.
    """
    answers = sorted(answers, key=lambda answer: answer[0].num_tokens)
    tokens = sum(len(request.logprobs) for request, _ in answers)
    told = {"loss": 0.0, "divergence": 0.0, "ratio": 0.0}
    for start in range(0, len(answers), batch_size):
        requests, scores = zip(*answers[start : start + batch_size], strict=True)
        ids, mask, completions, kept = rectangle(requests, pad_id, model.device)
        logprobs = token_logprobs(model, ids, mask, completions, temperature=temperature)
        losses = clipped_loss(logprobs, kept, torch.tensor(scores, device=model.device), clip_ratio)
        if reference is not None:
            with torch.no_grad():
                frozen = token_logprobs(reference, ids, mask, completions, temperature=temperature)
            apart = divergence(logprobs, frozen)
            losses = losses + kl * apart
            told["divergence"] += apart.sum().item() / tokens
        loss = average(losses, completions, averaging, tokens=tokens, rows=len(answers), cap=cap)
        loss.backward()
        told["loss"] += loss.item()
        ratio = bounded_exp(logprobs.detach() - kept)
        told["ratio"] = max(told["ratio"], (ratio - 1).abs().max().item())
    return told
