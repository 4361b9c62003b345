"""Document model, conversion, chunking and export."""
