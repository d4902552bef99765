"""Actors of classes that derive from others, with properties and class methods."""

import ray


class Base:
    kind = "base"

    def __init__(self, x):
        self.x = x

    def get(self):
        return self.kind, self.x, self.hidden()

    def hidden(self):
        return "base"

    @classmethod
    def of_class(cls):
        return cls.kind

    @staticmethod
    def of_none(a):
        return a + 1


@ray.remote
class Derived(Base):
    kind = "derived"

    def __init__(self, x):
        super().__init__(x * 2)

    def hidden(self):
        return "derived"


actor = Derived.remote(3)
print(ray.get(actor.get.remote()), ray.get(actor.of_class.remote()), ray.get(actor.of_none.remote(1)))
plain = ray.remote(Base).remote(1)
print(ray.get(plain.get.remote()), Derived.kind if hasattr(Derived, "kind") else "hidden")
