"""Handing data over to other libraries and taking it from them; each library is imported when it is asked for."""
