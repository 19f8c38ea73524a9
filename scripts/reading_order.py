"""Prints the order in which to read the library: `make read`."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "qwenlab"
ORDER = {
    "model/layers.py": "RMS norm, rotary positions, MLP",
    "model/attention.py": "grouped-query attention, two ways to compute it",
    "model/deltanet.py": "the gated delta rule; trailing pads change neither of its two states",
    "model/batch.py": "one forward pass: pads moved to the end, the KV cache written",
    "model/state.py": "what a slot remembers, and when it is invalid",
    "model/model.py": "the whole: ids in, logits out",
    "engine/padding.py": "ragged prompts as a rectangle",
    "engine/masks.py": "the combined mask, the reference that lessons compare with",
    "engine/request.py": "what is asked for, what is on its way, what is handed back",
    "engine/options.py": "a caller's options, checked, and spread over the prompts",
    "engine/prompts.py": "from prompts and options to requests",
    "engine/sampling.py": "from logits to the next id of each row",
    "engine/step_plan.py": "a step as a value",
    "engine/scheduler.py": "who runs, in which slot, and when an answer ends: no tensor",
    "engine/slots.py": "which slot each request holds",
    "engine/prefix.py": "a shared prefix is read once",
    "engine/runner.py": "a plan, executed on the model",
    "engine/invariant.py": "passes of fixed shape, for the same bits in any company",
    "engine/engine.py": "schedule, execute, sample, update",
    "engine/generation.py": "prompts in, answers out",
    "engine/footprint.py": "what a row takes in memory, by formulas",
    "fast/swap.py": "speed as a pass over the plain model",
    "fast/fused.py": "one product where three would do",
    "fast/attention.py": "masks only where needed",
    "fast/deltanet.py": "a decode step in place",
    "fast/linear.py": "the fastest kernel for so many rows",
    "fast/invariant.py": "attention whose sums do not depend on the neighbours",
}


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def main() -> None:
    for room in ("model", "engine", "fast"):
        total = sum(map(lines, (PACKAGE / room).glob("*.py")))
        print(f"{room}/ has {total:,} lines, docstrings included")
    print()
    for name, what in ORDER.items():
        print(f"{lines(PACKAGE / name):5}  src/qwenlab/{name:22}  {what}")


if __name__ == "__main__":
    main()
