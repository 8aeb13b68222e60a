"""Plain ASGI layers around the routes, outermost first: identity, faults, hosts, origins, paths, keys.

Plain classes, because they must hand `receive` and `send` through untouched: streams and disconnects depend on it.
"""
