"""Export of documents to Markdown and HTML; `convert.docling` exports DoclingDocument JSON."""
