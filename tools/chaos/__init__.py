"""A load of every kind, a nemesis that breaks things under it, and an account of each message at the end.

    .venv/bin/python -m tools.chaos --seconds 600

After Jepsen's total-queue checker: each actor is a process that writes down what it is about to do before it does it,
and how that ended, so that a call whose reply was lost counts as neither done nor not done.
"""
