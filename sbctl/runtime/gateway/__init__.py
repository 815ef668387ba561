"""The hot path: bytes from a caller to an engine and back, in one process and with as little in between as safety allows.

    server      connections, their number and their deadlines        connection  one caller's connection: requests in, answers out
    head        the one strict reading of a request's head           chunked     the one strict reading of a chunked body
    gateway     key ► origin ► model ► admission ► engine            surface     which paths there are and what they ask of a model
    fields      what a request may say, by kind                      asked       one checked request, and what the engine gets of it
    upstream    kept connections to one engine                       relay       an engine's answer on its way back
    events      server-sent events, cut, renamed, watched            assemble    one whole answer out of events
    answers     what this side says itself: JSON, errors, heads      ports       what the gateway needs of everything else

Nothing of a caller's head goes on to an engine: what an engine gets is written here, so no header of a caller can mean something else
behind us. What is not hot (administration, control, metrics) is served by aiohttp.
"""
