"""What several parts must all do alike, as one suite that each of them is put through."""
