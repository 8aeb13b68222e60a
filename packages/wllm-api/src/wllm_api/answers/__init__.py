"""The JSON that goes back to clients: whole answers and chunks of streams, from the same pieces."""
