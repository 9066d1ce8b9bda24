"""Views of samples: augmentation of images, tables and texts, drawn on the device."""
