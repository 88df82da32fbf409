def write(a, b):
    pass
