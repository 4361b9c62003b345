-- Additional tables of the R2R engine: mapping of local ids to R2R's, and documents to delete from R2R.
-- The shared tables in `storage` contain the queue and the catalogue.

CREATE TABLE remote_collections (
    collection INTEGER PRIMARY KEY REFERENCES collections (key) ON DELETE CASCADE,
    uuid TEXT NOT NULL UNIQUE,
    total INTEGER NOT NULL DEFAULT 0  -- documents in R2R when they were last counted
);

CREATE TABLE remote_documents (
    document INTEGER PRIMARY KEY REFERENCES documents (key) ON DELETE CASCADE,
    uuid TEXT NOT NULL                -- of the searchable version
);
CREATE INDEX remote_documents_by_uuid ON remote_documents (uuid);

-- Documents deleted here that still exist in R2R.
CREATE TABLE leftovers (
    uuid TEXT PRIMARY KEY,
    collection TEXT NOT NULL          -- former collection; a foreign document that is also in others is only removed from it
);
CREATE TRIGGER document_given_up BEFORE DELETE ON documents BEGIN
    INSERT OR IGNORE INTO leftovers
    SELECT r.uuid, coalesce(c.uuid, '') FROM remote_documents r
    LEFT JOIN remote_collections c ON c.collection = old.collection WHERE r.document = old.key;
END;
