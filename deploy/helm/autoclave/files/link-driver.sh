# Link what NVIDIA's driver brings into one directory, for LD_LIBRARY_PATH and PATH: link-driver ROOT DIRECTORY SOCKET.
# The driver's own directories also hold the C library of the node, which no program of the image may load.
# SOCKET: where nvidia-persistenced listens, as seen from DIRECTORY/persistence when it is /run/nvidia-persistenced.
set -eu
for libraries in "$1/usr/lib64" "$1/usr/lib/x86_64-linux-gnu" "$1/usr/lib/aarch64-linux-gnu" ""; do
  if [ -e "$libraries/libnvidia-ml.so.1" ]; then break; fi
done
for library in libnvidia-ml.so.1 libcuda.so.1; do
  if [ ! -e "$libraries/$library" ]; then
    echo "found no $library in the driver's root: install NVIDIA's driver, wait until its container has started, or change scrubber.driverRoot" >&2
    exit 1
  fi
done
rm -rf "${2:?}"/*
mkdir "$2/persistence"
ln -s "$3" "$2/persistence/socket"
for file in "$libraries"/libcuda.so.* "$libraries"/libnvidia-*.so.* "$1/usr/bin/nvidia-smi"; do
  if [ -e "$file" ]; then ln -s "$file" "$2/"; fi
done
