"""Embedded engine: documents, full-text index and vector index on local disk, without other services.

`engine.open_embedded` opens it. Nothing is imported here, because embedding worker processes load one module of this
package.
"""
