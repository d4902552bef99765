"""Ray's ``ray.data.aggregate``: what is counted of groups."""

from headrace.aggregate import AbsMax as AbsMax
from headrace.aggregate import AsList as AsList
from headrace.aggregate import Count as Count
from headrace.aggregate import CountDistinct as CountDistinct
from headrace.aggregate import Max as Max
from headrace.aggregate import Mean as Mean
from headrace.aggregate import Min as Min
from headrace.aggregate import Quantile as Quantile
from headrace.aggregate import Std as Std
from headrace.aggregate import Sum as Sum
from headrace.aggregate import Unique as Unique
