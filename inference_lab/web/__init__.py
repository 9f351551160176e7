"""HTTP in, bytes out: Klein routes, typed requests, error shapes, the wire."""
