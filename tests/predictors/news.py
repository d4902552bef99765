"""Texts and a tokenizer for the tests of language models; nothing is downloaded."""

from __future__ import annotations

from typing import Any

import numpy as np

SUBJECTS = ["The central bank", "A young goalkeeper", "Heavy rain", "The city council", "A small startup"]
EVENTS = [
    "surprised everybody on Monday",
    "changed plans for the coming season after a long night of talks",
    "stopped trains between the two largest cities for several hours, officials said",
    "won the vote",
    "will cost about four million more than expected, according to a report that was published today",
    "is back",
    "opened a new office near the harbour",
    "lost two games in a row and still leads the table",
    "was praised by neighbours and criticised by farmers in the north, where fields are under water",
    "ended early",
]
TEXTS = np.array([f"{subject} {event}." for subject in SUBJECTS for event in EVENTS], object)


def tokenizer(**options: Any) -> Any:
    """Return a fast tokenizer over the words of the texts."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = sorted(
        {word for text in TEXTS for word in text.lower().replace(".", " ").replace(",", " ").split()}
    )
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made = Tokenizer(
        models.WordLevel({word: n for n, word in enumerate([*special, *words])}, unk_token="[UNK]")
    )
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    ends = {"cls_token": "[CLS]", "sep_token": "[SEP]", "eos_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=48, **{**names, **ends, **options})
