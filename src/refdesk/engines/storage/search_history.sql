CREATE TABLE history (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    user TEXT NOT NULL,
    query TEXT NOT NULL,
    collection TEXT NOT NULL,
    results INTEGER NOT NULL,
    at TEXT NOT NULL
);
CREATE INDEX history_by_user ON history (user, key);
PRAGMA user_version = 1;
