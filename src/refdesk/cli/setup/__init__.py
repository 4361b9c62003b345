"""Other programs' settings files: what goes into them, and how they are changed with all else in them left as it is."""
