# The calls are those of ray-project/ray, doc/source/ray-core/examples/map_reduce.ipynb.
from headrace.compat import ray

corpus = ["simple is better", "complex is better than complicated", "now is better than never"]


def words(document):
    for word in document.lower().split():
        yield word, 1


@ray.remote
def apply_map(documents, partitions=3):
    results = [[] for _ in range(partitions)]
    for document in documents:
        for word, count in words(document):
            results[ord(word[0]) % partitions].append((word, count))
    return results


@ray.remote
def apply_reduce(*results):
    counts = {}
    for result in results:
        for word, count in result:
            counts[word] = counts.get(word, 0) + count
    return counts


mapped = [apply_map.options(num_returns=3).remote([document], 3) for document in corpus]
outputs = [apply_reduce.remote(*[part[i] for part in mapped]) for i in range(3)]
counts = {word: count for output in ray.get(outputs) for word, count in output.items()}
assert counts["is"] == 3 and counts["better"] == 3 and counts["never"] == 1
