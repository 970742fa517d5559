"""Runtime of a service: runs its state machines on a transport, a store and a clock."""
