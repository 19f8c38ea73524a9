"""Text to token ids and back, and the checkpoint's chat template."""
