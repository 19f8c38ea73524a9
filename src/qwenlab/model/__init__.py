"""Qwen models: configuration, weights, layers, the state of a generation, tokenizer and loading."""
