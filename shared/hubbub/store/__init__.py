"""Event store: the events that a party's machines took, in order, so that it can be rebuilt after a crash."""
