"""`qwenlab chat`: a conversation in the terminal, which is held in `qwenlab.terminal`."""

from typing import Annotated

import typer

from qwenlab.commands.common import MaxNewTokens, ModelName, Seed, Temperature, TopK, TopP, open_model, where
from qwenlab.console import Device, Dtype, say


def chat(
    model: ModelName,
    thinking: Annotated[bool, typer.Option(help="Whether the chat template asks for thinking.")] = True,
    system: Annotated[str | None, typer.Option(help="A system message to start from.")] = None,
    max_new_tokens: MaxNewTokens = 1024,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    dtype: Dtype = None,
    device: Device = None,
) -> None:
    """Talk with a model, line by line. Ctrl-C ends an answer, Ctrl-D leaves; a pipe gives one answer a line."""
    from qwenlab.terminal import talk

    network, tokenizer = open_model(model, dtype, device)
    say(f"{model}, {where(network)}")
    options = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    talk(network, tokenizer, system=system, thinking=thinking, seed=seed, **options)
