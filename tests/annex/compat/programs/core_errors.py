"""What is raised where, and of which classes it is."""

import ray
from ray.exceptions import (
    ActorDiedError,
    GetTimeoutError,
    RayActorError,
    RayError,
    RayTaskError,
    TaskCancelledError,
    WorkerCrashedError,
)


class Odd(Exception):
    def __init__(self, code, why):
        super().__init__(code, why)
        self.code = code


@ray.remote
def bad(kind=ValueError, *args):
    raise kind(*args)


@ray.remote
def outer():
    return ray.get(bad.remote(KeyError, "deep"))


@ray.remote
def handles_it():
    try:
        ray.get(bad.remote(ZeroDivisionError, "by zero"))
    except ZeroDivisionError as error:
        return "handled", isinstance(error, RayTaskError), str(error.cause)


@ray.remote
def add(a, b):
    return a + b


@ray.remote(max_retries=0)
def dies():
    import os

    os._exit(3)


@ray.remote
def catches_death():
    try:
        ray.get(dies.remote())
    except WorkerCrashedError:
        return "caught a death"


KINDS = {
    "ValueError": ValueError,
    "KeyError": KeyError,
    "Odd": Odd,
    "RayTaskError": RayTaskError,
    "WorkerCrashedError": WorkerCrashedError,
    "TaskCancelledError": TaskCancelledError,
    "GetTimeoutError": GetTimeoutError,
    "RayError": RayError,
}


def cause(error):
    return repr(error.cause) if isinstance(error, RayTaskError) else ""


def told(what):
    try:
        print("no error", ray.get(what))
    except RayError as error:
        print(*(name for name, kind in KINDS.items() if isinstance(error, kind)), cause(error))


told(bad.remote(ValueError, "no good"))
told(outer.remote())
told(bad.remote(Odd, 3, "odd"))
try:
    ray.get(bad.remote(Odd, 3, "odd"))
except Odd as error:
    print(error.code, error.cause.code, "(3, 'odd')" in str(error))
print(ray.get(handles_it.remote()))
told(add.remote(bad.remote(ValueError, "arg"), 1))
told(dies.remote())
print(ray.get(catches_death.remote()))


@ray.remote
class Worker:
    def __init__(self, fail=False):
        if fail:
            raise KeyError("init")

    def bad(self):
        raise ValueError("method")

    def good(self):
        return "good"

    def die(self):
        import os

        os._exit(1)

    async_value = 3


worker = Worker.remote()
told(worker.bad.remote())
told(worker.good.remote())
try:
    ray.get(worker.die.remote())
except RayActorError:
    print("RayActorError")
try:
    worker.missing  # noqa: B018
except AttributeError:
    print("AttributeError")
try:
    Worker()
except TypeError:
    print("TypeError")
for dead in (worker.good.remote(), Worker.remote(fail=True).good.remote()):
    try:
        ray.get(dead)
    except RayActorError as error:
        print("RayActorError", "init" in str(error))
print(issubclass(ActorDiedError, RayActorError), issubclass(GetTimeoutError, TimeoutError))
print([ray.get(ref) for ref in ray.wait([add.remote(1, 1)])[0]])
results = ray.wait([bad.remote(ValueError, "x")], timeout=30)
print(len(results[0]), len(results[1]))
try:
    ray.get([add.remote(1, 2), bad.remote(ValueError, "second")])
except ValueError as error:
    print(type(error).__name__, error.cause)
