"""What is searched in the benchmarks of search: documentation of Debian, brought in by Refdesk's own parts."""
