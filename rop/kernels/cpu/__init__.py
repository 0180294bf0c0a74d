"""The kernels of the CPU engine, a file per family of layers.

Values lie as (row, lane): a row is one feature of T samples, contiguous; T lanes make a *tile* of the batch. Rows of an
image are (pixel, channel). A kernel gets addresses and sizes as plain integers and works on one tile; it knows neither
which tile, nor which layer, nor which order of the jet: that is decided in rop/devices/cpu/code.py.
"""
