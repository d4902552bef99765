# The calls are those of ray-project/ray, python/ray/data/preprocessors/vectorizer.py.
from headrace.compat import ray
from headrace.compat.ray.data.preprocessors import (
    CountVectorizer,
    Normalizer,
    RobustScaler,
    Tokenizer,
    UniformKBinsDiscretizer,
)

ds = ray.data.from_items([{"text": "a b a", "x": 3.0, "z": 4.0}, {"text": "b c", "x": 6.0, "z": 8.0}])
counted = CountVectorizer(["text"]).fit_transform(ds).take_all()
assert len(counted) == 2
tokens = Tokenizer(columns=["text"]).transform(ds).take_all()
assert list(tokens[0]["text"]) == ["a", "b", "a"]
unit = Normalizer(columns=["x", "z"]).transform(ds).take_all()
assert abs(unit[0]["x"] - 0.6) < 1e-9 and abs(unit[1]["z"] - 0.8) < 1e-9
robust = RobustScaler(columns=["x"]).fit_transform(ds).take_all()
assert robust[0]["x"] < robust[1]["x"]
bins = UniformKBinsDiscretizer(columns=["x"], bins=2).fit_transform(ds).take_all()
assert [row["x"] for row in bins] == [0, 1]
