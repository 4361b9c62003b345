"""The files that say which servers there are, of this desk and of other clients, and what servers print."""
