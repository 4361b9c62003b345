"""The embedded engine: documents, full-text and vector index on local disk, nothing else to run.

`engine.open_embedded` opens it. Nothing is imported here: the processes that embed load one module of this package.
"""
