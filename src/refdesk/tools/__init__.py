"""What an agent sees: tools, resources and prompts, one toolset a file."""
