"""A scikit-learn pipeline over a table of 54,000 rows."""

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import headrace as hr

random = np.random.default_rng(1)
people = pd.DataFrame(random.normal(size=(54_000, 6)), columns=list("abcdef"))
people["id"] = np.arange(len(people))
bought = (people["a"] + people["b"] * 0.5 + random.normal(size=len(people))) > 0
people.to_parquet("people.parquet")

model = make_pipeline(StandardScaler(), LogisticRegression())
model.fit(people[list("abcdef")][:5_000], bought[:5_000])

if __name__ == "__main__":
    scored = hr.read_parquet("people.parquet").predict(model, inputs=list("abcdef"), output="buys")
    result = scored.write_parquet("scored/")
    assert result.rows == 54_000
    found = pd.read_parquet("scored/")
    assert found["id"].tolist() == people["id"].tolist()
    assert (found["buys"].to_numpy() == model.predict(people[list("abcdef")])).all()
