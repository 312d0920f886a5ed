//! HTTP/1 codec without I/O, paths and their normalization, bodies, upgrades
