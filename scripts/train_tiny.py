"""Trains a tiny model from scratch and writes it as a Hugging Face checkpoint: `python
scripts/train_tiny.py tiny`.

It takes one CPU thread: some five minutes for tiny-base, a quarter of an hour for tiny, and up to
three quarters for tiny-hybrid, and then the evaluation. The folder appears complete when everything
is done, or not at all.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch
from tiny_evaluation import SEEDS, card, scores_of, votes
from tiny_examples import STOP
from tiny_tokenizer import PAD, save_tokenizer, train_tokenizer
from tiny_traces import WAYS_SLIP, Dials
from tiny_training import Recipe, train
from tokenizers import Tokenizer

import qwenlab
from qwenlab.evaluation.arithmetic import KINDS, arithmetic_problems
from qwenlab.files import write_folder
from qwenlab.model.model import Model
from qwenlab.model.weights import save_weights

CHECKPOINTS = Path(__file__).parents[1] / "src" / "qwenlab" / "checkpoints"

DENSE = {
    "model_type": "qwen3",
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 288,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "initializer_range": 0.02,
}
HYBRID = DENSE | {
    "model_type": "qwen3_5_text",
    "hidden_size": 160,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "partial_rotary_factor": 0.25,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
}
RECIPES = {
    "tiny": Recipe(DENSE, steps=6000),
    # A short cut that is often wrong, and a third of the steps: so something is left to learn.
    "tiny-base": Recipe(DENSE, steps=2000, dials=Dials(slip=WAYS_SLIP, ways=True)),
    "tiny-hybrid": Recipe(HYBRID, steps=4500),
}


def main() -> None:
    name, recipe, folder, problems = arguments()
    # More threads would be slower for matrices this small, and would change the last bits of sums.
    torch.set_num_threads(1)
    tokenizer = train_tokenizer(recipe.seed)
    print(
        f"{name}: {recipe.steps} steps, seed {recipe.seed}, "
        f"{tokenizer.get_vocab_size()} tokens in the vocabulary"
    )
    model, outcome = train(recipe, tokenizer)
    print(
        f"{outcome.tokens:,} tokens, {outcome.padded:.1%} padding, {outcome.seconds:.0f} s, "
        f"loss {outcome.loss:.4f}"
    )

    scores = {}

    def fill(new: Path) -> None:
        write_checkpoint(new, recipe, tokenizer, model)
        shipped, its_tokenizer = qwenlab.load(new, device="cpu")
        scores.update(scores_of(shipped, its_tokenizer, problems))
        voted = votes(shipped, its_tokenizer, problems, SEEDS) if recipe.dials.ways else ""
        prompts = [
            len(its_tokenizer.chat([{"role": "user", "content": problem.question}]))
            for problem in arithmetic_problems(problems)
        ]
        sizes = {
            "parameters": sum(p.numel() for p in model.parameters()),
            "vocabulary": tokenizer.get_vocab_size(),
        }
        text = card(name, recipe, outcome, scores, prompts, voted, **sizes)
        (new / "README.md").write_text(text, encoding="utf-8", newline="\n")

    write_folder(folder, fill)
    for way, score in scores.items():
        by_kind = ", ".join(f"{kind} {score.of(kind):.3f}" for kind in KINDS)
        print(f"{way}: {score.accuracy:.3f} of {problems} ({by_kind})")
    print(f"written: {folder}")


def write_checkpoint(folder: Path, recipe: Recipe, tokenizer: Tokenizer, model: Model) -> None:
    """Weights in bfloat16, and the JSON files as `transformers` writes them for this family."""
    save_weights(model, folder, torch.bfloat16)
    save_tokenizer(tokenizer, folder, recipe.shape["max_position_embeddings"])
    stop = tokenizer.token_to_id(STOP)
    pad = tokenizer.token_to_id(PAD)
    shape = dict(recipe.shape)
    if recipe.hybrid:
        rope = {"rope_type": "default"}
        for key in ("rope_theta", "partial_rotary_factor"):
            rope[key] = shape.pop(key)
        shape["rope_parameters"] = rope
    else:
        shape["use_sliding_window"] = False
    config = {
        "architectures": [recipe.architecture],
        **shape,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "use_cache": True,
        "eos_token_id": stop,
        "pad_token_id": pad,
        "torch_dtype": "bfloat16",
    }
    # Two stop ids, as published for Qwen3: the end of a turn and the end of a text.
    generation = {"eos_token_id": [stop, pad], "pad_token_id": pad}
    for file, content in (("config.json", config), ("generation_config.json", generation)):
        (folder / file).write_text(
            json.dumps(content, indent=2) + "\n", encoding="utf-8", newline="\n"
        )


def arguments() -> tuple[str, Recipe, Path, int]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=RECIPES, help="which model")
    parser.add_argument(
        "--steps", type=at_least_one, help="length of the schedule (default: the recipe's)"
    )
    parser.add_argument(
        "--seed", type=int, help="of problems, traces and weights (default: the recipe's)"
    )
    parser.add_argument("--out", type=Path, help="folder to write (default: the shipped one)")
    parser.add_argument(
        "--problems", type=at_least_one, default=1000, help="held-out problems to score it on"
    )
    given = parser.parse_args()
    recipe = RECIPES[given.name]
    changes = {}
    for key in ("steps", "seed"):
        if getattr(given, key) is not None:
            changes[key] = getattr(given, key)
    out = (given.out or CHECKPOINTS / given.name).absolute()
    if out.exists() and not (out / "config.json").exists():
        parser.error(f"{out} exists and holds no checkpoint; name another folder")
    return given.name, replace(recipe, **changes), out, given.problems


def at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


if __name__ == "__main__":
    main()
