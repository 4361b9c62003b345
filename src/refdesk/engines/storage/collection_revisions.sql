-- Number of changes to the documents of each collection. Keys of collections are never used again.
CREATE TABLE collection_revisions (collection INTEGER PRIMARY KEY, number INTEGER NOT NULL);
CREATE TRIGGER document_added_to_collection AFTER INSERT ON documents BEGIN
    INSERT INTO collection_revisions VALUES (new.collection, 1) ON CONFLICT DO UPDATE SET number = number + 1;
END;
CREATE TRIGGER document_removed_from_collection AFTER DELETE ON documents BEGIN
    INSERT INTO collection_revisions VALUES (old.collection, 1) ON CONFLICT DO UPDATE SET number = number + 1;
END;
CREATE TRIGGER document_of_collection_changed AFTER UPDATE ON documents BEGIN
    INSERT INTO collection_revisions VALUES (new.collection, 1) ON CONFLICT DO UPDATE SET number = number + 1;
END;
