"""Documents: text of PDF, Word, Excel, PowerPoint and HTML files, read by worker processes.

`DocumentReader` (reading.py) runs worker.py, or the web tools' page worker for HTML.
"""
