"""Backend of the web console: its API methods and event feed.

It handles calls and doesn't know HTTP. The pages are plain files in `pages`, without a build step.
"""
