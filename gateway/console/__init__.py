"""Console: data and actions of the web pages for people and for the owner. `handler` is the entry point.

A page is a `Page`: what it is called, who may see it, how its values are loaded, and its actions. `handler` lists all
pages in the order of the menu. The template of a page is `platforms/local/templates/console/<name>.html`.
"""
