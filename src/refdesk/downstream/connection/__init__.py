"""One server: its session, kept or short, owned by one task, and asked within bounds."""
