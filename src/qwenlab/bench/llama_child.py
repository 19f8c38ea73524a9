"""Decoding by llama.cpp, in a process of its own: its threads and PyTorch's would otherwise share
one OpenMP runtime, or wait actively beside each other.

Started as a script with the path of a GGUF file. Each line on stdin is a request in JSON with
`prompts`, `new_tokens` and `threads`; each line on stdout its answer with `one`, `every` (seconds
up to the first token, and for all of them) and `ids`. The greedy choice is part of the time, as in
`generate` of the others. Imports nothing of this package, so that no PyTorch is loaded.
"""

import json
import sys
from time import perf_counter

import llama_cpp
import numpy as np


def silent(_level: int, _text: bytes, _data: object) -> None:
    """llama.cpp reports every tensor that it loads; nobody reads that here."""


def answer(model: object, vocab_size: int, prompts: list, new_tokens: int, threads: int) -> dict:
    """Greedy decoding of all prompts at once, a row each."""
    rows = len(prompts)
    longest = max(map(len, prompts)) + new_tokens
    tokens = sum(map(len, prompts))
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = rows * (-(-longest // 256) * 256)  # a multiple of 256 for each row
    params.n_seq_max = rows
    params.n_batch = max(tokens, rows)
    params.n_threads = threads
    params.n_threads_batch = threads
    context = llama_cpp.llama_init_from_model(model, params)
    if not context:
        raise RuntimeError("llama.cpp made no context")
    batch = llama_cpp.llama_batch_init(params.n_batch, 0, 1)

    def step(entries: list[tuple[int, int, int, bool]], wanted: list[int]) -> list[int]:
        """Entries are (id, position, row, logits wanted); returns the best id at each of
        `wanted`."""
        batch.n_tokens = len(entries)
        for place, (token, position, row, logits) in enumerate(entries):
            batch.token[place] = token
            batch.pos[place] = position
            batch.n_seq_id[place] = 1
            batch.seq_id[place][0] = row
            batch.logits[place] = logits
        status = llama_cpp.llama_decode(context, batch)
        if status:
            raise RuntimeError(f"llama_decode ended with status {status}")
        best = []
        for place in wanted:
            logits = llama_cpp.llama_get_logits_ith(context, place)
            best.append(int(np.ctypeslib.as_array(logits, (vocab_size,)).argmax()))
        return best

    entries = []
    wanted = []
    for row, prompt in enumerate(prompts):
        for position, token in enumerate(prompt):
            entries.append((token, position, row, position == len(prompt) - 1))
        wanted.append(len(entries) - 1)
    began = perf_counter()
    last = step(entries, wanted)
    one = perf_counter() - began
    ids = [[token] for token in last]
    for turn in range(new_tokens - 1):
        entries = []
        for row, token in enumerate(last):
            entries.append((token, len(prompts[row]) + turn, row, True))
        last = step(entries, list(range(rows)))
        for row, token in enumerate(last):
            ids[row].append(token)
    every = perf_counter() - began
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    return {"one": one, "every": every, "ids": ids}


def main(path: str) -> None:
    keep = llama_cpp.llama_log_callback(silent)
    llama_cpp.llama_log_set(keep, None)
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(path.encode(), params)
    if not model:
        sys.exit("llama.cpp can't load the file")
    vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    for line in sys.stdin:
        print(json.dumps(answer(model, vocab_size, **json.loads(line))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
