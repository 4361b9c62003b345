"""The document itself: its structure, and how text becomes it. Knows nothing of where documents are kept."""
