# The calls are those of ray-project/ray, doc/source/ray-core/doc_code/task_exceptions.py.
from headrace.compat import ray
from headrace.compat.ray.exceptions import GetTimeoutError, RayActorError, RayTaskError


@ray.remote
def f():
    raise Exception("the real error")


@ray.remote
def g(x):
    return


for ref in (f.remote(), g.remote(f.remote())):
    try:
        ray.get(ref)
        raise AssertionError
    except RayTaskError as e:
        assert "the real error" in str(e)


class MyException(Exception): ...


class MyFinalException(Exception):
    def __init_subclass__(cls, /, *args, **kwargs):
        raise TypeError("Cannot subclass this little exception class.")


@ray.remote
def raises(kind):
    raise kind("a user exception")


try:
    ray.get(raises.remote(MyException))
    raise AssertionError
except MyException as e:
    assert isinstance(e.cause, MyException)
try:
    ray.get(raises.remote(MyFinalException))
    raise AssertionError
except RayTaskError as e:
    assert isinstance(e.cause, MyFinalException)
    assert str(e.cause) == "a user exception"


@ray.remote
class Doomed:
    def __init__(self):
        raise ValueError("no")

    def ping(self):
        return 1


try:
    ray.get(Doomed.remote().ping.remote())
    raise AssertionError
except RayActorError as e:
    assert "no" in str(e)


@ray.remote
def endless():
    import time

    time.sleep(60)


try:
    ray.get(endless.remote(), timeout=0.1)
    raise AssertionError
except GetTimeoutError:
    pass
