CREATE TABLE IF NOT EXISTS documents (
    key         INTEGER PRIMARY KEY,
    tenant      TEXT NOT NULL,
    id          TEXT NOT NULL,
    doc_type    TEXT NOT NULL,
    collection  TEXT NOT NULL,
    title       TEXT NOT NULL,
    text        TEXT NOT NULL,
    hash        TEXT NOT NULL,
    version     TEXT NOT NULL,
    indexed_at  TEXT NOT NULL,
    UNIQUE (tenant, id)
);

CREATE TABLE IF NOT EXISTS sets (
    tenant      TEXT NOT NULL,
    doc_type    TEXT NOT NULL,
    collection  TEXT NOT NULL,
    title       TEXT NOT NULL,
    version     TEXT NOT NULL,
    PRIMARY KEY (tenant, doc_type)
);

CREATE TABLE IF NOT EXISTS passages (
    key         INTEGER PRIMARY KEY,
    document    INTEGER NOT NULL REFERENCES documents (key) ON DELETE CASCADE,
    ordinal     INTEGER NOT NULL,
    section     TEXT NOT NULL,
    path        TEXT NOT NULL,
    page        INTEGER,
    text        TEXT NOT NULL
);

CREATE INDEX IF NOT EXISTS passages_by_document ON passages (document);

-- The words of each passage, under its document's title and its headings.
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (
    title, headings, text,
    tokenize = "porter unicode61 remove_diacritics 2"
);
