"""The door: bytes become calls, answers and errors become bytes."""
