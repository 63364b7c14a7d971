"""x"""
FAULTS = []
