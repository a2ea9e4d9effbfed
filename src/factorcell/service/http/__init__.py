"""The service over HTTP: messages, operations, keys, threads, and the server."""
