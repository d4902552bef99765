"""What `BatchPredictor` is made of: data in the form in which users have them, and models put to work."""
