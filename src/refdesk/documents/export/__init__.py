"""Export of documents to Markdown, HTML and DoclingDocument JSON."""
