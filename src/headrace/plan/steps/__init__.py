"""The steps of a plan, one file for each kind; a step's running form is in the file of the same name in
``worker/steps``."""
