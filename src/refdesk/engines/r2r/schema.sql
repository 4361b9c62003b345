-- What R2R does not keep of one tenant: which of its collections and documents are which of ours, and what is to go.
-- Beside the tables of `keeping`, which hold the queue, the catalogue and the history.

CREATE TABLE remote_collections (
    collection INTEGER PRIMARY KEY REFERENCES collections (key) ON DELETE CASCADE,
    uuid TEXT NOT NULL UNIQUE,
    total INTEGER NOT NULL DEFAULT 0  -- its documents at R2R, when they were last counted
);

CREATE TABLE remote_documents (
    document INTEGER PRIMARY KEY REFERENCES documents (key) ON DELETE CASCADE,
    uuid TEXT NOT NULL                -- of what answers to searches now
);
CREATE INDEX remote_documents_by_uuid ON remote_documents (uuid);

-- Documents that are given up here and still at R2R.
CREATE TABLE leftovers (
    uuid TEXT PRIMARY KEY,
    collection TEXT NOT NULL          -- where they were; a stranger's document that is elsewhere too only leaves it
);
CREATE TRIGGER document_given_up BEFORE DELETE ON documents BEGIN
    INSERT OR IGNORE INTO leftovers
    SELECT r.uuid, coalesce(c.uuid, '') FROM remote_documents r
    LEFT JOIN remote_collections c ON c.collection = old.collection WHERE r.document = old.key;
END;
