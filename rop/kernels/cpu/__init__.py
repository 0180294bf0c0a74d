"""The kernels of the CPU engine, a file per family of layers.

Values are stored as (row, lane): a row is one feature of T samples, contiguous; T lanes make a *tile* of the batch.
Rows of an image are (pixel, channel). A kernel gets addresses and sizes as plain integers and works on one tile; it
knows neither which tile nor which layer: rop/devices/cpu/code.py decides that. Its operands are the outputs first, then
the inputs, then the sizes. A comment (row, lane) on an operand is the shape of the array at that address; an operand
without a shape is a number. Formulas are not written here but compiled from rop/layers.
"""
