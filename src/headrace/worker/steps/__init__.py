"""Steps as they run in a worker. The running form of a step in ``plan/steps`` is in the file of the same name here,
which is imported by the plans that have such a step."""
