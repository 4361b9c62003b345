"""Small building blocks without a domain: files, bounded maps, background tasks, listeners."""
