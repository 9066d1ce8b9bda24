"""Your own data in; imputed labels, predictions, a model file and a report out."""
