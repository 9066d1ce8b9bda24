"""Reading untrusted files and writing files atomically."""
