"""The fleet of downstream servers: list refresh, exposure, naming and tool pinning."""
