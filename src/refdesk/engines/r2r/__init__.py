"""R2R engine: search, answers and ingestion over the HTTP API of an R2R server."""
