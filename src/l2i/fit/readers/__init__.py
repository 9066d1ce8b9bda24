"""Reading user data: tables, arrays, image folders and lists of images."""
