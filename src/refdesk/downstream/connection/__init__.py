"""Connection to one downstream server: sessions, reconnection, leases and subscriptions."""
