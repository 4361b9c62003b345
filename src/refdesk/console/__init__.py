"""The web console's side of the desk: what its pages are made of, and what they ask for.

It answers calls and knows nothing of HTTP; the pages themselves are plain files in `pages`, which nothing builds.
"""
