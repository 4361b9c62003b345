"""Configurations and requests of the systems that Refdesk unites, with their keys and values, run as they stand."""
