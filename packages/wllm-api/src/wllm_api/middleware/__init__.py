"""Plain ASGI layers around the routes, outermost first: requests, identity, faults, hosts, origins, paths, keys, rates.

Plain classes, because they must hand `receive` and `send` through untouched: streams and disconnects depend on it.
"""
