# The calls are those of ray-project/ray, doc/source/ray-more-libs/joblib.rst.
import joblib
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import RandomizedSearchCV

from headrace.compat.ray.util.joblib import register_ray

rng = np.random.default_rng(0)
x = rng.normal(size=(40, 3))
y = (x[:, 0] > 0).astype(int)
register_ray()
with joblib.parallel_backend("ray"):
    search = RandomizedSearchCV(LogisticRegression(), {"C": [0.1, 1.0, 10.0]}, cv=2, n_iter=2, n_jobs=2)
    search.fit(x, y)
    assert joblib.Parallel(n_jobs=2)(joblib.delayed(pow)(n, 2) for n in range(5)) == [0, 1, 4, 9, 16]
assert search.best_score_ > 0.5
