"""Outputs as they lie there: looked at, told, checked and cleaned, by who does not write them."""
