"""Learning tasks of a trainer: models, data and training. The protocol sees only flat vectors.

Importing this package imports numpy and nothing heavier; a task imports what it needs when it is used.
"""
