"""Qwen models: configuration, weights, layers, and the state of a generation."""
