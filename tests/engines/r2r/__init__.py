"""The engine on R2R, against a server that follows a script; `tests/r2r` has the real one."""
