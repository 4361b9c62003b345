-- Additional tables of the embedded engine. Full-text and vector indexes are derived from them and can be rebuilt.

-- Compressed packed document, used by the reader tools.
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
    hash BLOB NOT NULL                -- of the model and its input
);
CREATE UNIQUE INDEX chunks_in_order ON chunks (document, ordinal);
CREATE INDEX chunks_by_hash ON chunks (hash);

-- Keyed by the embedded text, so that repeated texts are embedded once.
CREATE TABLE embeddings (
    hash BLOB PRIMARY KEY,
    vector BLOB NOT NULL
) WITHOUT ROWID;
