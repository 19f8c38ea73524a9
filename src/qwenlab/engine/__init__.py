"""Many requests in one forward pass: padding and masks, sampling, the scheduler and the engine."""
