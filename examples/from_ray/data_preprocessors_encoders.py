# The calls are those of ray-project/ray, doc/source/data/api/preprocessor.rst.
from headrace.compat import ray
from headrace.compat.ray.data.preprocessors import (
    LabelEncoder,
    MultiHotEncoder,
    OneHotEncoder,
    OrdinalEncoder,
)

ds = ray.data.from_items(
    [
        {"color": "red", "size": "S", "tags": ["a", "b"], "y": "yes"},
        {"color": "green", "size": "L", "tags": ["a"], "y": "no"},
        {"color": "red", "size": "M", "tags": [], "y": "yes"},
    ]
)
one_hot = OneHotEncoder(columns=["color"]).fit_transform(ds).take_all()
assert [list(row["color"]) for row in one_hot] == [[0, 1], [1, 0], [0, 1]]
ordinal = OrdinalEncoder(columns=["color", "size"]).fit_transform(ds).take_all()
assert [(row["color"], row["size"]) for row in ordinal] == [(1, 2), (0, 0), (1, 1)]
encoder = LabelEncoder(label_column="y")
labels = encoder.fit_transform(ds)
assert [row["y"] for row in labels.take_all()] == [1, 0, 1]
assert [row["y"] for row in encoder.inverse_transform(labels).take_all()] == ["yes", "no", "yes"]
hot = MultiHotEncoder(columns=["tags"]).fit_transform(ds).take_all()
assert [list(row["tags"]) for row in hot] == [[1, 1], [1, 0], [0, 0]]
