"""A byte-level tokenizer of some 300 tokens with a ChatML template, made by hand: for tests that
need no training."""

import json

from qwenlab.text.tokenizer import BYTE_OF

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
MERGES = ["t h", "th e", "Ġ the", "Ġ a", "1 2", "i n", "Ã ©"]
TEMPLATE = """{%- for message in messages %}
{%- set content = message.content %}
{%- if message.role == 'assistant' and '</think>' in content and not loop.last %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""


def small_spec(**changes) -> dict:
    """The content of a tokenizer.json; `changes` replace its top-level entries."""
    letters = sorted(BYTE_OF, key=BYTE_OF.get)
    tokens = letters + [merge.replace(" ", "") for merge in MERGES]
    added = [
        {"id": len(tokens) + i, "content": content, "special": content.startswith("<|")}
        | {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        for i, content in enumerate(CONTROL)
    ]
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": True,
    }
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {token: id for id, token in enumerate(tokens)},
        "merges": MERGES,
    }
    spec = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": level,
        "post_processor": level,
        "decoder": level,
        "model": model,
    }
    return spec | changes


def write_small_tokenizer(folder, template=TEMPLATE, spec=None) -> None:
    """tokenizer.json and tokenizer_config.json in `folder`."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
    }
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer.json").write_text(json.dumps(spec or small_spec()), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
