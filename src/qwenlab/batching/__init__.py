"""Many requests in one forward pass: padding, masks, sampling and the generation loop."""
