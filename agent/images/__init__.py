"""Images: scaled in a separate process, shown to models with vision, and sent again if a provider refuses them.

`ImageScaler` (scaling.py) runs worker.py to make the copies that are sent. `ModelImages` (model_images.py) chooses
images from a view within the limits of the provider. `RetriedImageCall` repeats a refused call.
"""
