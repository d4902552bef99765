"""Calls of one actor from several tasks: each one's are carried out in its own order."""

import ray


@ray.remote(num_cpus=0)
class Diary:
    def __init__(self):
        self.pages = []

    def note(self, who, number):
        self.pages.append((who, number))

    def read(self):
        return self.pages


@ray.remote(num_cpus=0.5)
def write(diary, who, count):
    notes = [diary.note.remote(who, number) for number in range(count)]
    ray.get(notes[-1])
    return len(notes)


diary = Diary.remote()
writing = [write.remote(diary, who, 100) for who in range(3)]
notes = [diary.note.remote(3, number) for number in range(100)]
print(ray.get(writing), ray.get(notes[-1]))
pages = ray.get(diary.read.remote())
for who in range(4):
    print(who, [number for name, number in pages if name == who] == list(range(100)))
