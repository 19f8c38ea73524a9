"""`qwenlab chat`: a conversation in the terminal."""

from typing import Annotated

import typer

from qwenlab.cli import options
from qwenlab.cli.common import introduce, open_model, speed_up
from qwenlab.cli.threads import Threads


def chat(
    model: options.ModelName = options.TINY,
    thinking: Annotated[
        bool, typer.Option(help="Whether the chat template asks for thinking.")
    ] = True,
    system: Annotated[str | None, typer.Option(help="A system message to start with.")] = None,
    max_new_tokens: options.MaxNewTokens = 1024,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    seed: options.Seed = 0,
    threads: options.Threads = options.AUTO,
    dtype: options.Dtype = None,
    device: options.Device = None,
    compile: options.Compile = False,
) -> None:
    """Chat with a model. Ctrl-C ends an answer, Ctrl-D leaves; in a pipe, each line is a turn."""
    from qwenlab.chat.terminal import talk

    wanted = Threads(threads)
    network, tokenizer = open_model(model, dtype, device)
    introduce(model, network, wanted.use(network, rows=1))
    speed_up(network, compile)
    talk(
        network,
        tokenizer,
        system=system,
        thinking=thinking,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
