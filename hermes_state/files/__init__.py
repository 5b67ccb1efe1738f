"""Files of attachments: the bytes, named by their hash; `hermes_state.attachments` has their rows.

Whoever keeps a file fills a new one first, and gives it away:

    fetched = files.new_file()
    fetched.write_bytes(data)
    stored = files.keep(fetched, "plan.md", "text/markdown")
    files.read(stored.path)

`opening` opens what is configured, a `folder` or a `bucket` of an object store with a folder before it. Every call
blocks, and raises `OSError`, of which `FileNotFoundError` says that the bytes are not kept any more.
"""
