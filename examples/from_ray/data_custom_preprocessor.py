# The calls are those of ray-project/ray, doc/source/data/preprocessors.rst.
from pandas import DataFrame

from headrace.compat import ray
from headrace.compat.ray.data import Dataset
from headrace.compat.ray.data.aggregate import Max
from headrace.compat.ray.data.preprocessor import Preprocessor
from headrace.compat.ray.data.preprocessors import BatchMapper


class CustomPreprocessor(Preprocessor):
    def _fit(self, dataset: Dataset) -> Preprocessor:
        self.stats_ = dataset.aggregate(Max("id"))
        return self

    def _transform_pandas(self, df: DataFrame) -> DataFrame:
        return df * self.stats_["max(id)"]


ds = ray.data.range(4)
assert CustomPreprocessor().fit_transform(ds).take() == [{"id": 0}, {"id": 3}, {"id": 6}, {"id": 9}]
double = BatchMapper(lambda df: df * 2, batch_size=2, batch_format="pandas")
assert double.transform(ds).take() == [{"id": 0}, {"id": 2}, {"id": 4}, {"id": 6}]
