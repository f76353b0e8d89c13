"""make_hdf5.py FILE COUNT: as many small datasets, for h5ls to list."""
import sys

import h5py
import numpy

with h5py.File(sys.argv[1], "w") as file:
    for i in range(int(sys.argv[2])):
        name = f"model.layers.{i // 8}.mlp.experts.{i % 8}.weight"
        file.create_dataset(name, data=numpy.zeros((8, 2), "f4"))
