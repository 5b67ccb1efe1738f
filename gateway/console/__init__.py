"""Console: data and actions of the web pages for people and for the owner. `handler` is the entry point.

Each page is a module with a `Page`: what it is called, who may see it, how its values are loaded, and its actions. Its
template is `platforms/local/templates/console/<name>.html`. `pages` lists all pages in the order of the menu.
"""
