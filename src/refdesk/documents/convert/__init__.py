"""A file's bytes to a Document: one module per format, chosen by what the bytes are."""
