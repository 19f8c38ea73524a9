"""The tokenizer of the tiny models: byte-level BPE with the layout and control tokens of Qwen3."""

import json
from itertools import islice
from pathlib import Path

from tiny_examples import STOP, examples
from tiny_traces import Dials
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

VOCABULARY = 512
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
THINK = ["<think>", "</think>"]
PAD = "<|endoftext|>"

# Every newline, digit and other symbol by itself; a word includes the one character before it.
# "\n" must be alone, or else "\n\n" would be one token inside a text and two where a prompt ends
# between them.
SPLIT = r"\n|\p{N}|[^\n\p{L}\p{N}]?\p{L}+|[^\S\n]+|[^\s\p{L}\p{N}]"

# ChatML as Qwen3 has it: what the assistant thought in earlier turns is dropped, and thinking off
# is a closed empty block after the generation prompt.
CHAT_TEMPLATE = """\
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""


def train_tokenizer(seed: int, problems: int = 20000) -> Tokenizer:
    """Learns merges from conversations of all the models; control tokens come last, as in
    Qwen3."""
    texts = []
    for dials in (Dials(), Dials(ways=True)):
        for example in islice(examples(seed, dials), problems // 2):
            texts.append("".join(piece.text for piece in example))
    for token in CONTROL + THINK:
        texts = [text.replace(token, "\n") for text in texts]

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    size = VOCABULARY - len(CONTROL) - len(THINK)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=50,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in CONTROL]
    )
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in THINK])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, context: int) -> None:
    """Writes tokenizer.json, and the tokenizer_config.json with which transformers reads it."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": STOP,
        "pad_token": PAD,
        "model_max_length": context,
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config, indent=2) + "\n", encoding="utf-8", newline="\n"
    )
