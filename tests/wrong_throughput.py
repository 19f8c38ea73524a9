"""Wrong answers to the exercises of lesson 01, as readers write them, each with a word of the hint it gets."""

# --- bytes-per-step: (config, rows, context, size) -> bytes ---


def weights_of(config):
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    q_and_o = 2 * hidden * config["num_attention_heads"] * head_dim
    k_and_v = 2 * hidden * config["num_key_value_heads"] * head_dim
    mlp = 3 * hidden * config["intermediate_size"]
    return config["num_hidden_layers"] * (q_and_o + k_and_v + mlp) + config["vocab_size"] * hidden


def cache_of(config, context, heads="num_key_value_heads"):
    return 2 * config["num_hidden_layers"] * config[heads] * config["head_dim"] * context


def weights_only(config, rows, context, size):
    return size * weights_of(config)


def each_row_its_weights(config, rows, context, size):
    return size * rows * (weights_of(config) + cache_of(config, context))


def one_cache(config, rows, context, size):
    return size * (weights_of(config) + cache_of(config, context))


def numbers_not_bytes(config, rows, context, size):
    return weights_of(config) + rows * cache_of(config, context)


def only_keys(config, rows, context, size):
    return size * (weights_of(config) + rows * cache_of(config, context) // 2)


def query_heads(config, rows, context, size):
    return size * (weights_of(config) + rows * cache_of(config, context, "num_attention_heads"))


def no_head(config, rows, context, size):
    return each_once(config, rows, context, size) - size * config["vocab_size"] * config["hidden_size"]


def embedding_too(config, rows, context, size):
    return each_once(config, rows, context, size) + size * config["vocab_size"] * config["hidden_size"]


def two_matrices_in_the_mlp(config, rows, context, size):
    one = config["num_hidden_layers"] * config["hidden_size"] * config["intermediate_size"]
    return each_once(config, rows, context, size) - size * one


def cache_of_one_layer(config, rows, context, size):
    return size * (weights_of(config) + rows * cache_of(config, context) // config["num_hidden_layers"])


def each_once(config, rows, context, size):
    return size * (weights_of(config) + rows * cache_of(config, context))


# --- batch-where-it-bends: (weights, cached, size, bandwidth, flops) -> rows ---


def one_operation(weights, cached, size, bandwidth, flops):
    gained = weights / flops - size * cached / bandwidth
    return size * weights / bandwidth / gained if gained > 0 else float("inf")


def numbers_a_second(weights, cached, size, bandwidth, flops):
    gained = 2 * weights / flops - cached / bandwidth
    return weights / bandwidth / gained if gained > 0 else float("inf")


def only_the_ratio(weights, cached, size, bandwidth, flops):
    return size * flops / (2 * bandwidth)  # right where nothing is cached


def turned_round(weights, cached, size, bandwidth, flops):
    gained = 2 * weights / flops - size * cached / bandwidth
    return gained / (size * weights / bandwidth) if gained > 0 else 0.0


def cached_once(weights, cached, size, bandwidth, flops):
    return size * (weights + cached) * flops / (2 * weights * bandwidth)


def wrong_sign(weights, cached, size, bandwidth, flops):
    return size * weights / (2 * weights * bandwidth / flops + size * cached)


def negative(weights, cached, size, bandwidth, flops):
    return (size * weights / bandwidth) / (2 * weights / flops - size * cached / bandwidth)


WRONG = {
    "bytes-per-step": {
        weights_only: "keys and values are missing",
        each_row_its_weights: "weights once a row",
        one_cache: "each row's own",
        numbers_not_bytes: "counted numbers",
        only_keys: "One of them is missing",
        query_heads: "every query head",
        cache_of_one_layer: "of one layer only",
        no_head: "the head is missing",
        embedding_too: "one line of the embedding",
        two_matrices_in_the_mlp: "count the matrices",
    },
    "batch-where-it-bends": {
        one_operation: "two operations",
        numbers_a_second: "counts bytes",
        only_the_ratio: "its own keys and values",
        cached_once: "grow with the rows: each row",
        wrong_sign: "comes off",
        turned_round: "upside down",
        negative: "negative number of rows",
    },
}
