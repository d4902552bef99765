"""Steps as they run in a worker; a plan imports those that it has: see ``plan.steps.base.running_module``."""
