"""Where the engine was until it got a package of its own."""

raise ImportError("qwenlab.batching is now qwenlab.engine")
