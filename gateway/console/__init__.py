"""Console: data and actions of the web pages for the owner and other users. `handler` is the entry point.

A `Page` has a title, a role that is allowed to open it, a function that loads its values, and actions. `handler` lists
all pages in the order of the menu. The template of a page is `platforms/local/templates/console/<name>.html`.
"""
