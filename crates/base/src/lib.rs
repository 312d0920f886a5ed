//! What every crate speaks: positions in files, diagnostics, YAML with spans, durations, SPIFFE ids, CIDRs, limits
