"""Two models in one pass, with metrics as scikit-learn has them."""

import numpy as np
from sklearn.metrics import log_loss, roc_auc_score

import headrace as hr


def honest(batch):
    return 1 / (1 + np.exp(-batch["x"]))


def lazy(batch):
    return np.full(len(batch["x"]), 0.5) + (batch["x"] > 1) * 0.25


if __name__ == "__main__":
    random = np.random.default_rng(1)
    x = random.normal(size=5_000)
    label = (x + random.normal(size=5_000) > 0).astype(int)
    rows = hr.from_items([{"x": float(a), "label": int(b)} for a, b in zip(x, label, strict=True)])
    result = (
        rows.predict({"honest": honest, "lazy": lazy}, inputs=["x"])
        .accumulate(
            honest_auc=hr.AUROC(label="label", score="honest"),
            lazy_auc=hr.AUROC(label="label", score="lazy"),
            loss=hr.LogLoss(label="label", score="honest"),
            rows=hr.Count(),
        )
        .write_parquet("scores/")
    )
    batch = {"x": x}
    metrics = result.metrics
    assert metrics["rows"] == result.rows == 5_000
    assert abs(metrics["honest_auc"] - roc_auc_score(label, honest(batch))) < 1e-3
    assert abs(metrics["lazy_auc"] - roc_auc_score(label, lazy(batch))) < 1e-3
    assert abs(metrics["loss"] - log_loss(label, honest(batch))) < 1e-9
    found = hr.read_parquet("scores/").to_pandas()
    assert (found["honest"] == honest(batch)).all() and (found["lazy"] == lazy(batch)).all()
