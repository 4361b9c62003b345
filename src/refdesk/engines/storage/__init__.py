"""What both engines keep in SQLite, a file for each tenant: collections, the queue of documents, past searches."""
