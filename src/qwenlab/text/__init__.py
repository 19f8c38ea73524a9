"""Text to token ids and back, and the chat template that a checkpoint brings."""
