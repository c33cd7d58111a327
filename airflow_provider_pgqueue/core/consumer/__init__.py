"""How messages are consumed: leased, handled, and settled with their outcomes; Spark and the repair use it too.

A loop takes leases, one after another, and has a handler handle each. The call that settles a lease takes the next one.

A lease is what is held under one token. A thread renews it. The outcomes of its messages are gathered in it, and
settled about once a second; what has none at the end is released. It knows which of its messages were lost.

A handler calls the function of the user for the messages of a lease, within its time. After an error it calls it again
for smaller pieces, so that a message that raises or hangs affects no others. A breaker stops it if it is broken.
"""
