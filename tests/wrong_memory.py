"""Wrong answers to the exercises of lesson 05, as readers write them, each with a word of the hint it gets."""

import torch

# --- delta-step: (q, k, v, decay, beta, memory) -> memory, said ---


def asked(memory, key):
    return torch.einsum("nkv,nk->nv", memory, key)


def written(k, gap):
    return k[:, :, None] * gap[:, None, :]


def asks_before_fading(q, k, v, decay, beta, memory):
    gap = beta[:, None] * (v - asked(memory, k))
    memory = decay[:, None, None] * memory + written(k, gap)
    return memory, asked(memory, q)


def adds(q, k, v, decay, beta, memory):
    memory = decay[:, None, None] * memory + written(k, beta[:, None] * v)
    return memory, asked(memory, q)


def forgets_beta(q, k, v, decay, beta, memory):
    memory = decay[:, None, None] * memory
    memory = memory + written(k, v - asked(memory, k))
    return memory, asked(memory, q)


def never_fades(q, k, v, decay, beta, memory):
    memory = memory + written(k, beta[:, None] * (v - asked(memory, k)))
    return memory, asked(memory, q)


def fades_last(q, k, v, decay, beta, memory):
    memory = memory + written(k, beta[:, None] * (v - asked(memory, k)))
    memory = decay[:, None, None] * memory
    return memory, asked(memory, q)


def reads_too_early(q, k, v, decay, beta, memory):
    memory = decay[:, None, None] * memory
    said = asked(memory, q)
    return memory + written(k, beta[:, None] * (v - asked(memory, k))), said


def takes_the_logarithm(q, k, v, decay, beta, memory):
    memory = decay.exp()[:, None, None] * memory
    memory = memory + written(k, beta[:, None] * (v - asked(memory, k)))
    return memory, asked(memory, q)


def reads_with_the_key(q, k, v, decay, beta, memory):
    memory = decay[:, None, None] * memory
    memory = memory + written(k, beta[:, None] * (v - asked(memory, k)))
    return memory, asked(memory, k)


def by_columns(q, k, v, decay, beta, memory):
    memory = decay[:, None, None] * memory
    gap = beta[:, None] * (v - (memory @ k[:, :, None])[:, :, 0])
    memory = memory + gap[:, :, None] * k[:, None, :]
    return memory, (memory @ q[:, :, None])[:, :, 0]


def said_first(q, k, v, decay, beta, memory):
    memory = decay[:, None, None] * memory
    memory = memory + written(k, beta[:, None] * (v - asked(memory, k)))
    return asked(memory, q), memory


# --- state-bytes: (config, tokens, size) -> bytes ---


def count(config):
    full = config["layer_types"].count("full_attention")
    return full, len(config["layer_types"]) - full


def channels(config):
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    return 2 * keys + config["linear_num_value_heads"] * config["linear_value_head_dim"]


def table(config, heads="linear_num_value_heads"):
    return config[heads] * config["linear_key_head_dim"] * config["linear_value_head_dim"]


def per_token(config):
    return 2 * config["num_key_value_heads"] * config["head_dim"]


def all_of_one_size(config, tokens, size):
    full, linear = count(config)
    lines = config["linear_conv_kernel_dim"] - 1
    return size * (full * tokens * per_token(config) + linear * (lines * channels(config) + table(config)))


def cache_in_each_layer(config, tokens, size):
    _, linear = count(config)
    lines = config["linear_conv_kernel_dim"] - 1
    cache = len(config["layer_types"]) * tokens * per_token(config)
    return size * (cache + linear * lines * channels(config)) + 4 * linear * table(config)


def all_taps(config, tokens, size):
    full, linear = count(config)
    lines = config["linear_conv_kernel_dim"]
    return size * (full * tokens * per_token(config) + linear * lines * channels(config)) + 4 * linear * table(config)


def no_windows(config, tokens, size):
    full, linear = count(config)
    return size * full * tokens * per_token(config) + 4 * linear * table(config)


def tables_of_key_heads(config, tokens, size):
    full, linear = count(config)
    lines = config["linear_conv_kernel_dim"] - 1
    tables = 4 * linear * table(config, "linear_num_key_heads")
    return size * (full * tokens * per_token(config) + linear * lines * channels(config)) + tables


def tables_that_grow(config, tokens, size):
    full, linear = count(config)
    lines = config["linear_conv_kernel_dim"] - 1
    tables = 4 * linear * tokens * table(config)
    return size * (full * tokens * per_token(config) + linear * lines * channels(config)) + tables


def only_tables(config, tokens, size):
    return 4 * count(config)[1] * table(config)


WRONG = {
    "delta-step": {
        asks_before_fading: "before it had faded",
        adds: "Ask first, write the difference",
        forgets_beta: "beta is not used",
        never_fades: "decay is not used",
        fades_last: "you faded last",
        reads_too_early: "you read before writing",
        takes_the_logarithm: "It is no logarithm",
        reads_with_the_key: "the query reads",
        by_columns: "transposed",
        said_first: "swapped",
    },
    "state-bytes": {
        all_of_one_size: "float32",
        cache_in_each_layer: "You counted every layer",
        all_taps: "one input fewer",
        no_windows: "the windows are missing",
        tables_of_key_heads: "counted by the value heads",
        tables_that_grow: "does not grow",
        only_tables: "add three parts",
    },
}
