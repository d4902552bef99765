from millrace.run.rest import FIRST, LONGEST, Rest


def test_each_death_over_a_shard_makes_the_pause_longer() -> None:
    rest = Rest[str]()
    rest.add(1, "first", 0.0)
    rest.add(1, "second", 0.0)
    rest.add(2, "another", 0.0)
    assert rest.over(FIRST / 2) == [] and rest.left(FIRST / 2) == FIRST / 2
    assert rest.over(FIRST) == ["first", "another"]
    assert rest.over(2 * FIRST) == ["second"]
    assert rest.left(2 * FIRST) == float("inf")


def test_a_pause_has_an_end_however_often_workers_die() -> None:
    rest = Rest[int]()
    for i in range(40):
        rest.add(0, i, 0.0)
    assert rest.over(LONGEST) == list(range(40))
