"""Images: scaling in a separate process, selection for models with vision, and retries after a refusal.

`ImageScaler` (scaling.py) runs worker.py to make the copies that are sent. `ModelImages` (model_images.py) chooses
images from a view within the provider's limits. `RetriedImageCall` retries a refused call.
"""
