"""All servers behind this desk: what they offer together, under which names, and what of it is trusted."""
