"""Your own data: a table, images or arrays in; imputed labels, predictions, a model file and a report out."""



