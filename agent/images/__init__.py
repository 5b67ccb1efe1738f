"""Images: scaled in a process of their own, shown to models that see, and sent again where a provider refuses them.

`ImageScaler` (scaling.py) makes the copies that are sent, by worker.py. `ModelImages` (model_images.py) chooses those
of a view that a model is shown, within what its provider takes; `RetriedImageCall` repeats a refused call.
"""
