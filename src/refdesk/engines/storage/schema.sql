-- What both engines keep of one tenant: collections, documents with their queue, and searches. Each adds its own tables.

CREATE TABLE owner (
    tenant TEXT NOT NULL,
    model TEXT NOT NULL DEFAULT ''    -- the embedding model that chunks are hashed for
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

-- A document is its own entry in the queue: `stage` says what is to be done next.
CREATE TABLE documents (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    collection INTEGER NOT NULL REFERENCES collections (key) ON DELETE CASCADE,
    title TEXT NOT NULL,
    kind TEXT NOT NULL,               -- file, url, text, shelf
    source TEXT NOT NULL,             -- path, URL, handle; empty for a text
    root TEXT NOT NULL,               -- the folder that a file may not lie outside of; empty for any
    folder TEXT NOT NULL,             -- the folder that it was brought in with, and goes with
    given BLOB,                       -- a text on its way in
    version TEXT NOT NULL,
    metadata TEXT NOT NULL,
    media_type TEXT NOT NULL DEFAULT '',
    size_bytes INTEGER NOT NULL DEFAULT 0,
    stamp TEXT NOT NULL DEFAULT '',   -- what a glance at the source showed when it was last read
    digest TEXT NOT NULL DEFAULT '',  -- of the bytes that are indexed
    chunks INTEGER NOT NULL DEFAULT 0,
    embedded INTEGER NOT NULL DEFAULT 0,
    stage TEXT NOT NULL,
    request INTEGER NOT NULL DEFAULT 1,  -- rises each time that it is asked for anew
    attempts INTEGER NOT NULL DEFAULT 0,
    retry_at REAL NOT NULL DEFAULT 0,
    error TEXT,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    indexed_at TEXT
);
CREATE INDEX documents_by_collection ON documents (collection, id);
CREATE INDEX documents_under_way ON documents (stage, key) WHERE stage NOT IN ('success', 'failed');

-- What the indexes have still to follow: each keeps the number of the last change that it holds.
CREATE TABLE changes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    document INTEGER NOT NULL,
    kind TEXT NOT NULL,               -- text: its chunks are others now, or gone; vectors: all of them are embedded
    UNIQUE (document, kind)           -- the last change alone counts
);

CREATE TABLE history (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    user TEXT NOT NULL,
    query TEXT NOT NULL,
    collection TEXT NOT NULL,
    results INTEGER NOT NULL,
    at TEXT NOT NULL
);
CREATE INDEX history_by_user ON history (user, key);

-- Rises with every change to documents and collections.
CREATE TABLE revision (number INTEGER NOT NULL);
INSERT INTO revision VALUES (0);
CREATE TRIGGER document_added AFTER INSERT ON documents BEGIN UPDATE revision SET number = number + 1; END;
CREATE TRIGGER document_removed AFTER DELETE ON documents BEGIN UPDATE revision SET number = number + 1; END;
CREATE TRIGGER document_changed AFTER UPDATE ON documents BEGIN UPDATE revision SET number = number + 1; END;
CREATE TRIGGER collection_added AFTER INSERT ON collections BEGIN UPDATE revision SET number = number + 1; END;
CREATE TRIGGER collection_removed AFTER DELETE ON collections BEGIN UPDATE revision SET number = number + 1; END;
CREATE TRIGGER collection_changed AFTER UPDATE ON collections BEGIN UPDATE revision SET number = number + 1; END;
