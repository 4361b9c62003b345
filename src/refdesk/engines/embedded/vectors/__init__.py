"""The vector index: binary codes that are scanned and 8-bit vectors that are scored, in memory-mapped files.

Exact enough, updatable and filterable by nature. It is derived: whoever owns it can build it anew, and learns from
`mark` up to which change it goes. It knows numbers only, neither documents nor models.
"""

from refdesk.engines.embedded.vectors.arrays import Float32s, Row
from refdesk.engines.embedded.vectors.reader import Vectors
from refdesk.engines.embedded.vectors.writer import VectorWriter

__all__ = ["Float32s", "Row", "VectorWriter", "Vectors"]
