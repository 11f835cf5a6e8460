"""The multilingual translation application, on the core: `pip install 'multidds[nmt]'`."""
