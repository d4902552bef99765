"""A Hugging Face pipeline in batches: prepare on the CPU, predict with one worker or two.

A small model with random weights and a tokenizer of a few words are made and saved here, so that nothing has to be
fetched; the folder of a real model takes their place. A worker of the second stage loads it once, then gets batches
of two texts; the first stage prepares the next texts meanwhile.
"""

import tempfile

import numpy as np

import headrace as hr

TEXTS = [
    "  A fine film ",
    "What a BAD film",
    "fine",
    "bad , bad",
    "A film",
    "what a fine film",
    "Bad",
    "A fine",
]


def make_model(folder: str) -> None:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "a", "what", "fine", "bad", "film", ","]
    plain = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(
        folder
    )
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        id2label={0: "bad", 1: "fine"},
    )
    BertForSequenceClassification(config).save_pretrained(folder)


def cleaned(batch: dict[str, np.ndarray]) -> dict[str, list[str]]:
    """The preprocessing: no model, any core."""
    return {"data": [text.strip().lower() for text in batch["data"]]}


class Sentiment:
    def __init__(self, folder: str) -> None:  # once per worker
        from transformers import pipeline

        self.model = pipeline("text-classification", model=folder, device="cpu")

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, object]:  # once per batch
        results = self.model(list(batch["data"]))
        return {**batch, "label": [result["label"] for result in results]}


def predictions(folder: str, workers: int) -> hr.Dataset:
    data = hr.from_numpy(np.asarray(TEXTS))
    return data.map_batches(cleaned, num_cpus=1).map_batches(
        Sentiment, fn_constructor_args=[folder], batch_size=2, compute=hr.ActorPoolStrategy(size=workers)
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_model(folder)
        predictions(folder, 1).show(limit=1)
        print(f"{len(predictions(folder, 2).take_all())} predictions by two workers")


if __name__ == "__main__":
    main()
