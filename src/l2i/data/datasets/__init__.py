"""The data sets: one module per source, each a function from a folder to a DataSet."""
