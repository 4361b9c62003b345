-- What the embedded engine keeps besides. Full-text and vector indexes are made from it and can be made again.

-- The packed document, compressed: what the reader tools read.
CREATE TABLE contents (
    document INTEGER PRIMARY KEY REFERENCES documents (key) ON DELETE CASCADE,
    body BLOB NOT NULL
);

CREATE TABLE chunks (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    document INTEGER NOT NULL REFERENCES documents (key) ON DELETE CASCADE,
    ordinal INTEGER NOT NULL,
    section TEXT NOT NULL,
    path TEXT NOT NULL,
    anchors TEXT NOT NULL,
    page INTEGER,
    text TEXT NOT NULL,
    hash BLOB NOT NULL                -- of the model and the text that is embedded
);
CREATE UNIQUE INDEX chunks_in_order ON chunks (document, ordinal);
CREATE INDEX chunks_by_hash ON chunks (hash);

-- By what was embedded, so that a text that comes again is not embedded again.
CREATE TABLE embeddings (
    hash BLOB PRIMARY KEY,
    vector BLOB NOT NULL
) WITHOUT ROWID;
