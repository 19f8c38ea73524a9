"""Wrong answers to the exercises of lesson 09, as readers write them, each with a word of the hint it gets."""

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


def says_the_first_answer(q, k, v, decay, beta, memory):
    memory = decay[:, None, None] * memory
    said = asked(memory, k)
    return memory + written(k, beta[:, None] * (v - said)), said


def beta_on_the_value_only(q, k, v, decay, beta, memory):
    memory = decay[:, None, None] * memory
    memory = memory + written(k, beta[:, None] * v - asked(memory, k))
    return memory, asked(memory, q)


def scales_the_query(q, k, v, decay, beta, memory):
    memory = decay[:, None, None] * memory
    memory = memory + written(k, beta[:, None] * (v - asked(memory, k)))
    return memory, asked(memory, q) / k.shape[1] ** 0.5


def writes_turned_round(q, k, v, decay, beta, memory):
    memory = decay[:, None, None] * memory
    memory = memory + written(beta[:, None] * (v - asked(memory, k)), k)
    return memory, asked(memory, q)


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


def parts(config, tokens):
    """Right: the numbers of caches, windows and memories."""
    full, linear = count(config)
    lines = config["linear_conv_kernel_dim"] - 1
    return full * tokens * per_token(config), linear * lines * channels(config), linear * table(config)


def one_full_layer_in_four(config, tokens, size):
    full = len(config["layer_types"]) // 4
    linear = len(config["layer_types"]) - full
    lines = config["linear_conv_kernel_dim"] - 1
    return size * (full * tokens * per_token(config) + linear * lines * channels(config)) + 4 * linear * table(config)


def caches_of_query_heads(config, tokens, size):
    cache, windows, memories = parts(config, tokens)
    cache = cache // config["num_key_value_heads"] * config["num_attention_heads"]
    return size * (cache + windows) + 4 * memories


def no_queries_in_the_window(config, tokens, size):
    cache, windows, memories = parts(config, tokens)
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    windows -= count(config)[1] * (config["linear_conv_kernel_dim"] - 1) * keys
    return size * (cache + windows) + 4 * memories


def windows_of_float32(config, tokens, size):
    cache, windows, memories = parts(config, tokens)
    return size * cache + 4 * (windows + memories)


def one_token_more(config, tokens, size):
    cache, windows, memories = parts(config, tokens + 1)
    return size * (cache + windows) + 4 * memories


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
        says_the_first_answer: "Ask again, with the query",
        beta_on_the_value_only: "beta scales the whole difference",
        scales_the_query: "the query is used as given",
        writes_turned_round: "turned round",
    },
    "state-bytes": {
        all_of_one_size: "4 bytes, whatever",
        cache_in_each_layer: "You counted every layer",
        all_taps: "one input fewer",
        no_windows: "the windows are missing",
        tables_of_key_heads: "counted by the value heads",
        tables_that_grow: "does not grow",
        only_tables: "add three parts",
        one_full_layer_in_four: "not every model",
        caches_of_query_heads: "not by the query heads",
        no_queries_in_the_window: "queries AND keys",
        windows_of_float32: "windows take `size`",
        one_token_more: "print your three parts",
    },
}
