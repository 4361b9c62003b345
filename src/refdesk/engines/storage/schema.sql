-- Tables shared by both engines, one database per tenant: collections, documents with their queue.

CREATE TABLE owner (
    tenant TEXT NOT NULL,
    model TEXT NOT NULL DEFAULT ''    -- embedding model the chunks are hashed for
);

CREATE TABLE collections (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    description TEXT NOT NULL,
    version TEXT NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL
);

-- A document's row is its own queue entry: `stage` says what to do next.
CREATE TABLE documents (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    collection INTEGER NOT NULL REFERENCES collections (key) ON DELETE CASCADE,
    title TEXT NOT NULL,
    kind TEXT NOT NULL,               -- file, url, text, shelf
    source TEXT NOT NULL,             -- path, URL, handle; empty for a text
    root TEXT NOT NULL,               -- folder the file must be in; empty for any
    folder TEXT NOT NULL,             -- synced folder the document belongs to
    given BLOB,                       -- content of a queued text
    version TEXT NOT NULL,
    metadata TEXT NOT NULL,
    media_type TEXT NOT NULL DEFAULT '',
    size_bytes INTEGER NOT NULL DEFAULT 0,
    stamp TEXT NOT NULL DEFAULT '',   -- stamp of the source when it was last read
    digest TEXT NOT NULL DEFAULT '',  -- SHA-256 of the indexed content
    chunks INTEGER NOT NULL DEFAULT 0,
    embedded INTEGER NOT NULL DEFAULT 0,
    stage TEXT NOT NULL,
    request INTEGER NOT NULL DEFAULT 1,  -- incremented with each ingest request
    attempts INTEGER NOT NULL DEFAULT 0,
    retry_at REAL NOT NULL DEFAULT 0,
    error TEXT,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    indexed_at TEXT
);
CREATE INDEX documents_by_collection ON documents (collection, id);
CREATE INDEX documents_under_way ON documents (stage, key) WHERE stage NOT IN ('success', 'failed');

-- Change log for the indexes: each index stores the number of the last change it contains.
CREATE TABLE changes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    document INTEGER NOT NULL,
    kind TEXT NOT NULL,               -- text: chunks changed or deleted; vectors: all chunks embedded
    UNIQUE (document, kind)           -- only the last change is kept
);

-- Incremented with every change to documents and collections.
CREATE TABLE revision (number INTEGER NOT NULL);
INSERT INTO revision VALUES (0);
CREATE TRIGGER document_added AFTER INSERT ON documents BEGIN UPDATE revision SET number = number + 1; END;
CREATE TRIGGER document_removed AFTER DELETE ON documents BEGIN UPDATE revision SET number = number + 1; END;
CREATE TRIGGER document_changed AFTER UPDATE ON documents BEGIN UPDATE revision SET number = number + 1; END;
CREATE TRIGGER collection_added AFTER INSERT ON collections BEGIN UPDATE revision SET number = number + 1; END;
CREATE TRIGGER collection_removed AFTER DELETE ON collections BEGIN UPDATE revision SET number = number + 1; END;
CREATE TRIGGER collection_changed AFTER UPDATE ON collections BEGIN UPDATE revision SET number = number + 1; END;
