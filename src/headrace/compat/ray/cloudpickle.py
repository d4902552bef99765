"""Ray's ``ray.cloudpickle``."""

from cloudpickle import dump as dump
from cloudpickle import dumps as dumps
from cloudpickle import load as load
from cloudpickle import loads as loads
