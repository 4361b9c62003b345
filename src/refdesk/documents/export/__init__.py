"""A Document to the forms that leave the desk: Markdown, HTML and DoclingDocument JSON."""
