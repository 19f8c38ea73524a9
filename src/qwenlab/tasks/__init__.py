"""Where evaluation, training and chat were until they got packages of their own."""

raise ImportError(
    "qwenlab.tasks is now qwenlab.evaluation, qwenlab.training and qwenlab.chat: "
    "evaluate, grade and voting; grpo, distill and traces; Chat"
)
