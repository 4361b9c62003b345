"""Where knowledge lives. One port, whatever is behind it."""
