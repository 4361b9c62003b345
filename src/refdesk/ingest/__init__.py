"""Ingestion: sources to documents in an engine, for the command line and the tools."""
