"""The service over HTTP: what is asked and answered, who may, how much at once, and the server itself."""
