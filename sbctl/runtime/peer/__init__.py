"""The peer plane: a gateway hands one request over one hop to the worker that serves it, over mutual TLS 1.3 and HTTP/1.1.

    gateway's side
    candidates  who may answer, out of what nodes published        choice      which of them, and in which order
    known       all of that, by deployment, as last heard          gateway     the public API of a gateway in a cluster
    dispatch    attempts, failover, cold starts                    client      kept connections to workers, and what they refuse with
    worker's side
    listener    the port, connections, revoked peers               worker      who asks, whether it counts, and the way to an engine
    replay      no dispatch twice                                  assigned    what runs here, by the numbers of the cluster
    both
    identity    certificate, CA and revocations, swapped at once   envelope    what is signed, and what is checked of it
    framing     the body on the wire                               codes       refusals: status, and whether somebody else is asked
    metrics     counters

Before the first byte of an answer another replica may be asked; after it, never. A peer is believed for what its certificate and its signed
words say, never for where it calls from.
"""
