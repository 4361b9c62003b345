"""MCP client side: sessions with downstream servers, and the fleet that exposes them."""
