# The calls are those of anyscale/e2e-xgboost, notebooks/02-Validation.ipynb.
import pickle
import tempfile

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import confusion_matrix

from headrace.compat import ray
from headrace.compat.ray.data.preprocessors import StandardScaler

frame = load_breast_cancer(as_frame=True).frame[["mean radius", "mean texture", "target"]]
path = f"{tempfile.mkdtemp()}/breast_cancer.csv"
frame.to_csv(path, index=False)
train, rest = ray.data.read_csv(path).train_test_split(test_size=0.3, shuffle=True, seed=42)
scaler = StandardScaler(columns=["mean radius", "mean texture"])
fitted = scaler.fit_transform(train).to_pandas()
model = LogisticRegression().fit(fitted.drop(columns=["target"]), fitted["target"])
scaler = pickle.loads(pickle.dumps(scaler))


def prepare(batch, preprocessor):
    target = batch.pop("target")
    return preprocessor.transform_batch(batch).assign(target=target)


class Validator:
    def __init__(self, loader):
        self.model = loader()

    def __call__(self, batch):
        target = batch.pop("target")
        return {"prediction": self.model.predict_proba(batch)[:, 1], "target": target}


def matrix(batch, threshold=0.5):
    found = confusion_matrix(batch["target"], batch["prediction"] > threshold, labels=[0, 1])
    return {name: np.array([count]) for name, count in zip(("TN", "FP", "FN", "TP"), found.ravel())}


rest = rest.map_batches(prepare, fn_kwargs={"preprocessor": scaler}, batch_format="pandas", batch_size=1000)
predictions = rest.map_batches(
    Validator,
    fn_constructor_kwargs={"loader": lambda: model},
    compute=ray.data.ActorPoolStrategy(size=2),
    batch_format="pandas",
)
sums = predictions.map_batches(matrix, batch_format="pandas").sum(["TN", "FP", "FN", "TP"])
assert sum(sums.values()) == rest.count() and sums["sum(TP)"] > sums["sum(FN)"]
