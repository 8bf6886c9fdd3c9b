"""A byte-level BPE tokenizer learned from text, and the files that say how to use it. Any text survives the way
there and back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from serving.small_models.documents import END, END_OF_TEXT, START

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Specials:
    """Tokens with a role; their ids are their places in `tokens`."""

    tokens: tuple[str, ...]
    roles: tuple[tuple[str, str], ...]
    """(what Hugging Face calls the role, its token)"""
    frames_text: bool = False
    """Whether the first token opens each text and the second closes it."""

    def id_of(self, role: str) -> int:
        return self.tokens.index(dict(self.roles)[role])


CHAT = Specials((END_OF_TEXT, START, END), (("eos_token", END), ("pad_token", END_OF_TEXT)))
BERT = Specials(
    ("[CLS]", "[SEP]", "[PAD]"), (("cls_token", "[CLS]"), ("sep_token", "[SEP]"), ("pad_token", "[PAD]")), True
)


def learn_tokenizer(texts: Iterable[str], size: int, specials: Specials) -> Tokenizer:
    """At most `size` tokens, the 256 bytes among them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(specials.tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if specials.frames_text:
        first, last = specials.tokens[:2]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}",
            pair=f"{first} $A {last} $B:1 {last}:1",
            special_tokens=[(first, 0), (last, 1)],
        )
    return tokenizer


def tokenizer_files(tokenizer: Tokenizer, specials: Specials, longest: int) -> dict[str, bytes]:
    """By name, the files that Hugging Face reads for a tokenizer; `longest` text, in tokens."""
    roles = dict(specials.roles)
    config: dict[str, Any] = {
        "added_tokens_decoder": {
            str(place): {"content": token, "lstrip": False, "normalized": False, "rstrip": False}
            | {"single_word": False, "special": True}
            for place, token in enumerate(specials.tokens)
        },
        "clean_up_tokenization_spaces": False,
        "model_max_length": longest,
        "tokenizer_class": "PreTrainedTokenizerFast",
        **roles,
    }
    if specials.frames_text:
        config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    else:
        config["chat_template"] = CHAT_TEMPLATE
    return {
        "tokenizer.json": tokenizer.to_str(pretty=True).encode() + b"\n",
        "tokenizer_config.json": json_bytes(config),
        "special_tokens_map.json": json_bytes(roles),
    }


def json_bytes(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True).encode() + b"\n"
