"""Where jobs run: the small protocol, and the backends that fill it."""
