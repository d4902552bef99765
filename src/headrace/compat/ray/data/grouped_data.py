"""Ray's ``ray.data.grouped_data``."""

from headrace.annex.queries.grouped import GroupedData as GroupedData
