# The calls are those of anyscale/Made-With-ML, madewithml/data.py.
import tempfile
from functools import partial

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from headrace.compat import ray
from headrace.compat.ray.data.preprocessors import BatchMapper, Chain, LabelEncoder

path = f"{tempfile.mkdtemp()}/projects.csv"
tags = ["vision", "language", "graphs", "operations"]
pd.DataFrame([{"id": i, "title": f"Title {i}", "tag": tags[i % 4]} for i in range(40)]).to_csv(
    path, index=False
)
ds = ray.data.read_csv(path).repartition(2).random_shuffle(seed=1234)
ds = ray.data.from_items(ds.take(32)).repartition(1)


def split(df):
    train, test = train_test_split(df, test_size=0.25, random_state=1)
    return pd.concat([train.assign(_split="train"), test.assign(_split="test")])


def of(df, split):
    return df[df["_split"] == split].drop("_split", axis=1)


grouped = ds.groupby("tag").map_groups(split, batch_format="pandas")
train = grouped.map_batches(of, fn_kwargs={"split": "train"}, batch_format="pandas").random_shuffle(seed=1)
test = grouped.map_batches(of, fn_kwargs={"split": "test"}, batch_format="pandas")
assert train.count() + test.count() == 32


def one_hot(batch, num_classes):
    batch["tag"] = np.eye(num_classes)[batch["tag"]]
    return batch


preprocessor = Chain(
    BatchMapper(lambda df: df.assign(text=df.title.str.lower())[["text", "tag"]], batch_format="pandas"),
    LabelEncoder(label_column="tag"),
    BatchMapper(partial(one_hot, num_classes=4), batch_format="numpy"),
)
prepared = preprocessor.fit_transform(train).take_batch()
assert prepared["tag"].shape[1] == 4 and (prepared["tag"].sum(axis=1) == 1).all()
