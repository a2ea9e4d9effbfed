"""The service over HTTP: operations, keys, threads, pages, and the server."""
