"""Vector index: binary codes for scanning and 8-bit vectors for scoring, in memory-mapped files.

Updatable and filterable, with high recall. It is derived data: its owner can rebuild it, and `mark` is the number of
the last change it contains. It only handles numbers, neither documents nor models.
"""

from refdesk.engines.embedded.vectors.reader import Vectors
from refdesk.engines.embedded.vectors.segment import Float32s, Row
from refdesk.engines.embedded.vectors.writer import VectorWriter

__all__ = ["Float32s", "Row", "VectorWriter", "Vectors"]
